//! The forward pass, with its collectives.
//!
//! ```text
//! embedding, tied:  own rows looked up, zeros elsewhere  --all-reduce-->  hidden states
//! attention, mlp:   partial of the own heads or rows     --all-reduce-->  added to the hidden states
//! head:             own columns of the logits            --all-gather-->  whole logits
//! ```

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use reshard_parallel::model::Role;
use reshard_transport::Communicator;

use super::weights::{Graph, Held, Meter, Shard, Weights};
use super::{graph, plain};
use crate::error::TrainerError;
use crate::model::{Block, BlockKind, Model};

/// Where the weights of a block come from: a trainer's or a rollout engine's own storage.
pub(crate) trait ShardSource {
    /// This rank's shards of the block's parameters, in the order of the block's entries. Every rank that
    /// holds a part of them makes the call at the same point.
    fn shards(&self, block: &Block) -> Result<Vec<Shard>, TrainerError>;
}

/// Whether a forward pass fills each block anew, and drops it after, or finds all of them filled.
#[derive(Clone, Copy)]
pub(crate) enum Fills<'a> {
    /// From a source, block by block.
    Fresh(&'a dyn ShardSource),
    /// Filled before, by [`Decoder::fill_all`].
    Kept(&'a Filled),
}

/// Every block of a model, filled.
pub(crate) struct Filled {
    embedding: Rc<Table>,
    layers: Vec<Rc<Weights>>,
}

/// This rank's rows of the embedding, which are looked up without a tensor.
struct Table {
    values: Vec<f32>,
    _held: Held,
}

/// How many sequences of how many tokens hidden states are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenShape {
    pub(crate) sequences: usize,
    pub(crate) tokens: usize,
}

/// Computes one rank's part of a model.
#[derive(Clone)]
pub(crate) struct Decoder {
    pub(super) model: Arc<Model>,
    pub(super) tp: Arc<dyn Communicator>,
    pub(super) meter: Arc<Meter>,
}

impl Decoder {
    /// A decoder for the member of the tensor-parallel group that calls; the meter counts its weights.
    pub(crate) fn new(model: Arc<Model>, tp: Arc<dyn Communicator>, meter: Arc<Meter>) -> Self {
        Self { model, tp, meter }
    }

    /// Whole logits of all tokens, (sequences x tokens, vocabulary), and the input of every block after the
    /// embedding, in order.
    pub(crate) fn forward(
        &self,
        tokens: &[u32],
        shape: TokenShape,
        fills: Fills<'_>,
    ) -> Result<(Vec<f32>, Vec<Vec<f32>>), TrainerError> {
        let blocks = self.model.blocks();
        let mut inputs = vec![self.embed(&blocks[0], tokens, fills)?];
        for (block, index) in blocks[1..].iter().zip(0..) {
            let input = inputs[index].as_slice();
            let weights = match fills {
                Fills::Fresh(source) => Rc::new(self.fill(block, source)?),
                Fills::Kept(filled) => Rc::clone(&filled.layers[index]),
            };
            let is_head = block.kind() == BlockKind::Head;
            let partial = match weights.find(block.pivot()) {
                None if !is_head => vec![0.0; input.len()],
                _ => flat(&self.partial(block, &self.tensor(input, shape)?, &weights)?)?,
            };
            if is_head {
                return Ok((self.gather_columns(block, &partial, shape.sequences * shape.tokens)?, inputs));
            }
            let output = self.summed(block, input, partial, &weights)?;
            inputs.push(output);
        }
        unreachable!("a model ends with its head")
    }

    /// Fills every block, for as many forward passes as the weights stay as they are.
    pub(crate) fn fill_all(&self, source: &dyn ShardSource) -> Result<Filled, TrainerError> {
        let (embedding, layers) = (&self.model.blocks()[0], &self.model.blocks()[1..]);
        let layers = layers.iter().map(|block| Ok(Rc::new(self.fill(block, source)?)));
        Ok(Filled {
            embedding: Rc::new(self.fill_embedding(embedding, source)?),
            layers: layers.collect::<Result<_, TrainerError>>()?,
        })
    }

    fn fill(&self, block: &Block, source: &dyn ShardSource) -> Result<Weights, TrainerError> {
        Weights::new(block, source.shards(block)?, Graph::Untracked, &self.meter)
    }

    fn fill_embedding(&self, block: &Block, source: &dyn ShardSource) -> Result<Table, TrainerError> {
        let values = source.shards(block)?.swap_remove(0).values;
        Ok(Table { _held: self.meter.hold(size_of_val(values.as_slice())), values })
    }

    fn embed(&self, block: &Block, tokens: &[u32], fills: Fills<'_>) -> Result<Vec<f32>, TrainerError> {
        let table = match fills {
            Fills::Fresh(source) => Rc::new(self.fill_embedding(block, source)?),
            Fills::Kept(filled) => Rc::clone(&filled.embedding),
        };
        let rows = self.embedding_rows(block);
        let mut hidden = plain::lookup(tokens, &table.values, &rows, self.model.dimensions().hidden);
        if self.model.parameters()[block.entries()[0].1].cut.is_some() {
            self.tp.all_reduce(&mut hidden)?;
        }
        Ok(hidden)
    }

    /// The rows of the embedding that this rank holds.
    pub(crate) fn embedding_rows(&self, block: &Block) -> Range<usize> {
        self.model.parameters()[block.entries()[0].1].rows(self.tp.position())
    }

    /// A block's output from its input and this rank's part of what the block adds.
    fn summed(
        &self,
        block: &Block,
        input: &[f32],
        mut partial: Vec<f32>,
        weights: &Weights,
    ) -> Result<Vec<f32>, TrainerError> {
        self.tp.all_reduce(&mut partial)?;
        add(&mut partial, input);
        if let Some(role) = block.bias_after_sum() {
            let bias = flat(weights.get(role)?)?;
            partial.chunks_exact_mut(bias.len()).for_each(|row| add(row, &bias));
        }
        Ok(partial)
    }

    /// Lays the columns of all ranks side by side. Ranks hold different numbers of columns, and a collective
    /// takes equal lengths, so each sends as much as the widest one.
    fn gather_columns(&self, block: &Block, own: &[f32], rows: usize) -> Result<Vec<f32>, TrainerError> {
        let ranges = self.head_columns(block);
        let widest = ranges.iter().map(Range::len).max().unwrap_or(0);
        let mut mine = own.to_vec();
        mine.resize(rows * widest, 0.0);
        let mut all = vec![0.0f32; mine.len() * ranges.len()];
        self.tp.all_gather(bytemuck::cast_slice(&mine), bytemuck::cast_slice_mut(&mut all))?;
        let vocabulary = self.model.dimensions().vocabulary;
        let mut whole = vec![0.0; rows * vocabulary];
        for (range, part) in ranges.iter().zip(all.chunks_exact(rows * widest)) {
            for row in 0..rows {
                whole[row * vocabulary..][range.clone()]
                    .copy_from_slice(&part[row * range.len()..][..range.len()]);
            }
        }
        Ok(whole)
    }

    /// The columns of the logits that each rank of the group computes.
    pub(super) fn head_columns(&self, block: &Block) -> Vec<Range<usize>> {
        let parameter = block.parameter(Role::Head).map(|index| &self.model.parameters()[index]);
        let ranks = 0..self.tp.ranks().len();
        ranks.map(|rank| parameter.map_or(0..0, |parameter| parameter.rows(rank))).collect()
    }

    /// What the block adds before the sum over the group.
    pub(super) fn partial(
        &self,
        block: &Block,
        input: &Tensor,
        weights: &Weights,
    ) -> Result<Tensor, TrainerError> {
        let dimensions = self.model.dimensions();
        match block.kind() {
            BlockKind::Attention => graph::attention(input, weights, dimensions),
            BlockKind::Mlp => graph::mlp(input, weights, dimensions),
            BlockKind::Head => graph::head(input, weights, dimensions),
            BlockKind::Embedding => unreachable!("an embedding takes tokens, not hidden states"),
        }
    }

    pub(super) fn tensor(&self, values: &[f32], shape: TokenShape) -> Result<Tensor, TrainerError> {
        let shape = (shape.sequences, shape.tokens, self.model.dimensions().hidden);
        Ok(Tensor::from_slice(values, shape, &Device::Cpu)?)
    }
}

fn add(sums: &mut [f32], values: &[f32]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        *sum += value;
    }
}

/// The elements of a tensor in row-major order.
pub(super) fn flat(tensor: &Tensor) -> Result<Vec<f32>, TrainerError> {
    Ok(tensor.flatten_all()?.to_vec1()?)
}

//! The forward pass, with its collectives.
//!
//! ```text
//! embedding, tied:  own rows looked up, zeros elsewhere  --all-reduce-->  hidden states
//! attention, mlp:   partial of the own heads or rows     --all-reduce-->  added to the hidden states
//! head:             own columns of the logits            --all-gather-->  whole logits
//! ```

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use reshard_parallel::model::Role;
use reshard_transport::Communicator;

use super::weights::{Graph, Meter, Shard, Weights};
use super::{graph, plain};
use crate::error::TrainerError;
use crate::model::{Block, BlockKind, Model};

/// Where the weights of a block come from: a trainer's or a rollout engine's own storage.
pub(crate) trait ShardSource {
    /// This rank's shards of the block's parameters, in the order of the block's entries. Every rank that
    /// holds a part of them makes the call at the same point.
    fn shards(&self, block: &Block) -> Result<Vec<Shard>, TrainerError>;
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
        source: &dyn ShardSource,
    ) -> Result<(Vec<f32>, Vec<Vec<f32>>), TrainerError> {
        let blocks = self.model.blocks();
        let mut inputs = vec![self.embed(&blocks[0], tokens, source)?];
        for (block, index) in blocks[1..].iter().zip(0..) {
            if block.kind() == BlockKind::Head {
                return Ok((self.logits(block, &inputs[index], shape, source)?, inputs));
            }
            inputs.push(self.layer(block, &inputs[index], shape, source)?);
        }
        unreachable!("a model ends with its head")
    }

    fn embed(
        &self,
        block: &Block,
        tokens: &[u32],
        source: &dyn ShardSource,
    ) -> Result<Vec<f32>, TrainerError> {
        let shards = source.shards(block)?;
        let _held = self.meter.hold(size_of_val(shards[0].values.as_slice()));
        let rows = self.embedding_rows(block);
        let mut hidden = plain::lookup(tokens, &shards[0].values, &rows, self.model.dimensions().hidden);
        if self.model.parameters()[shards[0].parameter].cut.is_some() {
            self.tp.all_reduce(&mut hidden)?;
        }
        Ok(hidden)
    }

    /// The rows of the embedding that this rank holds.
    pub(crate) fn embedding_rows(&self, block: &Block) -> Range<usize> {
        self.model.parameters()[block.entries()[0].1].rows(self.tp.position())
    }

    fn layer(
        &self,
        block: &Block,
        input: &[f32],
        shape: TokenShape,
        source: &dyn ShardSource,
    ) -> Result<Vec<f32>, TrainerError> {
        let weights = Weights::new(block, source.shards(block)?, Graph::Untracked, &self.meter)?;
        let mut partial = match weights.find(block.pivot()) {
            Some(_) => flat(&self.partial(block, &self.tensor(input, shape)?, &weights)?)?,
            None => vec![0.0; input.len()],
        };
        self.tp.all_reduce(&mut partial)?;
        for (sum, value) in partial.iter_mut().zip(input) {
            *sum += value;
        }
        if let Some(role) = block.bias_after_sum() {
            let bias = flat(weights.get(role)?)?;
            for row in partial.chunks_exact_mut(bias.len()) {
                for (sum, value) in row.iter_mut().zip(&bias) {
                    *sum += value;
                }
            }
        }
        Ok(partial)
    }

    fn logits(
        &self,
        block: &Block,
        input: &[f32],
        shape: TokenShape,
        source: &dyn ShardSource,
    ) -> Result<Vec<f32>, TrainerError> {
        let weights = Weights::new(block, source.shards(block)?, Graph::Untracked, &self.meter)?;
        let own = flat(&self.partial(block, &self.tensor(input, shape)?, &weights)?)?;
        self.gather_columns(block, &own, shape.sequences * shape.tokens)
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

/// The elements of a tensor in row-major order.
pub(super) fn flat(tensor: &Tensor) -> Result<Vec<f32>, TrainerError> {
    Ok(tensor.flatten_all()?.to_vec1()?)
}

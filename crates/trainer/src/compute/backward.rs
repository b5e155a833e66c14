//! The backward pass of one block, with its collectives.
//!
//! ```text
//! g = gradient of h + sum(partial) + bias
//!   bias:      g summed over tokens                   the same on every rank: nothing to add up
//!   cut:       from the rebuilt graph                 each rank has its own part
//!   norms, h:  from the rebuilt graph, a part each    --all-reduce-->  whole; h also gets g itself
//! ```

use candle_core::backprop::GradStore;
use candle_core::{Tensor, Var};

use super::decoder::{Decoder, ShardSource, TokenShape, flat};
use super::weights::{Graph, Weights};
use crate::error::TrainerError;
use crate::model::{Block, BlockKind};

/// The gradient of this rank's shard of one parameter, for this rank's share of the batch.
#[derive(Debug)]
pub(crate) struct Gradient {
    /// The index in the model's parameters.
    pub(crate) parameter: usize,
    /// One number for each element of the shard.
    pub(crate) values: Vec<f32>,
}

/// What the backward pass of a block gives.
pub(crate) struct BlockGradients {
    /// Of the block's input: whole, the same on every rank of the group.
    pub(crate) input: Vec<f32>,
    /// Of every parameter of which this rank holds a part.
    pub(crate) parameters: Vec<Gradient>,
}

impl Decoder {
    /// Differentiates a block, given its input and the gradient of its output: hidden states, or for the
    /// head the whole logits.
    pub(crate) fn backward(
        &self,
        block: &Block,
        input: &[f32],
        upstream: &[f32],
        shape: TokenShape,
        source: &dyn ShardSource,
    ) -> Result<BlockGradients, TrainerError> {
        let weights = Weights::new(block, source.shards(block)?, Graph::Tracked, &self.meter)?;
        let own_upstream = match block.kind() {
            BlockKind::Head => Some(self.own_columns(block, upstream)),
            _ => None,
        };
        let local = own_upstream.as_deref().unwrap_or(upstream);
        let mut gradients = match weights.find(block.pivot()) {
            Some(_) => self.differentiate(block, input, local, shape, &weights)?,
            None => zeros(block, input.len(), &weights),
        };
        drop(weights);
        self.sum_partial(&mut gradients)?;
        if block.kind() != BlockKind::Head {
            for (sum, value) in gradients.input.iter_mut().zip(upstream) {
                *sum += value;
            }
        }
        if let Some(parameter) = block.bias_after_sum().and_then(|role| block.parameter(role)) {
            let values = column_sums(upstream, self.model.dimensions().hidden);
            gradients.parameters.push(Gradient { parameter, values });
        }
        Ok(gradients)
    }

    fn differentiate(
        &self,
        block: &Block,
        input: &[f32],
        upstream: &[f32],
        shape: TokenShape,
        weights: &Weights,
    ) -> Result<BlockGradients, TrainerError> {
        let input = Var::from_tensor(&self.tensor(input, shape)?)?;
        let partial = self.partial(block, input.as_tensor(), weights)?;
        let upstream = Tensor::from_slice(upstream, partial.shape(), partial.device())?;
        let store = (partial * upstream)?.sum_all()?.backward()?;
        let mut parameters = Vec::new();
        for (role, parameter, tensor) in weights.iter() {
            if Some(role) == block.bias_after_sum() {
                continue;
            }
            let values = self.gradient_of(&store, tensor, parameter)?;
            parameters.push(Gradient { parameter, values });
        }
        let lost = || TrainerError::MissingGradient { parameter: format!("input of {:?}", block.kind()) };
        Ok(BlockGradients { input: flat(store.get(input.as_tensor()).ok_or_else(lost)?)?, parameters })
    }

    fn gradient_of(
        &self,
        store: &GradStore,
        tensor: &Tensor,
        parameter: usize,
    ) -> Result<Vec<f32>, TrainerError> {
        let lost =
            || TrainerError::MissingGradient { parameter: self.model.parameters()[parameter].name.clone() };
        flat(store.get(tensor).ok_or_else(lost)?)
    }

    /// Adds up over the group what each rank has only a part of, in one call.
    fn sum_partial(&self, gradients: &mut BlockGradients) -> Result<(), TrainerError> {
        let whole = |gradient: &&mut Gradient| self.model.parameters()[gradient.parameter].cut.is_none();
        let mut together = gradients.input.clone();
        for gradient in gradients.parameters.iter_mut().filter(whole) {
            together.extend_from_slice(&gradient.values);
        }
        self.tp.all_reduce(&mut together)?;
        let (input, mut rest) = together.split_at(gradients.input.len());
        gradients.input.copy_from_slice(input);
        for gradient in gradients.parameters.iter_mut().filter(whole) {
            let (values, tail) = rest.split_at(gradient.values.len());
            gradient.values.copy_from_slice(values);
            rest = tail;
        }
        Ok(())
    }

    fn own_columns(&self, block: &Block, whole: &[f32]) -> Vec<f32> {
        let own = self.head_columns(block)[self.tp.position()].clone();
        let rows = whole.chunks_exact(self.model.dimensions().vocabulary);
        rows.map(|row| &row[own.clone()]).collect::<Vec<_>>().concat()
    }
}

/// The gradients of a block of which this rank computes nothing.
fn zeros(block: &Block, input: usize, weights: &Weights) -> BlockGradients {
    let computed = weights.iter().filter(|(role, ..)| Some(*role) != block.bias_after_sum());
    let parameters = computed
        .map(|(_, parameter, tensor)| Gradient { parameter, values: vec![0.0; tensor.elem_count()] })
        .collect();
    BlockGradients { input: vec![0.0; input], parameters }
}

fn column_sums(rows: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; width];
    for row in rows.chunks_exact(width) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += f64::from(*value);
        }
    }
    sums.into_iter().map(|sum| sum as f32).collect()
}

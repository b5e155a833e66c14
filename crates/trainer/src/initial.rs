//! Initial weights: a function of seed, parameter and logical element, so that every rank makes just its shard.
//!
//! ```text
//! matrices  even in +-0.7 / sqrt(in)   norms   even in 1 +- 0.25        biases  0.05 + even in +-0.04
//! ```
//!
//! Norms and biases start unequal and biases non-zero, so that an error in any of their elements shows.

use reshard_parallel::model::Role;

use crate::model::ShardedParameter;
use crate::random::Stream;

/// The initial values of one parameter.
pub(crate) struct Initial {
    stream: Stream,
    centre: f64,
    spread: f64,
}

impl Initial {
    /// Those that a seed gives a parameter.
    pub(crate) fn new(parameter: &ShardedParameter, seed: u64) -> Self {
        let inputs = parameter.shape.last().copied().unwrap_or(1) as f64;
        let (centre, spread) = match parameter.role {
            Role::Norm(_) => (1.0, 0.25),
            Role::Bias(_) => (0.05, 0.04),
            Role::Embedding | Role::Weight(_) | Role::Head => (0.0, 0.7 / inputs.sqrt()),
        };
        Self { stream: Stream::new(seed, &parameter.name), centre, spread }
    }

    /// The value at a flat index of the whole parameter.
    pub(crate) fn value(&self, index: usize) -> f32 {
        (self.centre + self.spread * self.stream.signed(index as u64)) as f32
    }
}

/// This rank's shard of a parameter before training, flattened.
pub(crate) fn initial_shard(parameter: &ShardedParameter, tp_rank: usize, seed: u64) -> Vec<f32> {
    let initial = Initial::new(parameter, seed);
    let elements = parameter.shard_shape(tp_rank).iter().product();
    (0..elements).map(|index| initial.value(parameter.logical_index(tp_rank, index))).collect()
}

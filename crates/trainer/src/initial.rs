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

/// This rank's shard of a parameter before training, flattened.
pub(crate) fn initial_shard(parameter: &ShardedParameter, tp_rank: usize, seed: u64) -> Vec<f32> {
    let stream = Stream::new(seed, &parameter.name);
    let inputs = parameter.shape.last().copied().unwrap_or(1) as f64;
    let (centre, spread) = match parameter.role {
        Role::Norm(_) => (1.0, 0.25),
        Role::Bias(_) => (0.05, 0.04),
        Role::Embedding | Role::Weight(_) | Role::Head => (0.0, 0.7 / inputs.sqrt()),
    };
    let elements = parameter.shard_shape(tp_rank).iter().product();
    let value = |index| {
        let logical = parameter.logical_index(tp_rank, index);
        (centre + spread * stream.signed(logical as u64)) as f32
    };
    (0..elements).map(value).collect()
}

//! What one rank computes alone: the parts of a decoder layer between two all-reduces, as plain candle graphs.
//!
//! ```text
//! attention:  x -> norm -> q k v (own heads) -> q/k norm -> rope -> softmax(q k') v -> own columns of o_proj -> partial
//! mlp:        x -> norm -> silu(gate) * up (own rows)                               -> own columns of down  -> partial
//! head:       x -> norm -> own rows of lm_head                                      -> own columns of the logits
//! ```
//!
//! Every operation here has a backward pass. candle's fused ones (`rms_norm`, `softmax_last_dim`, `rope`) have
//! none and drop gradients without an error, so their slow forms are used.

use candle_core::{D, Device, Tensor};
use candle_nn::ops::{rms_norm_slow, softmax};
use candle_nn::rotary_emb::rope_slow;
use reshard_parallel::model::{Norm, Projection, Role};

use crate::compute::weights::Weights;
use crate::error::TrainerError;
use crate::model::Dimensions;

/// The attention's part of this rank, before the sum over the tensor-parallel group and without `o_proj.bias`.
/// `input` and the result have shape (sequences, tokens, hidden).
pub(crate) fn attention(
    input: &Tensor,
    weights: &Weights,
    dimensions: &Dimensions,
) -> Result<Tensor, TrainerError> {
    let (sequences, tokens, hidden) = input.dims3()?;
    let head_dim = dimensions.head_dim;
    let normed = rms_norm_slow(input, weights.get(Role::Norm(Norm::Input))?, dimensions.epsilon)?;
    let normed = normed.reshape((sequences * tokens, hidden))?;
    let heads = |projection: Projection| -> Result<Tensor, TrainerError> {
        let flat = linear(&normed, weights, projection)?;
        let count = flat.dim(1)? / head_dim;
        Ok(flat.reshape((sequences, tokens, count, head_dim))?.transpose(1, 2)?.contiguous()?)
    };
    let (cos, sin) = rotations(tokens, head_dim, dimensions.rope_theta)?;
    let turned = |projection: Projection, norm: Norm| -> Result<Tensor, TrainerError> {
        let plain = heads(projection)?;
        let normed = match weights.find(Role::Norm(norm)) {
            Some(norm) => rms_norm_slow(&plain, norm, dimensions.epsilon)?,
            None => plain,
        };
        Ok(rope_slow(&normed, &cos, &sin)?)
    };
    let query = turned(Projection::Query, Norm::Query)?;
    let group = query.dim(1)? / (weights.get(Role::Weight(Projection::Key))?.dim(0)? / head_dim);
    let key = repeat_heads(&turned(Projection::Key, Norm::Key)?, group)?;
    let value = repeat_heads(&heads(Projection::Value)?, group)?;

    let scores = (query.matmul(&key.transpose(2, 3)?.contiguous()?)? / (head_dim as f64).sqrt())?;
    let scores = softmax(&scores.broadcast_add(&causal_mask(tokens)?)?, D::Minus1)?;
    let mixed = scores.matmul(&value)?.transpose(1, 2)?.contiguous()?;
    let mixed = mixed.reshape((sequences * tokens, ()))?;
    let output = mixed.matmul(&weights.get(Role::Weight(Projection::Output))?.t()?)?;
    Ok(output.reshape((sequences, tokens, hidden))?)
}

/// The MLP's part of this rank, before the sum over the tensor-parallel group and without `down_proj.bias`.
pub(crate) fn mlp(
    input: &Tensor,
    weights: &Weights,
    dimensions: &Dimensions,
) -> Result<Tensor, TrainerError> {
    let (sequences, tokens, hidden) = input.dims3()?;
    let norm = weights.get(Role::Norm(Norm::PostAttention))?;
    let normed = rms_norm_slow(input, norm, dimensions.epsilon)?.reshape((sequences * tokens, hidden))?;
    let gate = linear(&normed, weights, Projection::Gate)?.silu()?;
    let up = linear(&normed, weights, Projection::Up)?;
    let output = (gate * up)?.matmul(&weights.get(Role::Weight(Projection::Down))?.t()?)?;
    Ok(output.reshape((sequences, tokens, hidden))?)
}

/// This rank's columns of the logits, shape (sequences x tokens, own vocabulary rows).
pub(crate) fn head(
    input: &Tensor,
    weights: &Weights,
    dimensions: &Dimensions,
) -> Result<Tensor, TrainerError> {
    let (sequences, tokens, hidden) = input.dims3()?;
    let norm = weights.get(Role::Norm(Norm::Final))?;
    let normed = rms_norm_slow(input, norm, dimensions.epsilon)?.reshape((sequences * tokens, hidden))?;
    Ok(normed.matmul(&weights.get(Role::Head)?.t()?)?)
}

fn linear(input: &Tensor, weights: &Weights, projection: Projection) -> Result<Tensor, TrainerError> {
    let output = input.matmul(&weights.get(Role::Weight(projection))?.t()?)?;
    match weights.find(Role::Bias(projection)) {
        Some(bias) => Ok(output.broadcast_add(bias)?),
        None => Ok(output),
    }
}

/// Shape (sequences, key heads, tokens, width) to (sequences, key heads x group, tokens, width).
fn repeat_heads(heads: &Tensor, group: usize) -> Result<Tensor, TrainerError> {
    let (sequences, count, tokens, width) = heads.dims4()?;
    let repeated = heads.unsqueeze(2)?.broadcast_as((sequences, count, group, tokens, width))?;
    Ok(repeated.contiguous()?.reshape((sequences, count * group, tokens, width))?)
}

fn rotations(tokens: usize, head_dim: usize, theta: f64) -> Result<(Tensor, Tensor), TrainerError> {
    let half = head_dim / 2;
    let angles: Vec<f64> = (0..tokens)
        .flat_map(|position| {
            (0..half).map(move |pair| position as f64 / theta.powf(2.0 * pair as f64 / head_dim as f64))
        })
        .collect();
    let table = |turn: fn(f64) -> f64| {
        let values: Vec<f32> = angles.iter().map(|&angle| turn(angle) as f32).collect();
        Tensor::from_vec(values, (tokens, half), &Device::Cpu)
    };
    Ok((table(f64::cos)?, table(f64::sin)?))
}

fn causal_mask(tokens: usize) -> Result<Tensor, TrainerError> {
    let hidden = |row: usize, column: usize| if column > row { f32::NEG_INFINITY } else { 0.0 };
    let mask: Vec<f32> =
        (0..tokens).flat_map(|row| (0..tokens).map(move |column| hidden(row, column))).collect();
    Ok(Tensor::from_vec(mask, (tokens, tokens), &Device::Cpu)?)
}

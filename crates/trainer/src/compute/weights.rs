//! The weights that one block computes with, as candle tensors that live only as long as the block is computed.
//!
//! ```text
//! flat buffer (bf16) --widen--> Vec<f32> --> Weights { q_proj.weight: [32, 64], .. } --drop--> meter - bytes
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{Device, Tensor, Var};
use reshard_layout::Bytes;
use reshard_parallel::model::Role;

use crate::error::TrainerError;
use crate::model::Block;

/// Counts the bytes of working weights that are alive, and the most that ever were at once: a block's weights in
/// f32, and while ZeRO-3 gathers them what the collective needs besides.
#[derive(Debug, Default)]
pub struct Meter {
    alive: AtomicU64,
    peak: AtomicU64,
}

impl Meter {
    /// The bytes alive now.
    #[must_use]
    pub fn alive(&self) -> Bytes {
        Bytes(self.alive.load(Ordering::Relaxed))
    }

    /// The most bytes that were alive at once.
    #[must_use]
    pub fn peak(&self) -> Bytes {
        Bytes(self.peak.load(Ordering::Relaxed))
    }

    /// Counts bytes for as long as the result lives.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        let bytes = bytes as u64;
        let alive = self.alive.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(alive, Ordering::Relaxed);
        Held { meter: Arc::clone(self), bytes }
    }
}

/// Bytes that a [`Meter`] counts as alive.
pub(crate) struct Held {
    meter: Arc<Meter>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.meter.alive.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Whether candle records what is computed with the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Graph {
    /// No graph: values only.
    Untracked,
    /// Weights are variables, so that a backward pass gives their gradients.
    Tracked,
}

/// One parameter's shard, whole and widened to f32.
#[derive(Debug)]
pub(crate) struct Shard {
    /// The index in [`Model::parameters`](crate::model::Model::parameters).
    pub(crate) parameter: usize,
    /// Row-major shape of the shard.
    pub(crate) shape: Vec<usize>,
    /// Its elements.
    pub(crate) values: Vec<f32>,
}

struct Entry {
    role: Role,
    parameter: usize,
    tensor: Tensor,
}

/// The non-empty weights of one block. Dropping it frees them; the meter sees that.
pub(crate) struct Weights {
    entries: Vec<Entry>,
    _held: Held,
}

impl Weights {
    /// Makes tensors of a block's shards, which come in the order of the block's entries. Empty shards are
    /// left out: candle computes nothing with them.
    pub(crate) fn new(
        block: &Block,
        shards: Vec<Shard>,
        graph: Graph,
        meter: &Arc<Meter>,
    ) -> Result<Self, TrainerError> {
        let bytes = shards.iter().map(|shard| size_of_val(shard.values.as_slice())).sum();
        let mut weights = Self { entries: Vec::new(), _held: meter.hold(bytes) };
        for (&(role, parameter), shard) in block.entries().iter().zip(shards) {
            debug_assert_eq!(parameter, shard.parameter, "shards come in the block's order");
            if shard.values.is_empty() {
                continue;
            }
            let tensor = match graph {
                Graph::Untracked => Tensor::from_vec(shard.values, shard.shape, &Device::Cpu)?,
                Graph::Tracked => Var::from_vec(shard.values, shard.shape, &Device::Cpu)?.as_tensor().clone(),
            };
            weights.entries.push(Entry { role, parameter, tensor });
        }
        Ok(weights)
    }

    /// The weight in this role, if the model has it and this rank holds a part of it.
    pub(crate) fn find(&self, role: Role) -> Option<&Tensor> {
        self.entries.iter().find(|entry| entry.role == role).map(|entry| &entry.tensor)
    }

    /// The weight in this role.
    pub(crate) fn get(&self, role: Role) -> Result<&Tensor, TrainerError> {
        self.find(role).ok_or_else(|| TrainerError::MissingWeight { weight: format!("{role:?}") })
    }

    /// Every weight with its role and its parameter's index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Role, usize, &Tensor)> {
        self.entries.iter().map(|entry| (entry.role, entry.parameter, &entry.tensor))
    }
}

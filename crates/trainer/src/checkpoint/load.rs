//! Loading: a part of a checkpoint, a layout, and the copies between them that end in this rank's storages.
//!
//! ```text
//!   checkpoint, TP 2 x DP 2, stage 3                      this rank, TP 1 x DP 3, stage 1
//!   fp32, exp_avg, exp_avg_sq ──plan, of this rank the copies──► fp32.0 exp_avg.0 exp_avg_sq.0
//!   fp32 ─────────────────────plan, rounded────────────────────► weights.0
//! ```
//!
//! Every rank reads just the bytes that it stores.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use reshard_formats::{Checkpoint, Kept};
use reshard_layout::{Bytes, Layout, Rank, StorageId};
use reshard_parallel::engine::State;
use reshard_plan::{Options, Policy};
use reshard_transport::{Assembly, ReadAt};

use super::Cost;
use super::memory::kept;
use crate::error::TrainerError;
use crate::rollout::RolloutEngine;
use crate::storage::Storage;
use crate::trainer::Trainer;
use crate::zero::Stored;

/// Working memory of a load beside the storages that it fills.
const SCRATCH_BYTES: usize = 1 << 20;

impl Trainer {
    /// Goes on where a checkpoint stands: masters and moments as they are there, weights rounded from the masters,
    /// and the counts of steps and updates. The checkpoint may be ZeRO or Universal and of any topology; the seed,
    /// the text and the optimizer stay this trainer's.
    ///
    /// # Errors
    /// [`TrainerError::CheckpointIncomplete`], where it lacks a state or the count; where it is of another model, or
    /// cannot be read. The trainer then holds numbers and NaN, and cannot go on.
    pub fn load(&mut self, checkpoint: &Checkpoint) -> Result<Cost, TrainerError> {
        let steps =
            checkpoint.facts.step.ok_or_else(|| incomplete(&checkpoint.root, "the count of steps"))?;
        let engine = self.engine_mut();
        let (rank, deepspeed) = (engine.rank(), engine.deepspeed().clone());
        let mut cost = Cost::default();
        engine.poison();
        let states = State::ALL.map(Stored::State);
        for stored in [Stored::Weights].into_iter().chain(states) {
            let (from, target) = match stored {
                Stored::Weights => (Kept::Master, deepspeed.layout()?),
                Stored::State(state) => (kept(stored), deepspeed.optimizer_layout(state)?),
            };
            let storages = engine.storages_mut(stored);
            cost.add(fill(checkpoint, &from, &target, rank, storages)?);
        }
        self.set_steps(steps);
        Ok(cost)
    }
}

impl RolloutEngine {
    /// Fills the weights from a checkpoint's masters, rounded to the weights' type. `layout` is that of all rollout
    /// ranks. The state is the caller's to keep: torn before this, committed when every rank has its weights.
    ///
    /// # Errors
    /// [`TrainerError::CheckpointIncomplete`]; where it is of another model, or cannot be read.
    pub fn load(&mut self, checkpoint: &Checkpoint, layout: &Layout) -> Result<Cost, TrainerError> {
        let (description, storages, _) = self.target();
        fill(checkpoint, &Kept::Master, layout, description.rank, storages)
    }
}

/// Fills the storages that `rank` has in `target` from what a checkpoint keeps, rounded where their type is
/// narrower.
fn fill(
    checkpoint: &Checkpoint,
    kept: &Kept,
    target: &Layout,
    rank: Rank,
    storages: &mut [Storage],
) -> Result<Cost, TrainerError> {
    let part = checkpoint.parts.get(kept).ok_or_else(|| incomplete(&checkpoint.root, kept.name()))?;
    let plan = Options::new(Policy::Lowest).cast(true).plan(&part.layout, target)?;
    let assembly = Assembly::new(&plan)?;
    let reader = Counted { inner: checkpoint.reader(part), bytes: AtomicU64::new(0) };
    let mut scratch = vec![0; SCRATCH_BYTES];
    for (id, known) in plan.target.of_rank(rank) {
        let own = storages.iter_mut().find(|storage| storage.spec().name == known.name);
        if let Some(storage) = own {
            let memory = storage.memory_mut().as_mut_slice();
            assembly.fill(id, 0..known.length.0, &reader, memory, &mut scratch)?;
        }
    }
    let bytes_read = Bytes(reader.bytes.into_inner());
    Ok(Cost { bytes_read, staging_max: Bytes(scratch.len() as u64), ..Cost::default() })
}

fn incomplete(path: &Path, missing: &str) -> TrainerError {
    TrainerError::CheckpointIncomplete { path: path.to_owned(), missing: missing.to_owned() }
}

/// Counts the bytes that are read.
struct Counted<R> {
    inner: R,
    bytes: AtomicU64,
}

impl<R: ReadAt> ReadAt for Counted<R> {
    fn read_at(&self, storage: StorageId, offset: Bytes, into: &mut [u8]) -> std::io::Result<()> {
        self.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.inner.read_at(storage, offset, into)
    }
}

//! Loading: a part of a checkpoint, a layout, and the copies between them that end in this rank's storages.
//!
//! ```text
//!   checkpoint, TP 2 x DP 2, stage 3                      this rank, TP 1 x DP 3, stage 1
//!   fp32, exp_avg, exp_avg_sq ──plan, of this rank the copies──► fp32.0 exp_avg.0 exp_avg_sq.0
//!   fp32 ─────────────────────plan, rounded────────────────────► weights.0
//! ```
//!
//! Every rank reads just the bytes that it stores.

use std::sync::atomic::{AtomicU64, Ordering};

use reshard_formats::{Checkpoint, Kept, Part};
use reshard_layout::{Bytes, Layout, Rank, StorageId};
use reshard_parallel::engine::{DeepSpeed, State};
use reshard_plan::{Options, Plan, Policy};
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

/// What a trainer keeps, from what it is loaded, and where it lies on every rank. Weights are the masters, rounded.
fn wanted(deepspeed: &DeepSpeed) -> Result<Vec<(Stored, Kept, Layout)>, TrainerError> {
    let mut wanted = vec![(Stored::Weights, Kept::Master, deepspeed.layout()?)];
    for state in State::ALL {
        let stored = Stored::State(state);
        wanted.push((stored, kept(stored), deepspeed.optimizer_layout(state)?));
    }
    Ok(wanted)
}

/// Whether a trainer could go on from a checkpoint, found without reading a tensor.
///
/// # Errors
/// As [`Trainer::load`], but for files that cannot be read.
pub(crate) fn check(checkpoint: &Checkpoint, deepspeed: &DeepSpeed) -> Result<(), TrainerError> {
    steps(checkpoint)?;
    for (_, from, target) in wanted(deepspeed)? {
        plan(part(checkpoint, &from)?, &target)?;
    }
    Ok(())
}

impl Trainer {
    /// Goes on where a checkpoint stands: masters and moments as they are there, weights rounded from the masters,
    /// and the counts of steps and updates. The checkpoint may be ZeRO or Universal and of any topology; the seed,
    /// the text and the optimizer stay this trainer's.
    ///
    /// # Errors
    /// [`TrainerError::CheckpointIncomplete`], where it lacks a state or the count; where it is of another model, or
    /// cannot be read. The trainer then holds numbers and NaN, and cannot go on.
    pub fn load(&mut self, checkpoint: &Checkpoint) -> Result<Cost, TrainerError> {
        let steps = steps(checkpoint)?;
        let engine = self.engine_mut();
        let rank = engine.rank();
        let mut cost = Cost::default();
        let wanted = wanted(engine.deepspeed())?;
        engine.poison();
        for (stored, from, target) in wanted {
            cost.add(fill(checkpoint, &from, &target, rank, engine.storages_mut(stored))?);
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
    let part = part(checkpoint, kept)?;
    let plan = plan(part, target)?;
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

fn plan(part: &Part, target: &Layout) -> Result<Plan, TrainerError> {
    Ok(Options::new(Policy::Lowest).cast(true).plan(&part.layout, target)?)
}

fn part<'a>(checkpoint: &'a Checkpoint, kept: &Kept) -> Result<&'a Part, TrainerError> {
    checkpoint.parts.get(kept).ok_or_else(|| incomplete(checkpoint, kept.name()))
}

fn steps(checkpoint: &Checkpoint) -> Result<u64, TrainerError> {
    checkpoint.facts.step.ok_or_else(|| incomplete(checkpoint, "the count of steps"))
}

fn incomplete(checkpoint: &Checkpoint, missing: &str) -> TrainerError {
    TrainerError::CheckpointIncomplete { path: checkpoint.root.clone(), missing: missing.to_owned() }
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

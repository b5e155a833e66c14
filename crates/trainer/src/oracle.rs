//! What rollout engines must hold, found by walking every element: nothing here plans, gathers shards or slices.
//!
//! ```text
//! before any step  initial values, each from (seed, name, flat index)  ----------.
//! after one        fp32 masters of all ranks -> shards -> the element after the   +-> whole -> the elements on a
//!                  last one that was taken from the shard that holds it ---------'            rank's side, rounded
//! ```
//!
//! The ways move the stored weights; this reads the optimizer's masters, of which weights are the rounded copies.
//! What it shares with the ways is the description of where a rank keeps its masters, and where shards are cut.

use std::sync::Arc;

use half::bf16;
use reshard_layout::DType;
use reshard_parallel::engine::{DeepSpeed, State};
use reshard_parallel::topology::Slot;
use reshard_parallel::{RankStorage, Run};
use reshard_transport::Communicator;

use crate::error::TrainerError;
use crate::initial::Initial;
use crate::model::{Model, ShardedParameter};
use crate::rollout::RolloutEngine;
use crate::storage::{shard_range, stored_range};
use crate::verification::Expectation;
use crate::zero::{Stored, ZeroEngine};

/// Knows what every element of every parameter is, on trainers that number their ranks from 0 in order.
pub struct Oracle {
    /// Cut as the trainer's.
    model: Arc<Model>,
    /// Where the masters lie, by rank.
    masters: Vec<RankStorage>,
    seed: u64,
}

impl Oracle {
    /// An oracle for a trainer whose initial weights come from `seed` on every rank.
    #[must_use]
    pub fn new(model: Arc<Model>, deepspeed: &DeepSpeed, seed: u64) -> Self {
        let slots = (0..deepspeed.topology().world()).map(Slot);
        Self { model, masters: slots.map(|slot| deepspeed.optimizer(slot, State::Fp32)).collect(), seed }
    }

    /// What this rank's rollout engine, if it has one, must hold before the first step.
    #[must_use]
    pub fn initial(&self, rollout: Option<&RolloutEngine>) -> Expectation {
        let mut shards = Vec::new();
        if let Some(rollout) = rollout {
            for parameter in rollout.model().parameters() {
                let initial = Initial::new(parameter, self.seed);
                let whole: Vec<f32> = (0..parameter.elements()).map(|index| initial.value(index)).collect();
                shards.push(self.part(parameter, rollout.tp_rank(), &whole));
            }
        }
        Expectation::new(self.model.config().dtype(), shards)
    }

    /// What this rank's rollout engine, if it has one, must hold by the trainer's masters of now. A collective call
    /// of all ranks: those of the trainer come first in the group.
    ///
    /// # Errors
    /// If a peer fails.
    pub fn trained(
        &self,
        trainer: Option<&ZeroEngine>,
        rollout: Option<&RolloutEngine>,
        everyone: &dyn Communicator,
    ) -> Result<Expectation, TrainerError> {
        let mut shards = Vec::new();
        for index in 0..self.model.parameters().len() {
            let kept = |rank: &RankStorage| runs(rank, index).map(|run| run.length.0 as usize).sum();
            let longest: usize = self.masters.iter().map(kept).max().unwrap_or(0);
            let mut mine = Vec::with_capacity(longest);
            if let Some(trainer) = trainer {
                let storages = trainer.storages(Stored::State(State::Fp32));
                for run in runs(trainer.description(Stored::State(State::Fp32)), index) {
                    mine.extend(storages[run.storage].widened(stored_range(run)));
                }
            }
            mine.resize(longest, 0.0);
            let mut all = vec![0.0f32; longest * everyone.ranks().len()];
            everyone.all_gather(bytemuck::cast_slice(&mine), bytemuck::cast_slice_mut(&mut all))?;
            if let Some(rollout) = rollout {
                let whole = self.whole(index, all.chunks_exact(longest));
                let parameter = &rollout.model().parameters()[index];
                shards.push(self.part(parameter, rollout.tp_rank(), &whole));
            }
        }
        Ok(Expectation::new(self.model.config().dtype(), shards))
    }

    /// A whole parameter, from what each rank keeps of its master. What nobody keeps is NaN.
    fn whole<'a>(&self, index: usize, kept: impl Iterator<Item = &'a [f32]>) -> Vec<f32> {
        let parameter = &self.model.parameters()[index];
        // A parameter that is not cut is one shard, of which zero.Init gives every rank of the world a part.
        let shards = if parameter.cut.is_some() { self.model.tp().get() as usize } else { 1 };
        let elements = |tp_rank| parameter.shard_shape(tp_rank).iter().product();
        let mut shards: Vec<Vec<f32>> = (0..shards).map(|shard| vec![f32::NAN; elements(shard)]).collect();
        for (rank, mut kept) in self.masters.iter().zip(kept) {
            for run in runs(rank, index) {
                let (values, rest) = kept.split_at(run.length.0 as usize);
                let shard = if parameter.cut.is_some() { rank.tp_rank as usize } else { 0 };
                shards[shard][shard_range(run)].copy_from_slice(values);
                kept = rest;
            }
        }
        let mut rest: Vec<_> = shards.into_iter().map(Vec::into_iter).collect();
        let mut value = |element| {
            rest.iter_mut().enumerate().find(|(shard, _)| holds(parameter, *shard, element))?.1.next()
        };
        (0..parameter.elements()).map(|element| value(element).unwrap_or(f32::NAN)).collect()
    }

    /// The bytes of those elements of a parameter that a tensor-parallel rank holds, in the weights' type.
    fn part(&self, parameter: &ShardedParameter, tp_rank: usize, whole: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (element, &value) in whole.iter().enumerate() {
            if !holds(parameter, tp_rank, element) {
                continue;
            }
            match self.model.config().dtype() {
                DType::Bf16 => bytes.extend(bf16::from_f32(value).to_ne_bytes()),
                _ => bytes.extend(value.to_ne_bytes()),
            }
        }
        bytes
    }
}

fn runs(rank: &RankStorage, parameter: usize) -> impl Iterator<Item = &Run> {
    rank.runs.iter().filter(move |run| run.parameter == parameter)
}

/// Whether an element's coordinate along the cut axis is among a rank's.
fn holds(parameter: &ShardedParameter, tp_rank: usize, element: usize) -> bool {
    let Some(cut) = &parameter.cut else { return true };
    let along: usize = parameter.shape[cut.axis + 1..].iter().product();
    cut.ranges[tp_rank].contains(&(element / along % parameter.shape[cut.axis]))
}

//! The gather way: whole parameters, one at a time, by plain collectives, sliced by loops: the baseline.
//!
//! ```text
//! slices of ZeRO --all-gather--> shard of one tensor-parallel rank --all-gather--> whole parameter
//!                                                  rollout rank r copies its rows or columns <----'
//! ```
//!
//! It knows nothing of layouts, boxes or plans. What it gathers is what the trainer's own forward pass gathers.
//! Whether it is right is for the [oracle](crate::Oracle) to say, with which it shares no loop.

use std::sync::Arc;

use reshard_layout::Bytes;
use reshard_transport::Communicator;

use crate::error::TrainerError;
use crate::model::ShardedParameter;
use crate::rollout::RolloutEngine;
use crate::storage::shard_range;
use crate::trainer::Groups;
use crate::zero::{Stored, ZeroEngine};

/// What gathering has cost this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatherCost {
    /// Bytes that came from other ranks, padding of the collectives included.
    pub received: Bytes,
    /// The most bytes of buffers alive at once.
    pub staging_max: Bytes,
    /// Collectives that it took part in.
    pub collectives: u64,
}

impl GatherCost {
    fn collective(&mut self, own: usize, all: usize, alive: usize) {
        self.collectives += u64::from(all > own);
        self.received += Bytes((all - own) as u64);
        self.staging_max = self.staging_max.max(Bytes((all + alive) as u64));
    }
}

/// The bytes of a whole parameter, on every rank of the trainer. A collective call of all of them.
///
/// # Errors
/// If a peer fails.
pub fn whole_parameter(
    engine: &ZeroEngine,
    groups: &Groups,
    stored: Stored,
    parameter: usize,
    cost: &mut GatherCost,
) -> Result<Vec<u8>, TrainerError> {
    let own: usize = {
        let runs = engine.description(stored).runs.iter().filter(|run| run.parameter == parameter);
        runs.map(|run| run.length.0 as usize).sum()
    };
    let shard = engine.gather_shard(stored, parameter)?;
    let described = &engine.model().parameters()[parameter];
    let elements: usize = described.shard_shape(groups.tp.position()).iter().product();
    cost.collective(own * shard.len() / elements.max(1), shard.len(), 0);
    let size = engine.description(stored).storages.first().map_or(4, |spec| spec.dtype.size() as usize);
    join_shards(described, groups.tp.as_ref(), &shard, size, cost)
}

/// Lays the shards of a tensor-parallel group together, element rows of `size` bytes each.
fn join_shards(
    parameter: &ShardedParameter,
    tp: &dyn Communicator,
    shard: &[u8],
    size: usize,
    cost: &mut GatherCost,
) -> Result<Vec<u8>, TrainerError> {
    let Some(cut) = &parameter.cut else { return Ok(shard.to_vec()) };
    let outer: usize = parameter.shape[..cut.axis].iter().product();
    let inner: usize = parameter.shape[cut.axis + 1..].iter().product();
    let longest = cut.ranges.iter().map(ExactSizeIterator::len).max().unwrap_or(0) * outer * inner * size;
    let mut mine = shard.to_vec();
    mine.resize(longest, 0);
    let mut all = vec![0; longest * cut.ranges.len()];
    tp.all_gather(&mine, &mut all)?;
    cost.collective(longest, all.len(), shard.len() + parameter.elements() * size);
    let mut whole = Vec::with_capacity(parameter.elements() * size);
    for row in 0..outer {
        for (range, part) in cut.ranges.iter().zip(all.chunks_exact(longest)) {
            let width = range.len() * inner * size;
            whole.extend_from_slice(&part[row * width..][..width]);
        }
    }
    Ok(whole)
}

/// How whole parameters reach the rollout ranks.
#[derive(Clone)]
pub enum Delivery {
    /// Rollout ranks are trainer ranks: each gathers, then slices.
    InPlace,
    /// Rollout ranks are other processes: the first member of this group, a trainer rank, sends them each
    /// parameter. Trainer ranks that are not in the group have `None`.
    Broadcast(Option<Arc<dyn Communicator>>),
}

/// What a rank is in a gather: trainer, rollout, or both.
pub struct Parties<'a> {
    /// Its training engine and groups.
    pub trainer: Option<(&'a ZeroEngine, &'a Groups)>,
    /// Its rollout engine.
    pub rollout: Option<&'a mut RolloutEngine>,
    /// The way between the two.
    pub delivery: Delivery,
}

impl Parties<'_> {
    /// Fills the rollout engines by the gather way. A collective call of all ranks.
    ///
    /// # Errors
    /// If a peer fails.
    pub fn sync(&mut self) -> Result<GatherCost, TrainerError> {
        let mut cost = GatherCost::default();
        let model = match (&self.trainer, &self.rollout) {
            (Some((engine, _)), _) => Arc::clone(engine.model()),
            (None, Some(rollout)) => Arc::clone(rollout.model()),
            (None, None) => return Ok(cost),
        };
        let size = model.config().dtype().size() as usize;
        for (index, parameter) in model.parameters().iter().enumerate() {
            let mut whole = match self.trainer {
                Some((engine, groups)) => whole_parameter(engine, groups, Stored::Weights, index, &mut cost)?,
                None => vec![0; parameter.elements() * size],
            };
            if let Delivery::Broadcast(Some(group)) = &self.delivery {
                group.broadcast(&mut whole, 0)?;
                if self.trainer.is_none() {
                    cost.collective(0, whole.len(), 0);
                }
            }
            if let Some(rollout) = &mut self.rollout {
                rollout.slice_in(index, &whole);
            }
        }
        Ok(cost)
    }

    /// Bytes of this rank's rollout engine whose elements its own trainer stores: what it slices from what it had
    /// before anything was gathered. The rest of the engine came from other ranks.
    #[must_use]
    pub fn held_bytes(&self) -> Bytes {
        let (Some((engine, _)), Some(rollout)) = (&self.trainer, &self.rollout) else { return Bytes(0) };
        let description = engine.description(Stored::Weights);
        let tp_rank = description.tp_rank as usize;
        let mut held = 0;
        let parameters = engine.model().parameters().iter().zip(rollout.model().parameters());
        for (index, (stored, wanted)) in parameters.enumerate() {
            let mut is_stored = vec![false; stored.elements()];
            for run in description.runs.iter().filter(|run| run.parameter == index) {
                shard_range(run).for_each(|at| is_stored[stored.logical_index(tp_rank, at)] = true);
            }
            let elements: usize = wanted.shard_shape(rollout.tp_rank()).iter().product();
            held +=
                (0..elements).filter(|at| is_stored[wanted.logical_index(rollout.tp_rank(), *at)]).count();
        }
        Bytes(held as u64 * engine.model().config().dtype().size())
    }
}

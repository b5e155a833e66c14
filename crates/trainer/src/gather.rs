//! The gather way: whole parameters, one at a time, by plain collectives, sliced by loops. Baseline and oracle.
//!
//! ```text
//! slices of ZeRO --all-gather--> shard of one tensor-parallel rank --all-gather--> whole parameter
//!                                                  rollout rank r copies its rows or columns <----'
//! ```
//!
//! It knows nothing of layouts, boxes or plans. What it gathers is what the trainer's own forward pass gathers.

use std::fmt;
use std::sync::Arc;

use reshard_layout::{Bytes, Rank};
use reshard_parallel::RankStorage;
use reshard_transport::Communicator;

use crate::error::TrainerError;
use crate::model::{Model, ShardedParameter};
use crate::rollout::{RolloutEngine, shard_bytes, slice};
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
    /// Calls `each` with every parameter's whole bytes (in the weights' type), on ranks that get them. A
    /// collective call of all ranks.
    fn for_each_parameter(
        &mut self,
        cost: &mut GatherCost,
        mut each: impl FnMut(Option<&mut RolloutEngine>, usize, &[u8]),
    ) -> Result<(), TrainerError> {
        let model = match (&self.trainer, &self.rollout) {
            (Some((engine, _)), _) => Arc::clone(engine.model()),
            (None, Some(rollout)) => Arc::clone(rollout.model()),
            (None, None) => return Ok(()),
        };
        let size = model.config().dtype().size() as usize;
        for (index, parameter) in model.parameters().iter().enumerate() {
            let mut whole = match self.trainer {
                Some((engine, groups)) => whole_parameter(engine, groups, Stored::Weights, index, cost)?,
                None => vec![0; parameter.elements() * size],
            };
            if let Delivery::Broadcast(Some(group)) = &self.delivery {
                group.broadcast(&mut whole, 0)?;
                if self.trainer.is_none() {
                    cost.collective(0, whole.len(), 0);
                }
            }
            each(self.rollout.as_deref_mut(), index, &whole);
        }
        Ok(())
    }

    /// Fills the rollout engines by the gather way.
    ///
    /// # Errors
    /// If a peer fails.
    pub fn sync(&mut self) -> Result<GatherCost, TrainerError> {
        let mut cost = GatherCost::default();
        self.for_each_parameter(&mut cost, |rollout, index, whole| {
            if let Some(rollout) = rollout {
                rollout.slice_in(index, whole);
            }
        })?;
        Ok(cost)
    }

    /// What the rollout engine of this rank must hold after a sync: its part of what the trainer holds now. A
    /// collective call of all ranks.
    ///
    /// # Errors
    /// If a peer fails.
    pub fn expected(&mut self) -> Result<Expectation, TrainerError> {
        let mut expectation = Expectation::default();
        self.for_each_parameter(&mut GatherCost::default(), |rollout, index, whole| {
            if let Some(rollout) = rollout {
                let parameter = &rollout.model().parameters()[index];
                expectation.size = whole.len() / parameter.elements();
                expectation.shards.push(slice(parameter, rollout.tp_rank(), whole));
            }
        })?;
        Ok(expectation)
    }
}

/// The bytes that a rollout engine must hold, by parameter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expectation {
    shards: Vec<Vec<u8>>,
    size: usize,
}

impl Expectation {
    /// Compares, bit for bit, the memory that a rollout engine generates from: `memory` gives the bytes of one of
    /// its storages.
    #[must_use]
    pub fn compare<'a>(
        &self,
        model: &Model,
        description: &RankStorage,
        memory: impl Fn(usize) -> &'a [u8],
    ) -> Verification {
        let mut verification = Verification::default();
        for (index, expected) in self.shards.iter().enumerate() {
            let parameter = &model.parameters()[index];
            let found = shard_bytes(description, index, &memory);
            let elements = expected.len() / self.size;
            let stored = |at: usize| found.get(at * self.size..(at + 1) * self.size);
            let right = expected.chunks_exact(self.size).enumerate();
            let wrong: Vec<usize> =
                right.filter(|(at, right)| stored(*at) != Some(*right)).map(|(at, _)| at).collect();
            verification.elements += elements as u64;
            verification.mismatches += wrong.len() as u64;
            if let Some(first) = wrong.first() {
                let logical = parameter.logical_index(description.tp_rank as usize, *first);
                verification.differing.push(Mismatch {
                    parameter: parameter.name.clone(),
                    rank: description.rank,
                    elements: wrong.len() as u64,
                    first: coordinate(logical, &parameter.shape),
                });
            }
        }
        verification
    }
}

/// Elements of one parameter that differ on one rank.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mismatch {
    /// The parameter.
    pub parameter: String,
    /// The rollout rank that holds the wrong elements.
    pub rank: Rank,
    /// How many differ.
    pub elements: u64,
    /// The first of them, as a coordinate of the whole parameter.
    pub first: Vec<u64>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parameter, rank, elements, first } = self;
        write!(f, "{parameter}: {elements} elements differ on rollout rank {rank}, the first at {first:?}")
    }
}

/// The outcome of a bitwise comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Verification {
    /// Elements that were compared.
    pub elements: u64,
    /// Elements that differ.
    pub mismatches: u64,
    /// Where, by parameter and rank.
    pub differing: Vec<Mismatch>,
}

impl Verification {
    /// Adds another rank's outcome.
    pub fn merge(&mut self, other: Self) {
        self.elements += other.elements;
        self.mismatches += other.mismatches;
        self.differing.extend(other.differing);
    }
}

fn coordinate(mut index: usize, shape: &[usize]) -> Vec<u64> {
    let mut at = vec![0; shape.len()];
    for (place, extent) in at.iter_mut().zip(shape).rev() {
        *place = (index % extent) as u64;
        index /= extent;
    }
    at
}

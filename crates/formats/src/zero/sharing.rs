//! What lies in each rank's flat tensors, by the shapes that the model files record.
//!
//! ```text
//!   param_shapes [{norm (7), up (9, 7)}]  +  rank 1 of 2  ─►  norm 4..7 at 0, up 32..63 at 4     (stage 3)
//! ```

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use indexmap::IndexMap;
use reshard_layout::volume;

use super::catalogue::Catalogue;
use super::fault::ZeroFault;
use super::files::{Position, base_name};
use super::model_states::{FrozenParameter, ModelStates, Shapes};
use super::optimizer_states::{GroupStates, OptimizerStates};
use super::partitions::{FlatFacts, Ranks, Share, Sliced, partitioned_over, window};
use crate::error::FormatError;
use crate::files::{FileId, Files};

/// One rank's optimizer file.
#[derive(Debug)]
pub struct RankStates {
    /// The file.
    pub file: FileId,
    /// Its groups, or at stage 3 sub-groups: the flat tensors, and what lies in them.
    pub groups: Vec<(GroupStates, Share)>,
}

/// One rank's slices of frozen parameters at stage 3.
#[derive(Debug)]
pub struct FrozenSlices {
    /// The file.
    pub file: FileId,
    /// What it holds, by parameter.
    pub slices: IndexMap<String, (FrozenParameter, Share)>,
}

/// Files whose flat tensors are being told apart.
pub(super) struct Sharing<'a> {
    pub(super) files: &'a Files,
    pub(super) models: &'a [ModelStates],
    pub(super) catalogue: &'a Catalogue,
    pub(super) data_ranks: u64,
    pub(super) tensor_ranks: u64,
}

impl Sharing<'_> {
    fn ranks(&self, position: Position) -> Ranks {
        let at_least_one = |count: u64| NonZeroU64::new(count).unwrap_or(NonZeroU64::MIN);
        let (data, tensor) = (u64::from(position.data), u64::from(position.tensor));
        Ranks {
            data: at_least_one(self.data_ranks),
            world: at_least_one(self.data_ranks.saturating_mul(self.tensor_ranks)),
            data_rank: data,
            world_rank: data * self.tensor_ranks + tensor,
        }
    }

    fn is_whole(&self, name: &str) -> bool {
        self.catalogue.tensors.get(name).is_some_and(|tensor| tensor.joined.is_whole())
    }

    fn built_sliced(&self) -> bool {
        self.models[0].universal.as_ref().is_some_and(|info| info.has_placeholders())
    }

    /// What each rank's optimizer file holds.
    pub(super) fn optimizer(
        &self,
        stage: u64,
        all: BTreeMap<Position, OptimizerStates>,
    ) -> Result<BTreeMap<Position, RankStates>, FormatError> {
        let mut ranks = BTreeMap::new();
        // Groups are the same for all that share them; at stage 3 other tensor-parallel ranks may cut them elsewhere.
        let mut steps: BTreeMap<u32, (FileId, Vec<Option<f64>>)> = BTreeMap::new();
        for (position, states) in all {
            let fault = |fault: ZeroFault| fault.at(self.files.path(states.file));
            let found: Vec<_> = states.groups.iter().map(|group| group.step).collect();
            let (first, expected) =
                steps.entry(position.tensor).or_insert_with(|| (states.file, found.clone()));
            if *expected != found {
                let first = base_name(self.files.path(*first));
                return Err(fault(other_steps(first, expected, &found)));
            }
            // Group by group they may differ there, but all have taken the last step.
            let last = |steps: &[Option<f64>]| steps.iter().flatten().copied().reduce(f64::max);
            if let Some((first, expected)) = steps.values().next()
                && last(expected).zip(last(&found)).is_some_and(|(expected, found)| expected != found)
            {
                let first = base_name(self.files.path(*first));
                return Err(fault(other_steps(first, expected, &found)));
            }
            let shares = self.shares(stage, position, &states).map_err(fault)?;
            let groups = states.groups.into_iter().zip(shares).collect();
            ranks.insert(position, RankStates { file: states.file, groups });
        }
        Ok(ranks)
    }

    fn shares(
        &self,
        stage: u64,
        position: Position,
        states: &OptimizerStates,
    ) -> Result<Vec<Share>, ZeroFault> {
        let model = &self.models[position.tensor as usize];
        let Some(groups) = &model.parameter_shapes else {
            return Err(ZeroFault::Missing { key: "param_shapes in the model file".to_owned() });
        };
        if groups.len() != states.groups.len() {
            return Err(ZeroFault::Disagrees {
                key: "the number of groups of master weights".to_owned(),
                expected: groups.len() as u64,
                found: states.groups.len() as u64,
                because: "as many as param_shapes has",
            });
        }
        let ranks = self.ranks(position);
        if stage == 3 {
            return self.slices(groups, ranks, states);
        }
        let windows = groups.iter().enumerate().map(|(group, shapes)| {
            let of_group = shapes.keys().find_map(|name| model.module.get(name));
            let dtype = of_group
                .ok_or_else(|| ZeroFault::Missing { key: format!("the weights of group {group}") })?
                .dtype;
            let round_robin = model.round_robin;
            let facts = FlatFacts { group, rank: ranks.data_rank, ranks: ranks.data, dtype, round_robin };
            let share = window(shapes, facts, states)?;
            let found = states.groups[group].master.shape[0];
            if found != share.length && found != share.unpadded {
                let key = format!("the length of single_partition_of_fp32_groups.{group}");
                let because = "a window of the flat buffer, without its padding";
                return Err(ZeroFault::Disagrees { key, expected: share.unpadded, found, because });
            }
            Ok(share)
        });
        windows.collect()
    }

    fn slices(
        &self,
        groups: &[Shapes],
        ranks: Ranks,
        states: &OptimizerStates,
    ) -> Result<Vec<Share>, ZeroFault> {
        let mut all = Vec::with_capacity(groups.len());
        for (group, (shapes, found)) in groups.iter().zip(&states.groups).enumerate() {
            let length = found.master.shape[0];
            if length == 0 && shapes.values().any(|shape| volume(shape) != Some(0)) {
                return Err(ZeroFault::Swapped { group });
            }
            all.push(Sliced::new(format!("sub-group {group}"), shapes, length, |name| self.is_whole(name))?);
        }
        let over = partitioned_over(&all, ranks, self.built_sliced())?;
        Ok(all.iter().zip(over).map(|(one, over)| one.share(over, ranks)).collect())
    }

    /// The slices of frozen parameters. Each has a partition of its own.
    pub(super) fn frozen(
        &self,
        model_files: &BTreeMap<Position, FileId>,
        mut others: BTreeMap<Position, IndexMap<String, FrozenParameter>>,
    ) -> Result<BTreeMap<Position, FrozenSlices>, FormatError> {
        let mut ranks = BTreeMap::new();
        for (position, file) in model_files {
            let of_first = || self.models[position.tensor as usize].frozen.clone();
            let held = others.remove(position).unwrap_or_else(of_first);
            let slices = self.frozen_of_rank(*position, held);
            let slices = slices.map_err(|fault| fault.at(self.files.path(*file)))?;
            ranks.insert(*position, FrozenSlices { file: *file, slices });
        }
        Ok(ranks)
    }

    fn frozen_of_rank(
        &self,
        position: Position,
        held: IndexMap<String, FrozenParameter>,
    ) -> Result<IndexMap<String, (FrozenParameter, Share)>, ZeroFault> {
        let ranks = self.ranks(position);
        let shapes: Vec<Shapes> =
            held.iter().map(|(name, frozen)| Shapes::from([(name.clone(), frozen.shape.clone())])).collect();
        let mut all = Vec::with_capacity(held.len());
        for ((name, frozen), shapes) in held.iter().zip(&shapes) {
            let missing = || ZeroFault::Missing { key: format!("frozen_param_fragments.{name}") };
            let fragment = frozen.fragment.as_ref().ok_or_else(missing)?;
            let [length] = fragment.shape[..] else {
                let key = format!("frozen_param_fragments.{name}");
                return Err(ZeroFault::WrongType { key, expected: "flat tensor" });
            };
            all.push(Sliced::new(format!("the frozen parameter {name}"), shapes, length, |name| {
                self.is_whole(name)
            })?);
        }
        let over = partitioned_over(&all, ranks, self.built_sliced())?;
        let shares: Vec<_> = all.iter().zip(over).map(|(one, over)| one.share(over, ranks)).collect();
        Ok(held.into_iter().zip(shares).map(|((name, frozen), share)| (name, (frozen, share))).collect())
    }
}

fn other_steps(first: String, expected: &[Option<f64>], found: &[Option<f64>]) -> ZeroFault {
    let one = |step: &Option<f64>| step.map_or("absent".to_owned(), |step| step.to_string());
    let text = |steps: &[Option<f64>]| steps.iter().map(one).collect::<Vec<_>>().join(", ");
    let (expected, found) = (text(expected), text(found));
    ZeroFault::Steps { key: "step".to_owned(), first, expected, found }
}

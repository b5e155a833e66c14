//! DeepSpeed: AutoTP cuts a parameter over a tensor-parallel group, ZeRO over a data-parallel one.
//!
//! ```text
//!              tp 0      tp 1
//!            .--------.--------.         weights(slot)      stages 0-2: flat buffers weights.0, weights.1, ...
//!      dp 0  | slot 0 | slot 1 |                            stage 3: one buffer of slices, weights.0
//!            |--------+--------|         optimizer(slot)    a buffer a group (stage 3: a sub-group):
//!      dp 1  | slot 2 | slot 3 |                            fp32.0, fp32.1, ... or exp_avg.0, ...
//!            '--------'--------'
//! ```
//!
//! Ranks are numbered as DeepSpeed does, `dp_rank * tp + tp_rank`, then renamed by the topology. Sources: DeepSpeed
//! 0.19.8 `runtime/engine.py`, `module_inject/auto_tp.py`, `runtime/zero/`.

use std::num::{NonZeroU32, NonZeroU64};

use reshard_layout::{DType, Elements, Rank};

use crate::error::ParallelError;
use crate::model::{ModelConfig, ModelParameter};
use crate::storage::{RankStorage, Run, StorageSpec};
use crate::tensor::{self, Cut};
use crate::topology::{AutoTp, Place, Slot};
use crate::zero::{
    FlatGroup, FlatRules, Fragment, Init, OptimizerMaker, PartitionOver, SliceShard, Stage, SubGroup,
    ZeroOptions, sub_groups,
};

/// A tensor that the optimizer keeps for every weight, in 32-bit floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The master copy of the weights.
    Fp32,
    /// Adam's first moment.
    ExpAvg,
    /// Adam's second moment.
    ExpAvgSq,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fp32, Self::ExpAvg, Self::ExpAvgSq];

    /// DeepSpeed's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::ExpAvg => "exp_avg",
            Self::ExpAvgSq => "exp_avg_sq",
        }
    }
}

/// Who must be asked for the slices of one shard of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The ranks that hold a slice, in the order of the slices.
    pub ranks: Vec<Rank>,
    /// The length of every slot; the last ones may hold less, or nothing.
    pub slot: Elements,
    /// Which of `ranks` the asking rank is.
    pub position: u32,
}

/// One model on one topology.
#[derive(Clone, Debug)]
pub struct DeepSpeed {
    topology: AutoTp,
    options: ZeroOptions,
    dtype: DType,
    parameters: Vec<ModelParameter>,
    cuts: Vec<Cut>,
    replaced: Vec<bool>,
}

impl DeepSpeed {
    /// Cuts every parameter of a model.
    ///
    /// # Errors
    /// Unsupported, where DeepSpeed itself refuses the cut; usage, where an option is zero that counts something.
    pub fn new(config: &ModelConfig, topology: &AutoTp, options: ZeroOptions) -> Result<Self, ParallelError> {
        options.check()?;
        let (parameters, tp) = (config.parameters(), topology.tp());
        let grain = options.tp_grain_size;
        let cuts = parameters.iter().map(|parameter| tensor::cut_in_grains(config, parameter, tp, grain));
        let cuts = cuts.collect::<Result<_, _>>()?;
        let replaced = parameters.iter().map(|parameter| tensor::replaced(config, parameter, tp)).collect();
        Ok(Self { topology: topology.clone(), options, dtype: config.dtype(), parameters, cuts, replaced })
    }

    /// The topology.
    #[must_use]
    pub fn topology(&self) -> &AutoTp {
        &self.topology
    }

    /// The type of the weights.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The model's parameters.
    #[must_use]
    pub fn parameters(&self) -> &[ModelParameter] {
        &self.parameters
    }

    /// How each parameter lies over a tensor-parallel group.
    #[must_use]
    pub fn cuts(&self) -> &[Cut] {
        &self.cuts
    }

    /// The shape of a parameter's shard on a tensor-parallel rank.
    #[must_use]
    pub fn shard_shape(&self, parameter: usize, tp_rank: u32) -> Vec<u64> {
        self.cuts[parameter].shard_shape(&self.parameters[parameter].shape, tp_rank)
    }

    /// The elements of a parameter's shard on a tensor-parallel rank.
    #[must_use]
    pub fn shard_numel(&self, parameter: usize, tp_rank: u32) -> Elements {
        Elements(self.shard_shape(parameter, tp_rank).iter().product())
    }

    /// Whether a parameter stays gathered between steps: at stage 3, and small enough.
    #[must_use]
    pub fn persistent(&self, parameter: usize, tp_rank: u32) -> bool {
        self.topology.stage() == Stage::Three && self.options.persistent(self.shard_numel(parameter, tp_rank))
    }

    /// The ranks of a slot's tensor-parallel group.
    #[must_use]
    pub fn tp_group(&self, slot: Slot) -> Vec<Rank> {
        let place = self.topology.place(slot);
        self.group(self.topology.tp(), |tp_rank| Place { tp_rank, ..place })
    }

    /// The ranks of a slot's data-parallel group.
    #[must_use]
    pub fn dp_group(&self, slot: Slot) -> Vec<Rank> {
        let place = self.topology.place(slot);
        self.group(self.topology.dp(), |dp_rank| Place { dp_rank, ..place })
    }

    /// Who holds the slices of a parameter's shard. Below stage 3 that is the rank alone.
    #[must_use]
    pub fn partition(&self, parameter: usize, slot: Slot) -> Partition {
        let place = self.topology.place(slot);
        let numel = self.shard_numel(parameter, place.tp_rank);
        if self.topology.stage() != Stage::Three {
            return Partition { ranks: vec![self.topology.rank(slot)], slot: numel, position: 0 };
        }
        let shard = self.slice_shard(parameter, place.tp_rank);
        let ranks = match shard.over {
            PartitionOver::DataParallel => self.dp_group(slot),
            PartitionOver::World => self.topology.ranks(),
        };
        Partition { ranks, slot: shard.slot(), position: self.position(shard.over, slot) }
    }

    /// What a rank stores of the weights.
    #[must_use]
    pub fn weights(&self, slot: Slot) -> RankStorage {
        let mut storage = self.nothing(slot);
        if self.topology.stage() == Stage::Three {
            let groups = self.sub_groups(storage.tp_rank);
            let length = groups.iter().map(|group| group.length).sum();
            push_storage(&mut storage, "weights", self.dtype, length);
            for group in &groups {
                let fragments = group.fragments(u64::from(self.position(group.over, slot)));
                push_runs(&mut storage, group.offset, fragments);
            }
            return storage;
        }
        for group in self.flat_groups(storage.tp_rank) {
            push_storage(&mut storage, "weights", self.dtype, group.length());
            let whole = group.entries().iter().map(|entry| Fragment {
                parameter: entry.parameter,
                offset: entry.offset,
                first: Elements(0),
                length: entry.numel,
            });
            push_runs(&mut storage, Elements(0), whole);
        }
        storage
    }

    /// What a rank stores of an optimizer state.
    #[must_use]
    pub fn optimizer(&self, slot: Slot, state: State) -> RankStorage {
        let mut storage = self.nothing(slot);
        if self.topology.stage() == Stage::Three {
            for group in self.sub_groups(storage.tp_rank) {
                push_storage(&mut storage, state.name(), DType::F32, group.length);
                let fragments = group.fragments(u64::from(self.position(group.over, slot)));
                push_runs(&mut storage, Elements(0), fragments);
            }
            return storage;
        }
        for group in self.flat_groups(storage.tp_rank) {
            let partition = if self.topology.stage() == Stage::Zero { 0 } else { storage.dp_rank };
            push_storage(&mut storage, state.name(), DType::F32, group.partition_length());
            push_runs(&mut storage, Elements(0), group.fragments(u64::from(partition)));
        }
        storage
    }

    /// The flat buffers of a tensor-parallel rank, one an optimizer group. Stages 0 to 2.
    #[must_use]
    pub fn flat_groups(&self, tp_rank: u32) -> Vec<FlatGroup> {
        let rules = match self.topology.stage() {
            Stage::Zero => FlatRules::REPLICATED,
            _ => FlatRules::partitioned(
                NonZeroU64::from(self.topology.dp()),
                self.dtype,
                self.options.parameter_alignment,
                self.options.round_robin_gradients,
            ),
        };
        let group = |parameters: &Vec<usize>| {
            let numel = |&parameter: &usize| (parameter, self.shard_numel(parameter, tp_rank));
            FlatGroup::new(&parameters.iter().map(numel).collect::<Vec<_>>(), rules)
        };
        self.optimizer_groups().iter().map(group).collect()
    }

    /// The sub-groups of a tensor-parallel rank. Stage 3.
    #[must_use]
    pub fn sub_groups(&self, tp_rank: u32) -> Vec<SubGroup> {
        let group = |parameters: &Vec<usize>| {
            parameters.iter().map(|&parameter| self.slice_shard(parameter, tp_rank)).collect()
        };
        let groups: Vec<Vec<SliceShard>> = self.optimizer_groups().iter().map(group).collect();
        sub_groups(&groups, self.options.sub_group_size)
    }

    /// Parameters in optimizer order. Under `zero.Init`, AutoTP makes new parameters for what it replaces; an
    /// optimizer that was made before gets them at the end of the group of the old ones
    /// (`_remap_param_groups_after_module_replacement`).
    fn optimizer_groups(&self) -> Vec<Vec<usize>> {
        let mut groups = self.options.grouping.groups(&self.parameters);
        if self.topology.init().is_some() && self.options.optimizer == OptimizerMaker::Caller {
            for group in &mut groups {
                group.sort_by_key(|parameter| self.replaced[*parameter]);
            }
        }
        groups
    }

    fn slice_shard(&self, parameter: usize, tp_rank: u32) -> SliceShard {
        let untouched = !self.replaced[parameter];
        let over = match self.topology.init() {
            Some(Init::World) if untouched => PartitionOver::World,
            _ => PartitionOver::DataParallel,
        };
        let ranks = match over {
            // Stage 3 has no copies: the world is tp * dp, and not zero.
            PartitionOver::World => NonZeroU32::new(self.topology.world()).unwrap_or(NonZeroU32::MIN),
            PartitionOver::DataParallel => self.topology.dp(),
        };
        let numel = self.shard_numel(parameter, tp_rank);
        SliceShard { parameter, numel, over, partitions: NonZeroU64::from(ranks) }
    }

    /// Which slice of a partition group a slot holds.
    fn position(&self, over: PartitionOver, slot: Slot) -> u32 {
        match over {
            PartitionOver::World => slot.0,
            PartitionOver::DataParallel => self.topology.place(slot).dp_rank,
        }
    }

    fn group(&self, count: NonZeroU32, place: impl Fn(u32) -> Place) -> Vec<Rank> {
        (0..count.get()).map(|at| self.topology.rank(self.topology.slot(place(at)))).collect()
    }

    fn nothing(&self, slot: Slot) -> RankStorage {
        let Place { tp_rank, dp_rank, .. } = self.topology.place(slot);
        let rank = self.topology.rank(slot);
        RankStorage { rank, tp_rank, dp_rank, storages: Vec::new(), runs: Vec::new() }
    }
}

fn push_storage(storage: &mut RankStorage, name: &str, dtype: DType, length: Elements) {
    let name = format!("{name}.{}", storage.storages.len());
    storage.storages.push(StorageSpec { name, dtype, length });
}

/// Appends fragments to the last storage, `base` elements further on.
fn push_runs(storage: &mut RankStorage, base: Elements, fragments: impl Iterator<Item = Fragment>) {
    let last = storage.storages.len() - 1;
    storage.runs.extend(fragments.map(|fragment| Run {
        parameter: fragment.parameter,
        storage: last,
        offset: base + fragment.offset,
        first: fragment.first,
        length: fragment.length,
    }));
}

//! ZeRO: which stretch of a tensor-parallel shard each data-parallel rank keeps. Arithmetic on counts only.
//!
//! ```text
//! stages 0 1 2  weights   [ a a a a a|b b b b|c c c c c c c c|0 ]   one flat buffer a group, on every rank
//!       (flat)  states    [ rank 0   ][ rank 1    ][ rank 2     ]   a window of it (stage 0: all of it)
//!
//! stage 3       both      rank 0 [ a a|b b|c c c c ]                a slice of every parameter, end to end
//!       (slice)           rank 1 [ a a|b b|c c c c ]
//!                         rank 2 [ a -|- -|c c - - ]                - is padding, and holds garbage
//! ```

mod flat;
mod slice;

pub use flat::{FlatEntry, FlatGroup, FlatRules, Fragment, round_robin};
pub use slice::{PartitionOver, SliceEntry, SliceShard, SubGroup, sub_groups};

use std::num::NonZeroU64;

use reshard_layout::Elements;

use crate::error::ParallelError;
use crate::model::ModelParameter;

/// What is partitioned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Nothing: plain replicas.
    #[default]
    Zero,
    /// Optimizer states.
    One,
    /// Optimizer states and gradients; weights and states lie as at stage 1.
    Two,
    /// Optimizer states, gradients and weights.
    Three,
}

impl Stage {
    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Zero => 0,
            Self::One => 1,
            Self::Two => 2,
            Self::Three => 3,
        }
    }
}

/// Which process group partitions a model that is built under `zero.Init`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Init {
    /// `init=zero`: plain `zero.Init`. What AutoTP leaves alone stays partitioned over the world.
    World,
    /// `init=dp`: `zero.Init(data_parallel_group=...)`.
    DataParallel,
}

/// Which parameters share an optimizer group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Grouping {
    /// One group of all parameters.
    #[default]
    One,
    /// Parameters of two and more axes, then the others: the usual split for weight decay.
    MatricesAndVectors,
}

impl Grouping {
    /// The groups, as positions in `parameters`.
    #[must_use]
    pub fn groups(self, parameters: &[ModelParameter]) -> Vec<Vec<usize>> {
        let all = 0..parameters.len();
        match self {
            Self::One => vec![all.collect()],
            Self::MatricesAndVectors => {
                let (matrices, vectors) = all.partition(|index| parameters[*index].shape.len() > 1);
                vec![matrices, vectors]
            }
        }
    }
}

/// Who makes the optimizer. It decides the order under `zero.Init` with AutoTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OptimizerMaker {
    /// The caller hands DeepSpeed an optimizer: replaced parameters move to the end of their group.
    #[default]
    Caller,
    /// DeepSpeed makes it from its configuration, after AutoTP: module order.
    Engine,
}

/// DeepSpeed's options that move elements. The default is DeepSpeed's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZeroOptions {
    /// Which parameters share an optimizer group.
    pub grouping: Grouping,
    /// Who makes the optimizer.
    pub optimizer: OptimizerMaker,
    /// `parameter_alignment` (stages 1, 2): every parameter of a flat group but the last is padded to 16 bytes.
    pub parameter_alignment: bool,
    /// `round_robin_gradients` (stages 1, 2): deal the parameters of a group out to the ranks.
    pub round_robin_gradients: bool,
    /// AutoTP's `tp_grain_size`: MLP and head widths are cut in multiples of it.
    pub tp_grain_size: NonZeroU64,
    /// `sub_group_size` (stage 3): elements of a rank after which a sub-group is closed; at least 1.
    pub sub_group_size: Elements,
    /// `stage3_param_persistence_threshold`: parameters of at most so many elements stay gathered.
    pub persistence_threshold: Elements,
}

impl Default for ZeroOptions {
    fn default() -> Self {
        Self {
            grouping: Grouping::default(),
            optimizer: OptimizerMaker::default(),
            parameter_alignment: false,
            round_robin_gradients: false,
            tp_grain_size: NonZeroU64::MIN,
            sub_group_size: Elements(1_000_000_000),
            persistence_threshold: Elements(100_000),
        }
    }
}

impl ZeroOptions {
    /// Whether a stage-3 shard of so many elements stays gathered between steps
    /// (DeepSpeed 0.19.8 `runtime/zero/parameter_offload.py`).
    #[must_use]
    pub fn persistent(&self, numel: Elements) -> bool {
        numel <= self.persistence_threshold
    }

    pub(crate) fn check(&self) -> Result<(), ParallelError> {
        match self.sub_group_size {
            Elements(0) => Err(ParallelError::OptionZero { option: "sub_group_size" }),
            _ => Ok(()),
        }
    }
}

//! What one process allocates, and which stretch of which parameter lies where in it.
//!
//! ```text
//! shard of parameter 3, flattened     0 1 2 3 4|5 6 7 8 9|a b c        Run { parameter: 3, storage: 1,
//!                                              '----.----'                   offset: 7, first: 5,
//! storage 1 "fp32.1"         . . . . . . . 5 6 7 8 9 - -  <- padding         length: 5 }
//!                                          ^offset 7         is in no run
//! ```

use reshard_layout::{DType, Elements, Rank};

/// An allocation of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageSpec {
    /// Its name, unique among the storages of a rank: what it holds and a number, such as `exp_avg.0`.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its length, padding included.
    pub length: Elements,
}

/// A stretch of one parameter's flattened row-major tensor-parallel shard, stored without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Position in [`ModelConfig::parameters`](crate::model::ModelConfig::parameters).
    pub parameter: usize,
    /// Position in [`RankStorage::storages`].
    pub storage: usize,
    /// Where in the storage it begins.
    pub offset: Elements,
    /// The first element of the flattened shard that it holds.
    pub first: Elements,
    /// How many elements it holds; never zero.
    pub length: Elements,
}

/// Everything that one process stores of the weights or of one optimizer state.
///
/// Runs come in the order of their addresses; none is empty, no two overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankStorage {
    /// The process.
    pub rank: Rank,
    /// Its position in its tensor-parallel group.
    pub tp_rank: u32,
    /// Its position in its data-parallel group.
    pub dp_rank: u32,
    /// What it allocates.
    pub storages: Vec<StorageSpec>,
    /// What lies in it.
    pub runs: Vec<Run>,
}

//! Parallelism -> where every element lies. Pure: no files, no threads, no values of weights.
//!
//! ```text
//! config.json ─► ModelConfig ─► parameters ┐
//!                                          ├─► Cut (tensor)  ─► runs (zero) ─► RankStorage (engine)
//! "autotp:tp=2,dp=2,zero=3" ─► Topology ───┘   which box of     which stretch    what one process
//!                                              it a TP rank     of that shard    allocates, and what
//!                                              computes with    a DP rank keeps  lies where in it
//! ```

pub mod engine;
mod error;
pub mod model;
mod storage;
pub mod tensor;
pub mod topology;
pub mod zero;

pub use error::{Category, ParallelError};
pub use storage::{RankStorage, Run, StorageSpec};

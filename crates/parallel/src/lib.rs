//! Parallelism -> where every element lies. Pure: no files, no threads, no values of weights.
//!
//! ```text
//! config.json ─► ModelConfig ─► parameters ┐
//!                                          ├─► Cut (tensor)  ─► runs (zero) ─► RankStorage (engine)
//! "autotp:tp=2,dp=2,zero=3" ─► Topology ───┘   which box of     which stretch    what one process
//!                                              it a TP rank     of that shard    allocates, and what
//!                                              computes with    a DP rank keeps  lies where in it
//! ```
//!
//! ```
//! use reshard_parallel::engine::DeepSpeed;
//! use reshard_parallel::model::ModelConfig;
//! use reshard_parallel::topology::{Slot, Topology};
//! use reshard_parallel::zero::ZeroOptions;
//!
//! let config = ModelConfig::from_json(
//!     r#"{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
//!         "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 144, "vocab_size": 257}"#,
//! )?;
//! let Topology::AutoTp(topology) = "autotp:tp=2,dp=2,zero=3".parse()? else { unreachable!() };
//! let engine = DeepSpeed::new(&config, &topology, ZeroOptions::default())?;
//! // The length that a live engine had.
//! assert_eq!(engine.weights(Slot(0)).storages[0].length.0, 52_608);
//! assert_eq!(engine.layout()?.world(), 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
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

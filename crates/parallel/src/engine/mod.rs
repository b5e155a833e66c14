//! Engines: a model and a topology together, as what every rank stores.
//!
//! ```text
//! ModelConfig + topology + options ─► engine ─► RankStorage of each slot ─► Layout of all
//! ```

mod deepspeed;
mod layout;

pub use deepspeed::{DeepSpeed, Partition, State};

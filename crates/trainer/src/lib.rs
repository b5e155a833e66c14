//! A small but real trainer of a Qwen3-style model, its rollout engine, and the gather way, for the end-to-end job.
//!
//! ```text
//! config.json ─► Model ─► Trainer   TP x DP x ZeRO, bf16 weights in storages that layouts describe
//!                     ├─► Rollout   TP-n copies, born as NaN, updated in place, generating
//!                     ├─► gather    the baseline: whole parameters by plain collectives, sliced
//!                     └─► Oracle    what every element must be, before and after training
//! ```

mod category;
mod checkpoint;
mod compute;
pub mod demo;
mod drift;
mod error;
mod exchange;
mod gather;
mod initial;
mod model;
mod oracle;
mod random;
mod rollout;
mod storage;
mod text;
mod topology;
mod trainer;
mod verification;
mod zero;

pub use category::Category;
pub use checkpoint::Cost;
pub use compute::Meter;
pub use drift::{Drift, drifted};
pub use error::TrainerError;
pub use gather::{Delivery, GatherCost, Parties, whole_parameter};
pub use model::{
    AxisCut, BEGIN_OF_TEXT, Block, BlockKind, BuiltIn, Dimensions, Model, ShardedParameter, TINY, UNEVEN,
};
pub use oracle::Oracle;
pub use rollout::{Choice, RolloutEngine, spoken};
pub use storage::Storage;
pub use text::DEFAULT_TEXT;
pub use trainer::{Groups, Trainer, TrainerOptions};
pub use verification::{Expectation, Mismatch, Verification};
pub use zero::{AdamW, Stored, ZeroEngine};

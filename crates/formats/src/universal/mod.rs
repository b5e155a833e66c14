//! DeepSpeed Universal checkpoints: whole parameters, a file for each state, whatever trained them.
//!
//! ```text
//!   latest_universal                              the text  <tag>_universal
//!   <tag>_universal/zero/<parameter>/fp32.pt      {"param": tensor, ...}      -> Master, and Weights
//!                                    exp_avg.pt   {"param": tensor, ...}      -> State("exp_avg"), any name
//!                                    step.pt      a number
//!                   zero/optimizer_state.pt       hyper-parameters, loss scale
//!                   mp_rank_00_model_states.pt               stages 1 and 2 look for these,
//!                   zero_pp_rank_0_mp_rank_00_model_states.pt      stage 3 for these
//! ```
//!
//! Source: DeepSpeed 0.19.8 `checkpoint/ds_to_universal.py`, `checkpoint/universal_checkpoint.py`, and what
//! `runtime/engine.py`, `runtime/base_optimizer.py` and `runtime/zero/stage3.py` look for when they load one.

mod fault;
mod folder;
mod models;
mod open;
mod optimizer;
mod output;
mod tensors;

pub use fault::UniversalFault;
pub use open::open;
pub use output::{ForStage, UniversalOptions, output};

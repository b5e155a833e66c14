//! DeepSpeed ZeRO checkpoints: stages 0 to 3 and the bf16 optimizer, under AutoTP or not.
//!
//! ```text
//!   latest = "step2"                   ┌ names ─ files        model_states, optimizer_states   what a file says
//!   step2/mp_rank_00_model_states.pt   │ shapes + rules       universal_info ─ join            tensor parallelism
//!   step2/zero_pp_rank_0_...           │ order + lengths      partitions ─ sharing             ZeRO
//!                                      └ layouts ──► Checkpoint { weights, fp32, exp_avg, ... }
//! ```
//!
//! Layouts come from `param_shapes` and the lengths of the flat tensors; records beside them are compared with what
//! follows from these. Source of every rule: DeepSpeed 0.19.8 `runtime/zero`, `runtime/engine.py` and `checkpoint`.

mod catalogue;
mod fault;
mod field;
pub mod files;
mod folder;
mod join;
mod layouts;
mod model_states;
mod optimizer_states;
mod part;
mod partitions;
mod patterns;
mod sharing;
mod universal_info;
mod untrained;
pub mod write;

use std::path::Path;

pub use catalogue::{Catalogue, LogicalTensor, Role};
pub use fault::ZeroFault;
pub use folder::Folder;
pub use join::Joined;
pub use model_states::{FrozenParameter, ModelStates, RankCounts, Shapes};
pub use optimizer_states::{FragmentAddress, GroupStates, OptimizerStates};
pub use partitions::{Held, Share};
pub use sharing::{FrozenSlices, RankStates};
pub use universal_info::{Join, PartExtents, Parts, UniversalInfo};
pub(crate) use untrained::{frozen, second_names};

use crate::checkpoint::Checkpoint;
use crate::error::FormatError;

/// Opens a ZeRO checkpoint: the folder with `latest` in it, or the folder that it names. No tensor is read.
///
/// Stage 0 has weights only here: its optimizer states are those of a plain torch optimizer. Weights at stage 3 are
/// the master copies, slices of frozen parameters, and buffers; `facts.model_dtypes` says what they are rounded to.
///
/// # Errors
/// [`FormatError::Zero`] naming the file and what is wrong, what reading a torch file gives, or
/// [`FormatError::Layout`] where parameters have holes.
pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
    Folder::open(path)?.checkpoint()
}

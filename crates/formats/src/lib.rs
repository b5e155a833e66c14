//! Checkpoints as layouts: which file holds which box of which parameter, read from headers alone.
//!
//! ```text
//!   safetensors, ZeRO, Universal, DCP, shards ──open──► Checkpoint { files, a layout for each tensor kept }
//!                                                           │ plan
//!   hf | universal | zero | shards ◄──write── Output { files, known bytes, layouts }
//! ```
//!
//! No whole model is ever in memory, no code in a pickle is ever run, and an output is there whole or not at all.

pub mod checkpoint;
pub mod dcp;
mod error;
pub mod files;
mod kept;
mod open;
pub mod output;
pub mod pickle;
pub mod safetensors;
pub mod shards;
pub mod target;
pub mod torch;
pub mod universal;
pub mod zero;

pub use checkpoint::{Checkpoint, Facts, Format, Part, PartReader};
pub use error::FormatError;
pub use files::{FileId, Files, Span};
pub use kept::Kept;
pub use output::{Checksum, Known, Output, TargetFile};
pub use target::{Selection, Target, Tied};

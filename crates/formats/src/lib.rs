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
mod compare;
mod convert;
mod counted;
pub mod dcp;
mod dense;
mod error;
pub mod files;
mod kept;
mod open;
pub mod output;
pub mod pickle;
mod replicas;
pub mod safetensors;
pub mod shards;
pub mod target;
pub mod torch;
pub mod universal;
pub mod write;
pub mod zero;

pub use checkpoint::{Checkpoint, Facts, Format, Part, PartReader};
pub use compare::{CompareOptions, Comparison, Difference, Held, comparable_bytes, compare};
pub use convert::{Conversion, PartSummary, Summary};
pub use error::FormatError;
pub use files::{FileId, Files, Span};
pub use kept::Kept;
pub use output::{Checksum, Known, Output, TargetFile};
pub use replicas::ReplicaFault;
pub use target::{Selection, Target, Tied};
pub use write::{
    Filling, OutputFolder, Progress, Replicas, Report, Silent, WriteFault, WriteOptions, write_files,
};

//! Checkpoints as layouts: which file holds which box of which parameter, read from headers alone.
//!
//! ```text
//!   safetensors, ZeRO, Universal, DCP, shards ──open──► Checkpoint { files, a layout for each tensor kept }
//!                                                           │ plan
//!   hf | universal | zero | shards ◄──write── Output { files, known bytes, layouts }
//! ```
//!
//! No whole model is ever in memory, no code in a pickle is ever run, and an output is there whole or not at all.
//!
//! ```
//! use reshard_formats::{Checkpoint, CompareOptions, Conversion, Selection, Silent, Target, WriteOptions, compare};
//! use reshard_layout::DType;
//!
//! // A safetensors file of one tensor, `w` = [0.5, -2.0] in f32.
//! # let folder = tempfile::tempdir()?;
//! # let (source, target) = (folder.path().join("model.safetensors"), folder.path().join("bf16"));
//! let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} "#;
//! let data = [0.5f32, -2.0].map(f32::to_le_bytes).concat();
//! std::fs::write(&source, [&(header.len() as u64).to_le_bytes()[..], header, &data].concat())?;
//!
//! // The same weights in bf16, as a folder that a model is loaded from.
//! let opened = Checkpoint::open(&source)?;
//! let selection = Selection { dtype: Some(DType::Bf16), ..Selection::default() };
//! let output = Target::HuggingFace { selection, file_bytes_max: 5_000_000_000 }.output(&opened, None)?;
//! let report = Conversion::new(opened, output)?.run(&target, &WriteOptions::default(), &Silent)?;
//! assert_eq!(report.files, 1);
//!
//! let found = compare(&Checkpoint::open(&source)?, &Checkpoint::open(&target)?, &CompareOptions::default(), &Silent)?;
//! assert_eq!(found.differences[0].to_string(), "weights of w: f32 and bf16");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

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
mod paths;
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

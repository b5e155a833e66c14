//! A checkpoint: files, and one layout for each tensor that is kept of the parameters.
//!
//! ```text
//!   files    0 mp_rank_00_model_states.pt   1 zero_pp_rank_0_mp_rank_00_optim_states.pt ...
//!   parts    weights  layout, storage i = spans[i]: a byte range of file 0 ...
//!            fp32     layout, storage i = spans[i]: a byte range of file 1 ...
//!            exp_avg  ...
//! ```
//!
//! Opening one reads headers and pickles, and of tensors only the counts of steps.

use std::fmt;
use std::path::PathBuf;

use indexmap::IndexMap;
use reshard_layout::{Bytes, DType, Layout, Parameter, StorageId};
use reshard_transport::ReadAt;

use crate::files::{Files, Span};
use crate::kept::Kept;

/// A layout whose storages are byte ranges of files.
#[derive(Clone, Debug)]
pub struct Part {
    /// Where every element lies.
    pub layout: Layout,
    /// The byte range of each storage of the layout, by its id.
    pub spans: Vec<Span>,
}

/// Who wrote the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// safetensors: a file, or a folder with or without an index.
    HuggingFace,
    /// A safetensors file a rank, with the layout in its metadata.
    Shards,
    /// DeepSpeed ZeRO.
    Zero,
    /// DeepSpeed Universal.
    Universal,
    /// torch.distributed.checkpoint.
    Dcp,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HuggingFace => "safetensors",
            Self::Shards => "shards",
            Self::Zero => "ZeRO",
            Self::Universal => "Universal",
            Self::Dcp => "DCP",
        })
    }
}

/// What a checkpoint says beside its tensors.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The ZeRO stage.
    pub stage: Option<u32>,
    /// Tensor-parallel ranks that wrote it.
    pub tp: Option<u32>,
    /// Data-parallel ranks that wrote it.
    pub dp: Option<u32>,
    /// Steps that the trainer had taken.
    pub step: Option<u64>,
    /// Parameters that are not trained.
    pub frozen: Vec<String>,
    /// Tensors of the model that are no parameters.
    pub buffers: Vec<String>,
    /// The type of each parameter as the model computes with it, where the weights are kept in another one (a
    /// stage-3 or Universal checkpoint has masters only).
    pub model_dtypes: IndexMap<String, DType>,
    /// The model's `config.json`, where one lies beside the files.
    pub config: Option<PathBuf>,
    /// Text that the writer left: versions, the metadata of a safetensors header.
    pub metadata: IndexMap<String, String>,
    /// Tensors of types below a byte, which lie as bytes in the layout: the stored dtype and shape.
    pub packed: IndexMap<String, (String, Vec<u64>)>,
    /// What is odd in the files and yet no error, a line each.
    pub notes: Vec<String>,
}

/// A checkpoint, opened.
#[derive(Debug)]
pub struct Checkpoint {
    /// Who wrote it.
    pub format: Format,
    /// Its folder, or its only file.
    pub root: PathBuf,
    /// Its files.
    pub files: Files,
    /// One layout for each tensor that is kept.
    pub parts: IndexMap<Kept, Part>,
    /// What it says beside.
    pub facts: Facts,
}

impl Checkpoint {
    /// The type that the elements of a kept tensor stand for: for the weights the one in which the model computes, also
    /// where only their masters are kept; else the stored one.
    #[must_use]
    pub fn dtype(&self, kept: &Kept, parameter: &Parameter) -> DType {
        let model = self.facts.model_dtypes.get(&parameter.name).filter(|_| *kept == Kept::Weights);
        model.copied().unwrap_or(parameter.dtype)
    }

    /// The bytes behind a part, for [`reshard_transport::Assembly`].
    #[must_use]
    pub fn reader<'a>(&'a self, part: &'a Part) -> PartReader<'a> {
        PartReader { files: &self.files, spans: &part.spans }
    }
}

/// The storages of a part, read from their files.
#[derive(Clone, Copy, Debug)]
pub struct PartReader<'a> {
    files: &'a Files,
    spans: &'a [Span],
}

impl ReadAt for PartReader<'_> {
    fn read_at(&self, storage: StorageId, offset: Bytes, into: &mut [u8]) -> std::io::Result<()> {
        let span = self.spans[storage.index()];
        self.files.read_at(span.file, span.offset + offset, into).map_err(std::io::Error::other)
    }
}

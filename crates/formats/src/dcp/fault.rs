//! What can be wrong with a checkpoint of torch.distributed.checkpoint.

use reshard_layout::{DType, Kind};

use crate::pickle::PickleFault;
use crate::safetensors::shown;

/// Why such a checkpoint cannot be read.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DcpFault {
    /// `.metadata` is no pickle.
    #[error(transparent)]
    Pickle(#[from] PickleFault),
    /// `.metadata` is longer than a pickle may be.
    #[error("{bytes} bytes, more than the {max} that are read")]
    TooLong {
        /// Its length.
        bytes: u64,
        /// How long it may be.
        max: u64,
    },
    /// `.metadata` does not say what torch says there.
    #[error("{what} of {name:?} cannot be read")]
    Metadata {
        /// Which part.
        what: &'static str,
        /// The tensor, or the metadata itself.
        name: String,
    },
    /// A folder without `.metadata`, in which each rank saved alone.
    #[error("each rank saved alone, without `.metadata`; save with coordination (`no_dist=False`)")]
    SavedAlone,
    /// A folder that holds neither `.metadata` nor files of ranks.
    #[error("no `.metadata`, and no safetensors files with the place of each shard in them")]
    NoMetadata,
    /// Files that `.metadata` names and that are not there.
    #[error("{chunks} chunks of tensors lie in files that are not there: {}", shown(files))]
    MissingFiles {
        /// Their names.
        files: Vec<String>,
        /// How many chunks of tensors lie in them.
        chunks: u64,
    },
    /// A chunk of which no file is said to hold it.
    #[error("{name:?}: no file holds the chunk at {offsets:?}")]
    NowhereStored {
        /// The tensor.
        name: String,
        /// Where the chunk begins in it.
        offsets: Vec<u64>,
    },
    /// A chunk that lies outside its tensor.
    #[error("{name:?} of shape {shape:?} has no chunk of shape {sizes:?} at {offsets:?}")]
    OutOfTensor {
        /// The tensor.
        name: String,
        /// Its extents.
        shape: Vec<u64>,
        /// Where the chunk begins in it.
        offsets: Vec<u64>,
        /// The extents of the chunk.
        sizes: Vec<u64>,
    },
    /// A file that is named by a path that leaves the folder.
    #[error("file {file:?} is not a path inside the checkpoint")]
    Climbs {
        /// The path.
        file: String,
    },
    /// A chunk that went through an extension of the writer.
    #[error("{name:?} was transformed when it was written: {by}")]
    Transformed {
        /// The tensor.
        name: String,
        /// The extension.
        by: String,
    },
    /// Chunks that lie in the same bytes.
    #[error("{one:?} and {other:?} lie in the same bytes")]
    SharedBytes {
        /// A tensor.
        one: String,
        /// Another one, or the same.
        other: String,
    },
    /// What lies in the file is another tensor.
    #[error("{name:?}: the chunk at {offsets:?} is {found}, expected {dtype} {sizes:?}")]
    OtherTensor {
        /// The tensor.
        name: String,
        /// Where the chunk begins in it.
        offsets: Vec<u64>,
        /// What lies there.
        found: String,
        /// The type that the metadata says.
        dtype: DType,
        /// The extents that it says.
        sizes: Vec<u64>,
    },
    /// Files of ranks that disagree about a tensor.
    #[error("{name:?} has {found} in one file and {expected} in another")]
    Disagree {
        /// The tensor.
        name: String,
        /// Type and axes in the later file.
        found: String,
        /// Those in the first.
        expected: String,
    },
    /// Elements below a byte, of which the place in the whole cannot be told.
    #[error("{name:?} has elements of {dtype}, which cannot be cut")]
    Packed {
        /// The tensor.
        name: String,
        /// Its type.
        dtype: &'static str,
    },
}

impl DcpFault {
    /// Whether it is a contradiction, beyond this library, or over a limit.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Pickle(fault) => fault.kind(),
            Self::TooLong { .. } => Kind::OverBudget,
            Self::SavedAlone | Self::Transformed { .. } | Self::Packed { .. } => Kind::Unsupported,
            _ => Kind::Invalid,
        }
    }
}

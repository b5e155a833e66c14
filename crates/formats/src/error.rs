//! What can be wrong with a checkpoint. Each error names the file and what is wrong in it.

use std::path::{Path, PathBuf};

use reshard_layout::{Kind, LayoutError};
use reshard_parallel::{Category, ParallelError};
use reshard_plan::{PlanError, VerifyError};
use reshard_transport::{FillError, TransportError};

use crate::replicas::ReplicaFault;
use crate::safetensors::SafetensorsFault;
use crate::shards::ShardsFault;
use crate::torch::TorchFault;
use crate::universal::UniversalFault;
use crate::write::WriteFault;
use crate::zero::ZeroFault;

/// Why a checkpoint cannot be read, converted or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The system refuses an operation on a file or folder.
    #[error("cannot {operation} {}: {cause}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        cause: std::io::Error,
    },
    /// The contents make no layout.
    #[error("{}: {error}", path.display())]
    Layout {
        /// The checkpoint.
        path: PathBuf,
        /// What was found.
        error: LayoutError,
    },
    /// A ZeRO checkpoint that contradicts itself, or is beyond this library.
    #[error("{}: {fault}", path.display())]
    Zero {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        fault: ZeroFault,
    },
    /// A torch file that cannot be read.
    #[error("{}: {fault}", path.display())]
    Torch {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: TorchFault,
    },
    /// A safetensors file, folder or index.
    #[error("{}: {fault}", path.display())]
    Safetensors {
        /// The file or folder.
        path: PathBuf,
        /// What was found.
        fault: SafetensorsFault,
    },
    /// A safetensors file a rank.
    #[error("{}: {fault}", path.display())]
    Shards {
        /// The file or folder.
        path: PathBuf,
        /// What was found.
        fault: ShardsFault,
    },
    /// A ZeRO checkpoint that cannot be written.
    #[error("{}: {fault}", path.display())]
    ZeroWrite {
        /// The source, or a file of it.
        path: PathBuf,
        /// Why not.
        fault: crate::zero::write::WriteFault,
    },
    /// A Universal checkpoint that cannot be read or written.
    #[error("{}: {fault}", path.display())]
    Universal {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: UniversalFault,
    },
    /// A topology or model config that does not fit.
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    /// Two layouts that make no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan that its own check refuses.
    #[error("the plan is wrong, which is a fault of this program: {0}")]
    Verify(#[from] VerifyError),
    /// A plan that cannot be carried out.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A window that cannot be filled.
    #[error(transparent)]
    Fill(FillError),
    /// An output that cannot be written.
    #[error("{}: {fault}", path.display())]
    Write {
        /// The output.
        path: PathBuf,
        /// Why not.
        fault: WriteFault,
    },
    /// Files that should hold the same and do not.
    #[error("{}: {fault}", path.display())]
    Replicas {
        /// The checkpoint.
        path: PathBuf,
        /// What differs where.
        fault: ReplicaFault,
    },
}

impl From<FillError> for FormatError {
    /// The error of the file that was being read, where there is one.
    fn from(error: FillError) -> Self {
        match error {
            FillError::SourceUnreadable { rank, name, offset, cause } => match cause.downcast::<Self>() {
                Ok(error) => error,
                Err(cause) => Self::Fill(FillError::SourceUnreadable { rank, name, offset, cause }),
            },
            error => Self::Fill(error),
        }
    }
}

impl FormatError {
    /// An input or output error.
    #[must_use]
    pub fn io(operation: &'static str, path: &Path, cause: std::io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), cause }
    }

    /// Whether the contents contradict themselves, are beyond this library, or over a limit. `None`: the system's
    /// or the caller's fault.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Self::Io { .. } => None,
            Self::Layout { error, .. } => Some(error.kind()),
            Self::Zero { fault, .. } => Some(fault.kind()),
            Self::Torch { fault, .. } => Some(fault.kind()),
            Self::ZeroWrite { fault, .. } => Some(fault.kind()),
            Self::Universal { fault, .. } => Some(fault.kind()),
            Self::Safetensors { fault, .. } => Some(fault.kind()),
            Self::Shards { fault, .. } => Some(fault.kind()),
            Self::Parallel(error) => match error.category() {
                Category::Usage => None,
                Category::Invalid => Some(Kind::Invalid),
                Category::Unsupported => Some(Kind::Unsupported),
            },
            Self::Plan(error) => Some(error.kind()),
            Self::Verify(_) | Self::Transport(_) => Some(Kind::Invalid),
            Self::Fill(FillError::SourceUnreadable { .. }) => None,
            Self::Fill(_) => Some(Kind::Invalid),
            Self::Write { fault, .. } => fault.kind(),
            Self::Replicas { .. } => Some(Kind::Invalid),
        }
    }
}

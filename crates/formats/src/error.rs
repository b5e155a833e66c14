//! What can be wrong with a checkpoint. Each error names the file and what is wrong in it.

use std::path::{Path, PathBuf};

use reshard_layout::{Kind, LayoutError};
use reshard_parallel::{Category, ParallelError};
use reshard_plan::{PlanError, VerifyError};
use reshard_transport::TransportError;

use crate::safetensors::SafetensorsFault;
use crate::shards::ShardsFault;
use crate::torch::TorchFault;
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
    /// A ZeRO checkpoint that contradicts itself, or is beyond this library.
    #[error("{}: {fault}", path.display())]
    Zero {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        fault: ZeroFault,
    },
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
            Self::Safetensors { fault, .. } => Some(fault.kind()),
            Self::Shards { fault, .. } => Some(fault.kind()),
            Self::Parallel(error) => match error.category() {
                Category::Usage => None,
                Category::Invalid => Some(Kind::Invalid),
                Category::Unsupported => Some(Kind::Unsupported),
            },
            Self::Plan(error) => Some(error.kind()),
            Self::Verify(_) | Self::Transport(_) => Some(Kind::Invalid),
        }
    }
}

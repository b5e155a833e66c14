//! What can be wrong with a checkpoint. Each error names the file and what is wrong in it.

use std::path::{Path, PathBuf};

use reshard_layout::{Kind, LayoutError};
use reshard_parallel::{Category, ParallelError};
use reshard_plan::{PlanError, VerifyError};
use reshard_transport::{FillError, TransportError};

use crate::checkpoint::Format;
use crate::dcp::DcpFault;
use crate::kept::Kept;
use crate::replicas::ReplicaFault;
use crate::safetensors::SafetensorsFault;
use crate::shards::ShardsFault;
use crate::torch::TorchFault;
use crate::universal::UniversalFault;
use crate::write::WriteFault;
use crate::zero::ZeroFault;
use crate::zero::write::WriteFault as ZeroWriteFault;

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
    /// A safetensors file, folder or index.
    #[error("{}: {fault}", path.display())]
    Safetensors {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: SafetensorsFault,
    },
    /// Files of which each belongs to a rank.
    #[error("{}: {fault}", path.display())]
    Shards {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: ShardsFault,
    },
    /// A torch file.
    #[error("{}: {fault}", path.display())]
    Torch {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: TorchFault,
    },
    /// A ZeRO checkpoint that contradicts itself, or is beyond this library.
    #[error("{}: {fault}", path.display())]
    Zero {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: ZeroFault,
    },
    /// A ZeRO checkpoint that cannot be written.
    #[error("{}: {fault}", path.display())]
    ZeroWrite {
        /// The source, or a file of it.
        path: PathBuf,
        /// Why not.
        fault: ZeroWriteFault,
    },
    /// A Universal checkpoint that cannot be read or written.
    #[error("{}: {fault}", path.display())]
    Universal {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: UniversalFault,
    },
    /// A checkpoint of torch.distributed.
    #[error("{}: {fault}", path.display())]
    Dcp {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: DcpFault,
    },
    /// An output that cannot be written.
    #[error("{}: {fault}", path.display())]
    Write {
        /// The output.
        path: PathBuf,
        /// Why not.
        fault: WriteFault,
    },
    /// Copies of one tensor that differ.
    #[error("{}: {fault}", path.display())]
    Replicas {
        /// The checkpoint.
        path: PathBuf,
        /// What differs where.
        fault: ReplicaFault,
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
    /// A path whose files are of no known format.
    #[error("{} holds no checkpoint: no safetensors, no `latest` or `latest_universal`, no `.metadata`", path.display())]
    NotACheckpoint {
        /// The path.
        path: PathBuf,
    },
    /// A folder that holds several checkpoints.
    #[error("{} holds several checkpoints: {}", path.display(), names(found))]
    Ambiguous {
        /// The folder.
        path: PathBuf,
        /// What it holds.
        found: Vec<Format>,
    },
    /// A tensor that a checkpoint does not keep.
    #[error("{} keeps no {wanted}; it keeps {}", path.display(), names(kept))]
    NotKept {
        /// The checkpoint.
        path: PathBuf,
        /// What was asked for.
        wanted: Kept,
        /// What there is.
        kept: Vec<Kept>,
    },
    /// A parameter of the model that a checkpoint does not have.
    #[error("{} has no {parameter}, which the model has", path.display())]
    ParameterMissing {
        /// The checkpoint.
        path: PathBuf,
        /// The parameter.
        parameter: String,
    },
    /// A tensor that the model's config does not imply, so that nobody knows how it is cut.
    #[error("{} has {parameter}, which the model's config does not imply", path.display())]
    ParameterUnknown {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        parameter: String,
    },
    /// A tensor of another shape than the model's config implies.
    #[error("{}: {parameter} has the shape {found:?}, the model's config implies {expected:?}", path.display())]
    ShapesDiffer {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        parameter: String,
        /// By the config.
        expected: Vec<u64>,
        /// In the checkpoint.
        found: Vec<u64>,
    },
    /// A topology that cannot be written.
    #[error("{topology} cannot be written as {to}: a topology {reason}")]
    TopologyUnsupported {
        /// The topology.
        topology: String,
        /// The format.
        to: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// A topology without a model.
    #[error("{topology} needs the model's config.json, and none lies beside the source")]
    ConfigMissing {
        /// The topology.
        topology: String,
    },
    /// A plan that cannot be carried out.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A window that cannot be filled.
    #[error(transparent)]
    Fill(FillError),
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
            Self::Io { .. } | Self::ConfigMissing { .. } | Self::NotKept { .. } | Self::Ambiguous { .. } => {
                None
            }
            Self::NotACheckpoint { .. }
            | Self::ParameterMissing { .. }
            | Self::ParameterUnknown { .. }
            | Self::ShapesDiffer { .. } => Some(Kind::Invalid),
            Self::TopologyUnsupported { .. } => Some(Kind::Unsupported),
            Self::Layout { error, .. } => Some(error.kind()),
            Self::Safetensors { fault, .. } => Some(fault.kind()),
            Self::Shards { fault, .. } => Some(fault.kind()),
            Self::Torch { fault, .. } => Some(fault.kind()),
            Self::Zero { fault, .. } => Some(fault.kind()),
            Self::ZeroWrite { fault, .. } => Some(fault.kind()),
            Self::Universal { fault, .. } => Some(fault.kind()),
            Self::Dcp { fault, .. } => Some(fault.kind()),
            Self::Write { fault, .. } => fault.kind(),
            Self::Replicas { .. } => Some(Kind::Invalid),
            Self::Parallel(error) => match error.category() {
                Category::Usage => None,
                Category::Invalid => Some(Kind::Invalid),
                Category::Unsupported => Some(Kind::Unsupported),
            },
            Self::Plan(error) => Some(error.kind()),
            Self::Verify(_) | Self::Transport(_) => Some(Kind::Invalid),
            Self::Fill(FillError::SourceUnreadable { .. }) => None,
            Self::Fill(_) => Some(Kind::Invalid),
        }
    }
}

fn names(items: &[impl std::fmt::Display]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

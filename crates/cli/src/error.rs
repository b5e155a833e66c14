//! Every way in which the program can end badly, its exit code, and a hint.

use std::path::PathBuf;

use reshard_formats::{FormatError, WriteFault};
use reshard_layout::{Kind, LayoutError};
use reshard_parallel::{Category, ParallelError};
use reshard_plan::{PlanError, ScheduleError, VerifyError};

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// Arguments that contradict each other or are missing.
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
    /// A file that cannot be read.
    #[error("{}: {cause}", path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    /// Output that cannot be written.
    #[error("cannot write to stdout: {cause}")]
    Write { cause: std::io::Error },
    /// A comparison that found differences; what differs has been said.
    #[cfg(feature = "demo")]
    #[error("{elements} elements differ")]
    Differs { elements: u64 },
    /// Two checkpoints that differ; what differs has been said.
    #[error("{parameters} tensors differ")]
    CheckpointsDiffer { parameters: u64 },
    /// A config or topology.
    #[error("{context}: {error}")]
    Parallel { context: String, error: ParallelError },
    /// A layout.
    #[error("{context}: {error}")]
    Layout { context: String, error: LayoutError },
    /// Two layouts that make no plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan whose messages make no rounds.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// The planner made a plan that its own check refuses.
    #[error("the plan is wrong, which is a fault of this program: {0}")]
    Verify(#[from] VerifyError),
    /// A checkpoint.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The demo.
    #[cfg(feature = "demo")]
    #[error(transparent)]
    Demo(#[from] reshard_trainer::TrainerError),
    /// Output that cannot be made.
    #[error("cannot make JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl CliError {
    pub(crate) fn exit_code(&self) -> u8 {
        let of_kind = |kind| match kind {
            Kind::Invalid => 3,
            Kind::Unsupported => 4,
            Kind::OverBudget => 5,
        };
        let of_category = |category| match category {
            Category::Usage => 2,
            Category::Invalid => 3,
            Category::Unsupported => 4,
        };
        match self {
            #[cfg(feature = "demo")]
            Self::Differs { .. } => 1,
            Self::CheckpointsDiffer { .. } => 1,
            Self::Usage { .. } => 2,
            Self::Read { .. } | Self::Write { .. } | Self::Json(_) => 6,
            Self::Parallel { error, .. } => of_category(error.category()),
            Self::Layout { error, .. } => of_kind(error.kind()),
            Self::Plan(error) => of_kind(error.kind()),
            Self::Schedule(error) => of_kind(error.kind()),
            Self::Verify(_) => 3,
            Self::Format(FormatError::Parallel(error)) => of_category(error.category()),
            Self::Format(error) => match error.kind() {
                Some(kind) => of_kind(kind),
                None if is_usage(error) => 2,
                None => 6,
            },
            #[cfg(feature = "demo")]
            Self::Demo(error) => error.category().exit_code(),
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Usage { hint, .. } => hint.clone(),
            Self::Parallel { error, .. } if is_grammar(error) => {
                Some("a topology is written engine:key=value,..., such as autotp:tp=2,dp=4,zero=2".to_owned())
            }
            Self::Plan(PlanError::MissingParameter { .. }) => {
                Some("both sides must name their parameters alike".to_owned())
            }
            Self::Plan(PlanError::DtypesDiffer { .. }) => {
                Some("--cast permits to cast from one float type to another".to_owned())
            }
            Self::Schedule(error) => error.hint().map(str::to_owned),
            Self::Format(error) => hint_of_format(error).map(str::to_owned),
            _ => None,
        }
    }
}

/// Whether a topology is not written as the grammar says, so that an example helps.
fn is_grammar(error: &ParallelError) -> bool {
    matches!(
        error,
        ParallelError::EngineUnknown { .. }
            | ParallelError::TopologyPart { .. }
            | ParallelError::KeyUnknown { .. }
    )
}

/// Whether the caller asked for what cannot be, and the system has nothing to do with it.
fn is_usage(error: &FormatError) -> bool {
    matches!(
        error,
        FormatError::ConfigMissing { .. }
            | FormatError::NotKept { .. }
            | FormatError::Ambiguous { .. }
            | FormatError::Write {
                fault: WriteFault::Exists
                    | WriteFault::NoName
                    | WriteFault::InsideInput { .. }
                    | WriteFault::HoldsInput { .. },
                ..
            }
    )
}

fn hint_of_format(error: &FormatError) -> Option<&'static str> {
    match error {
        FormatError::ConfigMissing { .. } => Some("--model takes a Hugging Face config.json"),
        FormatError::Ambiguous { .. } => Some("name the folder of the one that is meant, such as its tag"),
        FormatError::Replicas { .. } => Some("--trust-replicas reads one of them"),
        FormatError::ParameterMissing { .. }
        | FormatError::ParameterUnknown { .. }
        | FormatError::ShapesDiffer { .. } => {
            Some("--model takes the config.json of the model that was saved")
        }
        FormatError::Write { fault: WriteFault::Exists, .. } => Some("--force replaces it"),
        FormatError::Write { fault: WriteFault::CannotExchange { .. } | WriteFault::MountPoint, .. } => {
            Some("write under another name, or remove what is there first")
        }
        FormatError::Write { fault: WriteFault::MemoryTooSmall { .. }, .. } => {
            Some("--memory takes a size, such as 256MiB")
        }
        _ => None,
    }
}

//! How a caller should treat an error: one class an exit code, so that every program that runs the trainer ends alike.
//!
//! ```text
//! Differs 1   Usage 2   Invalid 3   Unsupported 4   OverBudget 5   Io 6   PeerFailed 7
//! ```

use reshard_formats::{FormatError, WriteFault};
use reshard_layout::Kind;
use reshard_transport::FillError;

use crate::error::TrainerError;

/// The class of a [`TrainerError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Category {
    /// Values differ that must be equal.
    Differs,
    /// What the user typed is wrong.
    Usage,
    /// An input contradicts itself, or makes no sense.
    Invalid,
    /// Legal, but the trainer cannot express it.
    Unsupported,
    /// Legal, but more work or memory than the limits allow.
    OverBudget,
    /// A file, a pipe or a message could not be read or written.
    Io,
    /// Another rank failed, or bytes could not be moved.
    PeerFailed,
}

impl Category {
    /// The exit code of a program that ends with such an error.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Differs => 1,
            Self::Usage => 2,
            Self::Invalid => 3,
            Self::Unsupported => 4,
            Self::OverBudget => 5,
            Self::Io => 6,
            Self::PeerFailed => 7,
        }
    }
}

impl From<Kind> for Category {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Invalid => Self::Invalid,
            Kind::Unsupported => Self::Unsupported,
            Kind::OverBudget => Self::OverBudget,
        }
    }
}

impl From<reshard_parallel::Category> for Category {
    fn from(category: reshard_parallel::Category) -> Self {
        match category {
            reshard_parallel::Category::Usage => Self::Usage,
            reshard_parallel::Category::Invalid => Self::Invalid,
            reshard_parallel::Category::Unsupported => Self::Unsupported,
        }
    }
}

impl TrainerError {
    /// How to treat it.
    #[must_use]
    pub fn category(&self) -> Category {
        match self {
            Self::InModel { cause, .. } | Self::Resume { cause, .. } => cause.category(),
            Self::Parallel(error) => error.category().into(),
            Self::Layout(error) => error.kind().into(),
            Self::Plan(error) => error.kind().into(),
            Self::Transport(error) => match error.category() {
                reshard_transport::Category::System => Category::Io,
                reshard_transport::Category::Invalid => Category::Invalid,
                reshard_transport::Category::Unsupported => Category::Unsupported,
                _ => Category::PeerFailed,
            },
            Self::Format(error) => match error.as_ref() {
                FormatError::Write { fault: WriteFault::Exists | WriteFault::NoName, .. } => Category::Usage,
                error => error.kind().map_or(Category::Io, Category::from),
            },
            Self::Fill(error) => match error.as_ref() {
                FillError::SourceUnreadable { .. } => Category::Io,
                _ => Category::Invalid,
            },
            Self::Drifted { .. } => Category::Differs,
            Self::RolloutTooLarge { .. }
            | Self::WorldTooLarge { .. }
            | Self::RanksRenamed { .. }
            | Self::ScratchMissing
            | Self::RolloutPartitioned { .. } => Category::Usage,
            Self::ModelTooLarge { .. } => Category::OverBudget,
            Self::DTypeUnsupported { .. }
            | Self::VocabularyTooSmall { .. }
            | Self::ModelUnsupported { .. } => Category::Unsupported,
            Self::Io { .. } | Self::Message(_) => Category::Io,
            Self::ModelInvalid { .. }
            | Self::CheckpointIncomplete { .. }
            | Self::TextTooShort { .. }
            | Self::Tensor(_)
            | Self::MissingWeight { .. }
            | Self::MissingGradient { .. }
            | Self::NotANumber { .. } => Category::Invalid,
        }
    }
}

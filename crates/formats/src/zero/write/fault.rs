//! Why a ZeRO checkpoint cannot be written.

use std::path::Path;

use reshard_layout::Kind;

use crate::error::FormatError;

/// What a topology or a source lacks for a ZeRO checkpoint.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteFault {
    /// Stage 0 has no ZeRO checkpoint.
    #[error("zero stage 0 keeps its optimizer in the files of the model: only stages 1, 2 and 3 are written")]
    StageZero,
    /// A checkpoint is of one copy.
    #[error("a checkpoint holds one copy of the model, the topology has {copies}")]
    Copies {
        /// Copies of the topology.
        copies: u32,
    },
    /// The source's optimizer has other groups than the engine's.
    #[error("the optimizer has {found} groups of parameters, the engine {expected}")]
    Groups {
        /// Groups of the engine.
        expected: usize,
        /// Groups of the source.
        found: usize,
    },
    /// Parameters that are not trained.
    #[error(
        "{parameter} and {others} other parameters are not trained, which the engine's layout does not express"
    )]
    Frozen {
        /// The first of them.
        parameter: String,
        /// How many more there are.
        others: usize,
    },
    /// A configuration that is no JSON.
    #[error("the configuration of deepspeed is no json: {reason}")]
    Config {
        /// What the reader met.
        reason: String,
    },
    /// A tag that is no name of a folder.
    #[error("{tag:?} is no name of a folder")]
    Tag {
        /// The tag.
        tag: String,
    },
    /// The source keeps no master weights.
    #[error("the source keeps no fp32 weights, from which an optimizer could go on")]
    NoMaster,
    /// A source that is neither ZeRO nor Universal.
    #[error("only zero and universal checkpoints say what a trainer needs to go on")]
    NoTrainer,
    /// A file of the source lacks an entry, or holds something else there.
    #[error("{entry:?} of {file} is missing, or not what deepspeed writes there")]
    Entry {
        /// The file.
        file: String,
        /// The key.
        entry: &'static str,
    },
    /// Something beside the weights that is too large, or too deep, to be taken over.
    #[error("{entry:?} holds {what}")]
    TakenOver {
        /// The key.
        entry: String,
        /// What is beyond the limit.
        what: &'static str,
    },
}

impl WriteFault {
    /// The error of a file or folder.
    pub(crate) fn at(self, path: &Path) -> FormatError {
        FormatError::ZeroWrite { path: path.to_owned(), fault: self }
    }

    /// Whether the source contradicts itself, is beyond this library, or over a limit.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::StageZero
            | Self::Copies { .. }
            | Self::Groups { .. }
            | Self::Frozen { .. }
            | Self::NoMaster
            | Self::NoTrainer => Kind::Unsupported,
            Self::TakenOver { .. } => Kind::OverBudget,
            Self::Config { .. } | Self::Tag { .. } | Self::Entry { .. } => Kind::Invalid,
        }
    }
}

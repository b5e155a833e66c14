//! Why an output is not written.

use std::path::PathBuf;

use reshard_layout::{Bytes, Kind};

use crate::kept::Kept;

/// What is wrong with where an output shall go, with what it shall hold, or with what it may take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WriteFault {
    /// Something is there already.
    #[error("it is there already")]
    Exists,
    /// What is there is no folder, and a folder shall be written.
    #[error("what is there is no folder")]
    NotAFolder,
    /// A path that names no folder that can be made.
    #[error("the path names no folder that can be written")]
    NoName,
    /// Another process writes it.
    #[error("another process is writing it")]
    Busy,
    /// The output would lie in the input, or be it.
    #[error("it lies in the input {}", input.display())]
    InsideInput {
        /// What is read.
        input: PathBuf,
    },
    /// The input lies in what would be replaced.
    #[error("the input {} lies in it", input.display())]
    HoldsInput {
        /// What is read.
        input: PathBuf,
    },
    /// The file system cannot exchange two folders in one step.
    #[error(
        "the file system ({file_system}) cannot exchange folders, so that what is there cannot be replaced"
    )]
    CannotExchange {
        /// Its kind.
        file_system: String,
    },
    /// Another file system is mounted there.
    #[error("another file system is mounted there, so that it cannot be replaced")]
    MountPoint,
    /// The disk has not the room.
    #[error("{needed} bytes are to be written, and {available} are free")]
    SpaceShort {
        /// What the output takes.
        needed: Bytes,
        /// What is free there.
        available: Bytes,
    },
    /// The limit of memory is below what one worker needs.
    #[error("{found} bytes of memory are too few: {needed} are needed")]
    MemoryTooSmall {
        /// The least.
        needed: Bytes,
        /// The limit.
        found: Bytes,
    },
    /// A file's path that is absolute, climbs, or is empty.
    #[error("{} is no path inside a folder", file.display())]
    PathClimbs {
        /// The path.
        file: PathBuf,
    },
    /// Two files of one path, or one that another would have to be a folder for.
    #[error("{} is named twice", file.display())]
    PathRepeated {
        /// The path.
        file: PathBuf,
    },
    /// Known bytes, a storage or a checksum that leaves its file, or two that overlap.
    #[error("{}: the {what} at bytes {begin} to {end} leaves the file of {length} bytes or overlaps others", file.display())]
    Misplaced {
        /// The file.
        file: PathBuf,
        /// Which of them.
        what: &'static str,
        /// Its first byte.
        begin: u64,
        /// One past its last byte.
        end: u64,
        /// The length of the file.
        length: u64,
    },
    /// A storage of a layout whose span has another length or no file.
    #[error("the storage {storage} has {expected} bytes and a span of {found}")]
    SpanDiffers {
        /// The storage's name.
        storage: String,
        /// The length of the storage.
        expected: Bytes,
        /// The length of the span; 0 if there is none.
        found: Bytes,
    },
    /// The output wants what the input does not have.
    #[error("the input has no {kept}")]
    KeptMissing {
        /// What is missing.
        kept: Kept,
    },
}

impl WriteFault {
    /// Whether it is a contradiction, beyond this library, or over a limit. `None`: the caller's choice.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Self::Exists | Self::NotAFolder | Self::NoName | Self::Busy => None,
            Self::InsideInput { .. } | Self::HoldsInput { .. } | Self::KeptMissing { .. } => None,
            Self::CannotExchange { .. } | Self::MountPoint => Some(Kind::Unsupported),
            Self::SpaceShort { .. } | Self::MemoryTooSmall { .. } => Some(Kind::OverBudget),
            Self::PathClimbs { .. } | Self::PathRepeated { .. } => Some(Kind::Invalid),
            Self::Misplaced { .. } | Self::SpanDiffers { .. } => Some(Kind::Invalid),
        }
    }
}

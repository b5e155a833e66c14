//! Why a plan is wrong for two layouts.

use reshard_layout::{BufferId, Bytes, Elements, Rank, Region};

/// Which side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What is read.
    Source,
    /// What is written.
    Target,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Target => "target",
        })
    }
}

/// Why a plan is wrong for two layouts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The plan is of another version of its form.
    #[error("the plan has version {found}, this library makes and proves version {expected}")]
    OtherVersion {
        /// The version of this library.
        expected: u32,
        /// The version of the plan.
        found: u32,
    },
    /// The plan was made for other storages or buffers.
    #[error("the plan's {side} buffers are not those of the {side} layout")]
    OtherPlaces {
        /// The side.
        side: Side,
    },
    /// A copy names a parameter that does not exist.
    #[error("copy {copy} names parameter {parameter} on the {side} side, which has no such parameter")]
    UnknownParameter {
        /// Position of the copy in the plan.
        copy: usize,
        /// Id or name.
        parameter: String,
        /// The side.
        side: Side,
    },
    /// The two layouts do not agree about what a parameter is, so that no copy between them is right.
    #[error("{parameter}: source and target differ in {what}")]
    SidesDiffer {
        /// The target's parameter.
        parameter: String,
        /// Shape, dtype (in a plan without casts, or of no float), scale, or the parameter that an alias stands for.
        what: &'static str,
    },
    /// The plan's sums are not those of its copies.
    #[error(
        "the plan says that {stated} bytes are sent and its copies send {found}, or ranks or local bytes differ"
    )]
    WrongStatistics {
        /// Sent bytes by the plan's statistics.
        stated: Bytes,
        /// Sent bytes by its copies.
        found: Bytes,
    },
    /// A copy names a buffer that does not exist.
    #[error("copy {copy} names {side} buffer {}, there are {buffers}", buffer.0)]
    UnknownBuffer {
        /// Position of the copy in the plan.
        copy: usize,
        /// The side.
        side: Side,
        /// The buffer.
        buffer: BufferId,
        /// Buffers of that side.
        buffers: usize,
    },
    /// A copy's box has another number of axes than its parameter, or a number past 2^64.
    #[error("{parameter}: copy {copy} has a malformed box or strides")]
    Malformed {
        /// The parameter.
        parameter: String,
        /// Position of the copy in the plan.
        copy: usize,
    },
    /// A copy's box does not lie where the copy says.
    #[error("{parameter}: copy {copy} takes box {region} at element {offset} of {side} buffer {}, rank {rank}, which does not hold it there", buffer.0)]
    WrongPlace {
        /// The parameter.
        parameter: String,
        /// Position of the copy in the plan.
        copy: usize,
        /// The side.
        side: Side,
        /// The box.
        region: Region,
        /// The buffer.
        buffer: BufferId,
        /// Its owner.
        rank: Rank,
        /// The element of the buffer.
        offset: Elements,
    },
    /// Two copies write one element.
    #[error("{parameter}: rank {rank} is written twice, by boxes {first} and {second}")]
    WrittenTwice {
        /// The parameter.
        parameter: String,
        /// The target rank.
        rank: Rank,
        /// One box.
        first: Region,
        /// The other.
        second: Region,
    },
    /// Some elements of a target holding are not written.
    #[error("{parameter}: {written} of the {expected} elements that rank {rank} wants are written")]
    NotWritten {
        /// The parameter.
        parameter: String,
        /// The target rank.
        rank: Rank,
        /// Elements of the holding.
        expected: Elements,
        /// Elements written.
        written: Elements,
    },
    /// The plan's padding is not the target layout's.
    #[error("the plan fills {found} boxes of padding, the target layout has {expected} or others")]
    OtherFills {
        /// Fills of the layout.
        expected: usize,
        /// Fills of the plan.
        found: usize,
    },
}

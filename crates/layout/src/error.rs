//! What can be wrong with a layout. Each finding names the parameter, rank, buffer, box and numbers.

use std::fmt;

use crate::places::{BufferId, StorageId};
use crate::region::{Dims, Region};
use crate::units::{Bytes, DType, Rank};

/// Whether something contradicts itself, or is true but not expressible here, or too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// True, but looking at it would take more work or memory than the limits allow.
    OverBudget,
    /// True, but this library does not express it.
    Unsupported,
    /// A contradiction: falling back would hide corruption.
    Invalid,
}

/// One thing that is wrong with a layout.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// Two parameters or aliases have one name.
    #[error("the name {name} is given twice")]
    RepeatedName {
        /// The name.
        name: String,
    },
    /// Two storages of one rank have one name.
    #[error("rank {rank} has two storages named {name}")]
    RepeatedStorage {
        /// Their owner.
        rank: Rank,
        /// The name.
        name: String,
    },
    /// A buffer reaches past its storage.
    #[error("buffer {} ends at byte {end} of storage {} ({name}, rank {rank}), which has {length}", buffer.0, storage.0)]
    BufferOutOfStorage {
        /// The buffer.
        buffer: BufferId,
        /// Its storage.
        storage: StorageId,
        /// The storage's name.
        name: String,
        /// The storage's owner.
        rank: Rank,
        /// One past the buffer's last byte.
        end: Bytes,
        /// The storage's length.
        length: Bytes,
    },
    /// A buffer does not begin at a multiple of its element size.
    #[error("buffer {} begins at byte {offset}, which is no multiple of the {size} bytes of {dtype}", buffer.0)]
    BufferMisaligned {
        /// The buffer.
        buffer: BufferId,
        /// Where it begins.
        offset: Bytes,
        /// Bytes of an element.
        size: u64,
        /// The element type.
        dtype: DType,
    },
    /// A buffer's dtype is not the parameter's.
    #[error("{parameter}: rank {rank} holds {found} in buffer {}, the parameter is {expected}", buffer.0)]
    DtypeDisagrees {
        /// The parameter.
        parameter: String,
        /// The holder.
        rank: Rank,
        /// The buffer.
        buffer: BufferId,
        /// The parameter's dtype.
        expected: DType,
        /// The buffer's dtype.
        found: DType,
    },
    /// A piece, or its strides, has another number of axes than the parameter.
    #[error("{parameter}: rank {rank} holds a box of {found} axes of a parameter of {expected}")]
    WrongAxes {
        /// The parameter.
        parameter: String,
        /// The holder.
        rank: Rank,
        /// The parameter's axes.
        expected: usize,
        /// The piece's axes.
        found: usize,
    },
    /// A geometry was made for another shape.
    #[error("{parameter}: rank {rank} holds boxes of shape {found:?}, the parameter has shape {expected:?}")]
    ShapeDisagrees {
        /// The parameter.
        parameter: String,
        /// The holder.
        rank: Rank,
        /// The parameter's shape.
        expected: Dims,
        /// The geometry's shape.
        found: Dims,
    },
    /// A box leaves the parameter.
    #[error("{parameter}: rank {rank} holds box {region}, which leaves the parameter's shape {shape:?}")]
    RegionOutOfParameter {
        /// The parameter.
        parameter: String,
        /// The holder.
        rank: Rank,
        /// The box.
        region: Region,
        /// The parameter's shape.
        shape: Dims,
    },
    /// An address lies past the buffer.
    #[error("{parameter}: rank {rank} holds box {region} up to element {end} of buffer {}, which has {length}", buffer.0)]
    PieceOutOfBuffer {
        /// The parameter.
        parameter: String,
        /// The holder.
        rank: Rank,
        /// The box.
        region: Region,
        /// The buffer.
        buffer: BufferId,
        /// One past the last element of the piece.
        end: u64,
        /// Elements of the buffer.
        length: u64,
    },
    /// Strides send two elements of one box to one address, or an axis has stride 0.
    #[error(
        "{parameter}: rank {rank} holds box {region} with strides {strides:?}, which address an element twice"
    )]
    SelfOverlap {
        /// The parameter.
        parameter: String,
        /// The holder.
        rank: Rank,
        /// The box.
        region: Region,
        /// Its strides.
        strides: Dims,
    },
    /// A scale of zero, or one that is not finite.
    #[error("{parameter}: rank {rank} stores box {region} with scale {scale}, which cannot be undone")]
    BadScale {
        /// The parameter.
        parameter: String,
        /// The holder.
        rank: Rank,
        /// The box.
        region: Region,
        /// The scale.
        scale: f64,
    },
    /// One byte of a storage belongs to two pieces.
    #[error("storage {} ({name}, rank {rank}): {first} and {second} share a byte", storage.0)]
    StorageOverlap {
        /// The storage.
        storage: StorageId,
        /// Its name.
        name: String,
        /// Its owner.
        rank: Rank,
        /// One of the two.
        first: String,
        /// The other.
        second: String,
    },
    /// A rank holds an element of a parameter at two places.
    #[error("{parameter}: rank {rank} holds both box {first} and box {second}")]
    HeldTwice {
        /// The parameter.
        parameter: String,
        /// The holder.
        rank: Rank,
        /// One box.
        first: Region,
        /// The other.
        second: Region,
    },
    /// No rank holds a part of a parameter.
    #[error("{parameter}: no rank holds box {region}, {missing} of {total} elements are missing")]
    Hole {
        /// The parameter.
        parameter: String,
        /// The largest missing box that was found first.
        region: Region,
        /// Elements that nobody holds.
        missing: u64,
        /// Elements of the parameter.
        total: u64,
    },
    /// A parameter has more than 2^64 bytes.
    #[error("{parameter}: shape {shape:?} does not fit in 64 bits")]
    TooLarge {
        /// The parameter.
        parameter: String,
        /// Its shape.
        shape: Dims,
    },
    /// A fill's value has not the length of one element.
    #[error("a fill of buffer {} has a value of {found} bytes, an element has {expected}", buffer.0)]
    FillValue {
        /// The buffer.
        buffer: BufferId,
        /// Bytes of an element.
        expected: u64,
        /// Bytes of the value.
        found: usize,
    },
    /// A rank number above what this library takes.
    #[error("rank {rank} is above the largest number {limit}")]
    RankTooLarge {
        /// The rank.
        rank: Rank,
        /// The largest number.
        limit: u32,
    },
    /// A fill whose shape and strides do not fit together, or that leaves its buffer or writes an address twice.
    #[error("a fill of buffer {} with extents {shape:?} and strides {strides:?} {fault}", buffer.0)]
    BadFill {
        /// The buffer.
        buffer: BufferId,
        /// Its extents.
        shape: Dims,
        /// Its strides.
        strides: Dims,
        /// What is wrong.
        fault: &'static str,
    },
    /// A run that is not part of the shard that it is said to be a run of.
    #[error("{parameter}: rank {rank} holds elements {first} to {end} of a shard of shape {shard:?}")]
    RunOutOfShard {
        /// The parameter.
        parameter: String,
        /// The holder.
        rank: Rank,
        /// First element of the run.
        first: u64,
        /// One past its last element.
        end: u64,
        /// Shape of the shard.
        shard: Dims,
    },
    /// A run of a shard that keeps a box with strides that are not the shard's own.
    #[error("{parameter}: rank {rank} holds a run of a shard of shape {shard:?} that is not row-major")]
    ShardNotRowMajor {
        /// The parameter.
        parameter: String,
        /// The holder.
        rank: Rank,
        /// Shape of the shard.
        shard: Dims,
    },
    /// Strides too irregular to prove free of overlap within the budget.
    #[error("{what}: strides are too irregular to prove that no address is used twice")]
    TooIrregular {
        /// What was checked: a parameter, or two that may share bytes.
        what: String,
    },
}

impl Finding {
    /// Whether it is a contradiction, beyond this library, or over a limit.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::TooIrregular { .. } => Kind::OverBudget,
            Self::ShardNotRowMajor { .. } => Kind::Unsupported,
            _ => Kind::Invalid,
        }
    }
}

/// A layout that cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// The layout breaks an invariant.
    #[error("{}", list(findings))]
    Findings {
        /// All that was found, at least one.
        findings: Vec<Finding>,
    },
    /// An affine map contradicts itself.
    #[error("{parameter}: {fault}")]
    AffineMap {
        /// The parameter.
        parameter: String,
        /// What is wrong.
        fault: Box<crate::affine::AffineFault>,
    },
    /// A layout file that is not of the documented form.
    #[error("not a layout file: {cause}")]
    LayoutFile {
        /// What the reader found.
        cause: String,
    },
}

impl LayoutError {
    /// The worst kind of all findings.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Findings { findings } => findings.iter().map(Finding::kind).max().unwrap_or(Kind::Invalid),
            Self::AffineMap { fault, .. } => fault.kind(),
            Self::LayoutFile { .. } => Kind::Invalid,
        }
    }
}

const SHOWN: usize = 5;

fn list(findings: &[Finding]) -> impl fmt::Display {
    let mut text = findings.iter().take(SHOWN).map(Finding::to_string).collect::<Vec<_>>().join("; ");
    if findings.len() > SHOWN {
        text.push_str(&format!("; and {} more", findings.len() - SHOWN));
    }
    text
}

//! The public affine-map form (DeepSpeed's `ParamAffineMap` as JSON), read into layouts and written from them.
//!
//! ```text
//! {"logical_shape": [18, 4],
//!  "ranks": {"0": {"shard_shape": [9, 4],
//!                  "pieces": [{"shape": [9, 4],
//!                              "source": [0, [4, 1]],      where the block lies in the whole parameter
//!                              "dest":   [0, [4, 1]],      where it lies in rank 0's shard
//!                              "locations": [0]}]}, ...}}   all ranks that hold it
//! ```
//!
//! `source` and `dest` name the direction whole -> shard on both sides of a plan. Offsets and strides count
//! elements. Form and rules: DeepSpeed 0.19.8, `checkpoint/affine.py` and `checkpoint/affine_transfer.py`.

mod holders;
mod keys;
mod read;
mod shards;
mod write;

pub use read::layout_of;
pub use write::maps_of;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::error::Kind;
use crate::region::Dims;
use crate::units::DType;

/// Where every block of one parameter lies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AffineMap {
    /// Shape of the whole parameter.
    pub logical_shape: Vec<u64>,
    /// What each rank holds.
    #[serde(deserialize_with = "keys::unique")]
    pub ranks: IndexMap<String, AffineShard>,
}

/// What one rank holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AffineShard {
    /// Shape of the rank's shard; one axis where it is a flat buffer.
    pub shard_shape: Vec<u64>,
    /// The blocks in it.
    pub pieces: Vec<AffinePiece>,
}

/// One block: `shape`, and an address in the whole parameter and in the shard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AffinePiece {
    /// Extents.
    pub shape: Vec<i64>,
    /// Offset and strides in the whole, row-major parameter.
    pub source: (i64, Vec<i64>),
    /// Offset and strides in the shard.
    pub dest: (i64, Vec<i64>),
    /// Every rank that holds this block.
    pub locations: Vec<u32>,
    /// Shard value = whole value x scale; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<f64>,
}

/// A layout file: `{"version": 1, "dtype": "bf16", "parameters": {name: affine map}}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AffineFile {
    /// Version of the form: 1.
    pub version: u32,
    /// Type of every parameter's elements.
    pub dtype: DType,
    /// The parameters, in order.
    #[serde(deserialize_with = "keys::unique")]
    pub parameters: IndexMap<String, AffineMap>,
}

/// The version of the file form that is read and written.
pub(crate) const VERSION: u32 = 1;

/// What can be wrong with one affine map, beyond what is wrong with any layout.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AffineFault {
    /// A rank's key is not a number.
    #[error("the rank {key:?} is not a number")]
    RankKey {
        /// The key.
        key: String,
    },
    /// A shape, stride vector or piece has the wrong number of axes.
    #[error("rank {rank}: a piece has {what} of {found} axes, the parameter has {expected}")]
    Axes {
        /// The rank.
        rank: u32,
        /// Which vector.
        what: &'static str,
        /// Axes of the parameter.
        expected: usize,
        /// Axes found.
        found: usize,
    },
    /// A negative extent, offset or stride.
    #[error("rank {rank}: a piece has {what} {value}")]
    Negative {
        /// The rank.
        rank: u32,
        /// Which number.
        what: &'static str,
        /// Its value.
        value: i64,
    },
    /// A piece that names no holder.
    #[error("rank {rank}: a piece names no holder")]
    NoHolder {
        /// The rank.
        rank: u32,
    },
    /// A block that leaves the parameter or the shard.
    #[error(
        "rank {rank}: a piece at offset {offset} with extents {extent:?} leaves the {what} of shape {shape:?}"
    )]
    Leaves {
        /// The rank.
        rank: u32,
        /// Parameter or shard.
        what: &'static str,
        /// The offset.
        offset: u64,
        /// The extents.
        extent: Dims,
        /// The shape that it leaves.
        shape: Dims,
    },
    /// Pieces that do not fill the shard.
    #[error("rank {rank}: pieces account for {found} of the shard's {expected} elements")]
    ShardNotFilled {
        /// The rank.
        rank: u32,
        /// Elements of the shard.
        expected: u64,
        /// Elements of the pieces.
        found: u64,
    },
    /// Declared holders that are not the true ones.
    #[error("rank {rank}: a piece declares the holders {declared:?}, held by {found:?}")]
    Holders {
        /// The rank whose piece it is.
        rank: u32,
        /// What the piece declares.
        declared: Vec<u32>,
        /// Who holds it.
        found: Vec<u32>,
    },
    /// Strides that make a block no box of the parameter.
    #[error(
        "rank {rank}: strides {strides:?} over extents {extent:?} make no box of a parameter of shape {shape:?}"
    )]
    NotABox {
        /// The rank.
        rank: u32,
        /// The strides.
        strides: Vec<i64>,
        /// The extents.
        extent: Dims,
        /// The parameter's shape.
        shape: Dims,
    },
    /// A parameter or shard whose elements do not fit in 64 bits.
    #[error("a tensor of shape {shape:?} does not fit in 64 bits")]
    TooLarge {
        /// The shape.
        shape: Vec<u64>,
    },
    /// A map in a shape that is no view of the parameter's.
    #[error("a map of shape {view:?} is no view of a parameter of shape {shape:?}")]
    NotAView {
        /// The map's logical shape.
        view: Vec<u64>,
        /// The parameter's.
        shape: Dims,
    },
    /// More rows in turn than are worth a piece each.
    #[error("rank {rank}: a piece stands for {found} boxes, more than {limit}")]
    TooManyBoxes {
        /// The rank.
        rank: u32,
        /// Boxes that it would take.
        found: u64,
        /// The limit.
        limit: u64,
    },
}

impl AffineFault {
    /// Whether the map contradicts itself, or is beyond this library or over a limit.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::NotABox { .. } | Self::NotAView { .. } => Kind::Unsupported,
            Self::TooManyBoxes { .. } => Kind::OverBudget,
            _ => Kind::Invalid,
        }
    }
}

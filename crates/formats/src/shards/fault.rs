//! What can be wrong with files of one rank each.

use reshard_layout::{DType, Kind};

use super::metadata::KEY;
use crate::safetensors::shown;

/// Why files of one rank each cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShardsFault {
    /// A file that does not say which shard it is.
    #[error("the metadata has no key {KEY}: this is no file of one rank")]
    NoLayout,
    /// A layout that is none.
    #[error("the layout under the key {KEY} is not what it should be: {cause}")]
    Json {
        /// What the parser says, with the name of the entry.
        cause: serde_json::Error,
    },
    /// A version that this program does not know.
    #[error("version {found} of the layout under the key {KEY}, this program knows {known}")]
    Version {
        /// The version.
        found: u64,
        /// The known one.
        known: u64,
    },
    /// A number of ranks above the limit.
    #[error("{world} ranks, at most {limit} are allowed")]
    WorldTooLarge {
        /// The number.
        world: usize,
        /// The limit.
        limit: u32,
    },
    /// A rank that is not one of the world's.
    #[error("rank {rank} of {world} ranks")]
    RankOutOfWorld {
        /// The rank.
        rank: u32,
        /// The number of ranks.
        world: u32,
    },
    /// Two files of other worlds.
    #[error("{found} ranks, {first} says {expected}")]
    WorldDisagrees {
        /// Ranks by the first file.
        expected: u32,
        /// Ranks by this one.
        found: u32,
        /// The first file.
        first: String,
    },
    /// Two files of other topologies.
    #[error("topology {found}, {first} says {expected}")]
    TopologyDisagrees {
        /// Topology of the first file.
        expected: String,
        /// Topology of this one.
        found: String,
        /// The first file.
        first: String,
    },
    /// Two files of one rank.
    #[error("rank {rank}, which {first} is too")]
    RankTwice {
        /// The rank.
        rank: u32,
        /// The other file.
        first: String,
    },
    /// Ranks without a file.
    #[error("{} of {world} ranks have no file: {}", ranks.len(), shown(ranks))]
    RanksAbsent {
        /// The number of ranks.
        world: u32,
        /// Those that are absent, in order.
        ranks: Vec<String>,
    },
    /// One parameter twice in a layout.
    #[error("duplicate name {name} in the layout")]
    RepeatedName {
        /// The name.
        name: String,
    },
    /// A tensor of which the layout does not say what it is.
    #[error("{tensor}: the layout does not say which part of the parameter it is")]
    NoEntry {
        /// The tensor.
        tensor: String,
    },
    /// A shard that the layout describes and the file has not.
    #[error("{parameter}: in the layout, and no tensor of the file")]
    NoTensor {
        /// The parameter.
        parameter: String,
    },
    /// A box with another number of axes than the parameter, or a corner that does not fit in 64 bits.
    #[error("{parameter}: no box of a parameter of shape {shape:?}")]
    NotABox {
        /// The parameter.
        parameter: String,
        /// Its shape.
        shape: Vec<u64>,
    },
    /// A tensor that is smaller than the parameter, and nothing to say which part of it.
    #[error(
        "{parameter}: a tensor of shape {tensor:?} of a parameter of shape {shape:?}, without origin or boxes"
    )]
    NoOrigin {
        /// The parameter.
        parameter: String,
        /// Its shape.
        shape: Vec<u64>,
        /// The tensor's shape.
        tensor: Vec<u64>,
    },
    /// More boxes than are looked at.
    #[error("{parameter}: a shard of {boxes} boxes, at most {limit} are allowed")]
    TooManyBoxes {
        /// The parameter.
        parameter: String,
        /// The number.
        boxes: usize,
        /// The limit.
        limit: usize,
    },
    /// An entry with one box and with several.
    #[error("{parameter}: an origin and boxes, of which one alone can be meant")]
    OriginAndBoxes {
        /// The parameter.
        parameter: String,
    },
    /// A shard of a type below a byte.
    #[error("{tensor}: {dtype} elements of less than a byte cannot be cut into shards")]
    Packed {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: &'static str,
    },
    /// A parameter of a type below a byte that is cut, or that does not take the bytes that it has.
    #[error("{parameter}: {dtype} of shape {shape:?} is not the whole of a parameter of {found:?} bytes")]
    PackedNotWhole {
        /// The parameter.
        parameter: String,
        /// Its stored type.
        dtype: String,
        /// Its stored shape.
        shape: Vec<u64>,
        /// Its shape in the layout.
        found: Vec<u64>,
    },
    /// A type that safetensors files have not.
    #[error("{parameter}: safetensors has no type {dtype}")]
    UnknownType {
        /// The parameter.
        parameter: String,
        /// Its type.
        dtype: DType,
    },
    /// Two ranks with other ideas of a parameter.
    #[error("{parameter}: rank {rank} says {found}, rank {first} says {expected}")]
    ParameterDisagrees {
        /// The parameter.
        parameter: String,
        /// The rank that came first.
        first: u32,
        /// Type and shape by it.
        expected: String,
        /// The other rank.
        rank: u32,
        /// Type and shape by that.
        found: String,
    },
    /// A shard with scaled values.
    #[error("{parameter}: rank {rank} keeps scaled values, which files of shards do not express")]
    Scaled {
        /// The parameter.
        parameter: String,
        /// The rank.
        rank: u32,
    },
    /// A shard with elements that belong to no box.
    #[error("{parameter}: rank {rank} has a shard of {elements} elements, its boxes have {held}")]
    Padded {
        /// The parameter.
        parameter: String,
        /// The rank.
        rank: u32,
        /// Elements of the shard.
        elements: u64,
        /// Elements of its boxes.
        held: u64,
    },
}

impl ShardsFault {
    /// Whether it is a contradiction, beyond this library, or over a limit.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::WorldTooLarge { .. } | Self::TooManyBoxes { .. } => Kind::OverBudget,
            Self::Version { .. }
            | Self::Packed { .. }
            | Self::UnknownType { .. }
            | Self::Scaled { .. }
            | Self::Padded { .. } => Kind::Unsupported,
            _ => Kind::Invalid,
        }
    }
}

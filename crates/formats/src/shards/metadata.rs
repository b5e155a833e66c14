//! What the file of a rank says about its tensors: a JSON text under one key of the header's metadata.
//!
//! ```text
//!   {"version": 1, "rank": 1, "world": 2, "topology": "autotp:tp=2", "parameters": {
//!      "norm": {"shape": [8]},                          the tensor is the whole parameter
//!      "up":   {"shape": [6, 4], "origin": [3, 0]},     the tensor is the box that begins there
//!      "qkv":  {"shape": [9, 4], "boxes": [             boxes of the parameter, and where each lies in the tensor
//!         {"origin": [1, 0], "extent": [1, 4], "offset": 0, "strides": [4, 1]}, ... ]}}}
//! ```
//!
//! Offsets and strides count elements of the tensor.

use indexmap::IndexMap;
use reshard_layout::{Block, Elements, Geometry, Region, row_major};
use serde::{Deserialize, Serialize};

use super::fault::ShardsFault;
use crate::safetensors::json::Entries;

/// The key of the metadata.
pub const KEY: &str = "reshard";

/// The version that is read and written.
pub const VERSION: u64 = 1;

/// Ranks of one checkpoint.
pub const WORLD_MAX: u32 = 1 << 20;

/// Boxes of one shard.
pub const BOXES_MAX: usize = 4_096;

/// What the file of one rank holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankLayout {
    /// The rank.
    pub rank: u32,
    /// The number of ranks.
    pub world: u32,
    /// How the model is cut, as its writer put it.
    pub topology: String,
    /// What each tensor of the file is.
    pub entries: IndexMap<String, Entry>,
}

/// What one tensor is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Shape of the whole parameter.
    pub shape: Vec<u64>,
    /// Lowest corner of the only box, which has the tensor's shape. Neither this nor boxes: all of the parameter,
    /// and never a guess at an even cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Vec<u64>>,
    /// The boxes, where they are several or lie otherwise than row after row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boxes: Option<Vec<StoredBox>>,
    /// Stored type and shape of a parameter of a type below a byte, which lies as bytes in the layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<(String, Vec<u64>)>,
}

/// A box of a parameter, and where it lies in the tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredBox {
    /// Its lowest corner.
    pub origin: Vec<u64>,
    /// Its extents.
    pub extent: Vec<u64>,
    /// Element of the tensor at which it begins.
    pub offset: u64,
    /// Elements between neighbours along each axis.
    pub strides: Vec<u64>,
}

#[derive(Deserialize)]
struct VersionOnly {
    version: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    version: u64,
    rank: u32,
    world: u32,
    topology: String,
    parameters: Entries<Entry>,
}

impl RankLayout {
    /// Reads the JSON under the key.
    ///
    /// # Errors
    /// [`ShardsFault`]; a newer version is refused before anything else of it is looked at.
    pub fn parse(json: &str) -> Result<Self, ShardsFault> {
        let invalid = |cause| ShardsFault::Json { cause };
        let VersionOnly { version } = serde_json::from_str(json).map_err(invalid)?;
        if version != VERSION {
            return Err(ShardsFault::Version { found: version, known: VERSION });
        }
        let raw: Raw = serde_json::from_str(json).map_err(invalid)?;
        let Raw { rank, world, topology, parameters, .. } = raw;
        if world > WORLD_MAX {
            return Err(ShardsFault::WorldTooLarge { world: world as usize, limit: WORLD_MAX });
        }
        if rank >= world {
            return Err(ShardsFault::RankOutOfWorld { rank, world });
        }
        let entries = parameters.unique().map_err(|name| ShardsFault::RepeatedName { name })?;
        Ok(Self { rank, world, topology, entries })
    }

    /// The JSON that [`parse`](Self::parse) reads.
    ///
    /// # Errors
    /// [`ShardsFault::Json`] if there is no text for it, which does not happen.
    pub fn to_json(&self) -> Result<String, ShardsFault> {
        let entries = self.entries.iter().map(|(name, entry)| (name.clone(), entry.clone()));
        let raw = Raw {
            version: VERSION,
            rank: self.rank,
            world: self.world,
            topology: self.topology.clone(),
            parameters: Entries(entries.collect()),
        };
        serde_json::to_string(&raw).map_err(|cause| ShardsFault::Json { cause })
    }
}

impl Entry {
    /// The entry of a tensor of shape `tensor` whose boxes lie as `geometry` says, in the shortest form.
    pub(super) fn of(tensor: &[u64], geometry: &Geometry, packed: Option<(String, Vec<u64>)>) -> Self {
        let shape = geometry.shape().to_vec();
        let (mut origin, mut boxes) = (None, None);
        match geometry.blocks() {
            [block] if *geometry == one_box(&shape, block.region.origin(), tensor) => {
                origin = Some(block.region.origin().to_vec()).filter(|_| tensor != shape);
            }
            [] if tensor == shape => {}
            blocks => boxes = Some(blocks.iter().map(StoredBox::of).collect()),
        }
        Self { shape, origin, boxes, packed }
    }

    /// Which boxes of the parameter lie where in a tensor of shape `tensor`.
    pub(super) fn geometry(&self, name: &str, tensor: &[u64]) -> Result<Geometry, ShardsFault> {
        let zeros = vec![0; self.shape.len()];
        let whole = StoredBox::dense(self.origin.as_ref().unwrap_or(&zeros), tensor);
        let boxes = match (&self.origin, &self.boxes) {
            (Some(_), Some(_)) => return Err(ShardsFault::OriginAndBoxes { parameter: name.to_owned() }),
            (None, None) if tensor != self.shape => {
                let (parameter, shape) = (name.to_owned(), self.shape.clone());
                return Err(ShardsFault::NoOrigin { parameter, shape, tensor: tensor.to_vec() });
            }
            (_, Some(boxes)) => boxes.as_slice(),
            (_, None) => std::slice::from_ref(&whole),
        };
        if boxes.len() > BOXES_MAX {
            let (parameter, boxes) = (name.to_owned(), boxes.len());
            return Err(ShardsFault::TooManyBoxes { parameter, boxes, limit: BOXES_MAX });
        }
        let not_a_box = || ShardsFault::NotABox { parameter: name.to_owned(), shape: self.shape.clone() };
        let blocks: Option<Vec<Block>> = boxes.iter().map(|one| one.block(&self.shape)).collect();
        Ok(Geometry::new(self.shape.iter().copied(), blocks.ok_or_else(not_a_box)?))
    }
}

impl StoredBox {
    fn of(block: &Block) -> Self {
        Self {
            origin: block.region.origin().to_vec(),
            extent: block.region.extent().to_vec(),
            offset: block.offset.0,
            strides: block.strides.to_vec(),
        }
    }

    /// A box of these extents that lies row after row from the start.
    fn dense(origin: &[u64], extent: &[u64]) -> Self {
        let strides = row_major(extent).to_vec();
        Self { origin: origin.to_vec(), extent: extent.to_vec(), offset: 0, strides }
    }

    /// The block, if it is a box inside a parameter of this shape.
    fn block(&self, shape: &[u64]) -> Option<Block> {
        let Self { origin, extent, offset, strides } = self;
        let axes = [origin.len(), extent.len(), strides.len()];
        if axes != [shape.len(); 3] {
            return None;
        }
        let inside =
            |axis: usize| origin[axis].checked_add(extent[axis]).is_some_and(|end| end <= shape[axis]);
        if !(0..shape.len()).all(inside) {
            return None;
        }
        let region = Region::new(origin.iter().copied(), extent.iter().copied());
        Some(Block::new(region, Elements(*offset), strides.iter().copied()))
    }
}

/// The geometry of one box at `origin` that lies row after row.
fn one_box(shape: &[u64], origin: &[u64], extent: &[u64]) -> Geometry {
    let block = StoredBox::dense(origin, extent).block(shape);
    Geometry::new(shape.iter().copied(), block)
}

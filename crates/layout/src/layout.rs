//! A layout: which box of which parameter lies where in which buffer of which rank.
//!
//! ```text
//!   parameters      instances (parameter, buffer, base, geometry)        places
//!   0 "up" (18,4)   0  buffer 0  base  0  geometry 0 = rows 0..9         storage 0 rank 0 | buffer 0
//!                   0  buffer 1  base 36  geometry 1 = rows 9..18        storage 1 rank 1 | buffer 1
//! ```

use std::ops::Range;

use indexmap::{IndexMap, IndexSet};
use serde::{Deserialize, Serialize};

use crate::check;
use crate::error::{Finding, LayoutError};
use crate::geometry::{Block, Geometry, GeometryId};
use crate::places::{Buffer, BufferId, ParameterId, Places, Storage, StorageId};
use crate::region::{Dims, Region};
use crate::shard::{RunFault, Shard, ShardId, Shards};
use crate::units::{Bytes, DType, Elements, Rank};

/// A logical tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Parameter {
    /// Its name, unique in the layout.
    pub name: String,
    /// Its extents; empty for a scalar.
    pub shape: Dims,
    /// The type of its elements.
    pub dtype: DType,
}

/// One holding: a geometry at a base address of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instance {
    /// What is held.
    pub parameter: ParameterId,
    /// The process that holds it: the owner of the buffer's storage.
    pub rank: Rank,
    /// Where it is held.
    pub buffer: BufferId,
    /// Element of the buffer that the geometry's offsets count from.
    pub base: Elements,
    /// Which boxes, and how they lie.
    pub geometry: GeometryId,
}

/// One block of one instance, with its offset counted from the start of the buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece<'a> {
    /// What is held.
    pub parameter: ParameterId,
    /// The process that holds it.
    pub rank: Rank,
    /// The box of the parameter.
    pub region: &'a Region,
    /// Where it lies.
    pub buffer: BufferId,
    /// Element of the buffer at which the box begins.
    pub offset: Elements,
    /// Elements between neighbours along each axis.
    pub strides: &'a Dims,
    /// Stored value = logical value x scale.
    pub scale: f64,
}

/// Target padding: a box of a buffer, and the value that each of its elements must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fill {
    /// Where it lies.
    pub buffer: BufferId,
    /// First element.
    pub offset: Elements,
    /// Extents of the box.
    pub shape: Dims,
    /// Elements between neighbours along each axis.
    pub strides: Dims,
    /// The bytes of one element, little-endian, as many as the dtype has.
    pub value: Vec<u8>,
}

/// Parameters, and where every element of each lies.
///
/// Invariants, in the order in which [`LayoutBuilder::build`] checks them:
/// 1. buffers lie inside their storages;
/// 2. each geometry is sound (see [`Geometry`]) and has the shape and dtype of its parameter and buffer;
/// 3. every address lies inside its buffer;
/// 4. no byte of a storage belongs to two pieces or fills;
/// 5. no rank holds an element of a parameter twice;
/// 6. the ranks together hold every element of every parameter.
///
/// It is serialised in full, and checked again when it is read.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "crate::parts::Parts", into = "crate::parts::Parts")]
pub struct Layout {
    pub(crate) parameters: IndexMap<String, Parameter>,
    pub(crate) aliases: IndexMap<String, ParameterId>,
    pub(crate) places: Places,
    pub(crate) geometries: IndexSet<Geometry>,
    pub(crate) instances: Vec<Vec<Instance>>,
    pub(crate) fills: Vec<Fill>,
}

impl PartialEq for Layout {
    fn eq(&self, other: &Self) -> bool {
        self.parameters == other.parameters
            && self.aliases == other.aliases
            && self.places == other.places
            && self.fills == other.fills
            && self.pieces().eq(other.pieces())
    }
}

impl Layout {
    /// The parameters, in order of their ids.
    pub fn parameters(&self) -> impl ExactSizeIterator<Item = (ParameterId, &Parameter)> {
        self.parameters.values().enumerate().map(|(index, parameter)| (parameter_id(index), parameter))
    }

    /// The parameter with this id.
    ///
    /// # Panics
    /// If the id belongs to another layout.
    #[must_use]
    pub fn parameter(&self, id: ParameterId) -> &Parameter {
        &self.parameters[id.index()]
    }

    /// Looks a parameter up by its name or an alias.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<ParameterId> {
        self.parameters.get_index_of(name).map(parameter_id).or_else(|| self.aliases.get(name).copied())
    }

    /// Second names of parameters (tied weights).
    pub fn aliases(&self) -> impl Iterator<Item = (&str, ParameterId)> {
        self.aliases.iter().map(|(name, id)| (name.as_str(), *id))
    }

    /// The known name nearest to one that is not known, by edit distance: for hints.
    #[must_use]
    pub fn nearest_name(&self, name: &str) -> Option<&str> {
        let names = self.parameters.keys().chain(self.aliases.keys());
        names.map(String::as_str).min_by_key(|known| edit_distance(known, name))
    }

    /// Storages and buffers.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// All holdings of one parameter, ordered by rank, buffer and base.
    ///
    /// # Panics
    /// If the id belongs to another layout.
    #[must_use]
    pub fn instances(&self, parameter: ParameterId) -> &[Instance] {
        &self.instances[parameter.index()]
    }

    /// The geometry with this id.
    ///
    /// # Panics
    /// If the id belongs to another layout.
    #[must_use]
    pub fn geometry(&self, id: GeometryId) -> &Geometry {
        &self.geometries[id.0 as usize]
    }

    /// The number of distinct geometries.
    #[must_use]
    pub fn geometry_count(&self) -> usize {
        self.geometries.len()
    }

    /// Target padding.
    #[must_use]
    pub fn fills(&self) -> &[Fill] {
        &self.fills
    }

    /// Every piece, by parameter, then rank, buffer and base.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.parameters().flat_map(|(id, _)| self.pieces_of(id))
    }

    /// Every piece of one parameter, by rank, buffer and base.
    ///
    /// # Panics
    /// If the id belongs to another layout.
    pub fn pieces_of(&self, parameter: ParameterId) -> impl Iterator<Item = Piece<'_>> {
        self.instances(parameter).iter().flat_map(|instance| {
            self.geometry(instance.geometry).blocks().iter().map(|block| piece(instance, block))
        })
    }

    /// The number of pieces, counted per instance and not by walking them.
    #[must_use]
    pub fn piece_count(&self) -> u64 {
        let blocks = |instance: &Instance| self.geometry(instance.geometry).blocks().len() as u64;
        self.instances.iter().flatten().map(blocks).sum()
    }

    /// One past the highest rank that owns a storage.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.places.storages.iter().map(|storage| storage.rank.0 + 1).max().unwrap_or(0)
    }

    /// A hash of all that the layout says: equal for layouts that were built alike, on every machine.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        crate::fingerprint::of(self)
    }

    pub(crate) fn all_instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.iter().flatten()
    }

    pub(crate) fn geometries(&self) -> impl Iterator<Item = (GeometryId, &Geometry)> {
        (0u32..).map(GeometryId).zip(&self.geometries)
    }
}

fn piece<'a>(instance: &Instance, block: &'a Block) -> Piece<'a> {
    Piece {
        parameter: instance.parameter,
        rank: instance.rank,
        region: &block.region,
        buffer: instance.buffer,
        offset: instance.base + block.offset,
        strides: &block.strides,
        scale: block.scale,
    }
}

fn geometry_id(index: usize) -> GeometryId {
    GeometryId(u32::try_from(index).unwrap_or(u32::MAX))
}

fn parameter_id(index: usize) -> ParameterId {
    ParameterId(u32::try_from(index).unwrap_or(u32::MAX))
}

/// Collects a layout; [`build`](Self::build) checks it.
#[derive(Clone, Debug, Default)]
pub struct LayoutBuilder {
    parameters: IndexMap<String, Parameter>,
    aliases: IndexMap<String, ParameterId>,
    findings: Vec<Finding>,
    places: Places,
    geometries: IndexSet<Geometry>,
    shards: Shards,
    instances: Vec<Vec<Instance>>,
    fills: Vec<Fill>,
}

impl LayoutBuilder {
    /// An empty layout.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a parameter. A repeated name is reported by `build`.
    pub fn parameter(
        &mut self,
        name: &str,
        shape: impl IntoIterator<Item = u64>,
        dtype: DType,
    ) -> ParameterId {
        self.note_repetition(name);
        let parameter = Parameter { name: name.to_owned(), shape: shape.into_iter().collect(), dtype };
        let (index, _) = self.parameters.insert_full(name.to_owned(), parameter);
        self.instances.resize_with(self.parameters.len(), Vec::new);
        parameter_id(index)
    }

    /// Gives a parameter a second name, as tied weights have.
    pub fn alias(&mut self, name: &str, parameter: ParameterId) {
        self.note_repetition(name);
        self.aliases.insert(name.to_owned(), parameter);
    }

    fn note_repetition(&mut self, name: &str) {
        if self.parameters.contains_key(name) || self.aliases.contains_key(name) {
            self.findings.push(Finding::RepeatedName { name: name.to_owned() });
        }
    }

    /// Adds a storage of a rank.
    pub fn storage(&mut self, rank: Rank, name: &str, length: Bytes) -> StorageId {
        self.places.storages.push(Storage { rank, name: name.to_owned(), length });
        StorageId(u32::try_from(self.places.storages.len() - 1).unwrap_or(u32::MAX))
    }

    /// Adds a typed window of a storage.
    pub fn buffer(&mut self, storage: StorageId, offset: Bytes, dtype: DType, length: Elements) -> BufferId {
        self.places.buffers.push(Buffer { storage, offset, dtype, length });
        BufferId(u32::try_from(self.places.buffers.len() - 1).unwrap_or(u32::MAX))
    }

    /// Interns a geometry.
    pub fn geometry(&mut self, geometry: Geometry) -> GeometryId {
        geometry_id(self.geometries.insert_full(geometry).0)
    }

    /// Says that `buffer` holds `parameter` as `geometry` describes, counted from element `base`.
    ///
    /// # Panics
    /// If an id is not one of this builder's.
    pub fn place(&mut self, parameter: ParameterId, buffer: BufferId, base: Elements, geometry: GeometryId) {
        let rank = self.places.rank_of(buffer);
        self.instances[parameter.index()].push(Instance { parameter, rank, buffer, base, geometry });
    }

    /// Interns a shard, for [`place_run`](Self::place_run).
    pub fn shard(&mut self, shard: Shard) -> ShardId {
        self.shards.intern(shard)
    }

    /// Says that `buffer` holds, from element `base` on, the elements `run` of a flattened row-major shard of
    /// `parameter`. An empty run says nothing; one that leaves the shard is reported by `build`.
    ///
    /// # Panics
    /// If an id is not one of this builder's.
    pub fn place_run(
        &mut self,
        parameter: ParameterId,
        buffer: BufferId,
        base: Elements,
        shard: ShardId,
        run: Range<u64>,
    ) {
        if run.start == run.end {
            return;
        }
        let geometries = &mut self.geometries;
        let intern = |geometry| geometry_id(geometries.insert_full(geometry).0);
        match self.shards.run(shard, run.clone(), intern) {
            Ok(geometry) => self.place(parameter, buffer, base, geometry),
            Err(fault) => self.note_run(parameter, buffer, shard, run, fault),
        }
    }

    fn note_run(
        &mut self,
        parameter: ParameterId,
        buffer: BufferId,
        shard: ShardId,
        run: Range<u64>,
        fault: RunFault,
    ) {
        let parameter = self.parameters[parameter.index()].name.clone();
        let rank = self.places.rank_of(buffer);
        let shard = Dims::from_slice(self.shards.get(shard).shape());
        self.findings.push(match fault {
            RunFault::Leaves => {
                Finding::RunOutOfShard { parameter, rank, first: run.start, end: run.end, shard }
            }
            RunFault::NotABox => Finding::ShardNotRowMajor { parameter, rank, shard },
        });
    }

    /// Adds target padding.
    pub fn fill(&mut self, fill: Fill) {
        self.fills.push(fill);
    }

    /// Checks the invariants of [`Layout`] and seals it.
    ///
    /// # Errors
    /// [`LayoutError`] with everything that was found.
    pub fn build(self) -> Result<Layout, LayoutError> {
        let Self { parameters, aliases, findings, places, geometries, mut instances, fills, .. } = self;
        for holdings in &mut instances {
            holdings.sort_unstable_by_key(|at| (at.rank, at.buffer, at.base));
        }
        let layout = Layout { parameters, aliases, places, geometries, instances, fills };
        check::check(&layout, findings)?;
        Ok(layout)
    }
}

/// Levenshtein distance, for hints over a few hundred thousand names at most.
fn edit_distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &b) in other.iter().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

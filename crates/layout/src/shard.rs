//! Shards, and stretches of them: tensor parallelism cuts a box, ZeRO keeps a run of the flattened box.
//!
//! ```text
//!  shard: columns 0..3 of W (3, 6), shape (3, 3)        run: elements [5, 9) of it, at offset 2 of a buffer
//!    a b c . . .                                            . . . . . f g h i
//!    d e f . . .                                        in W: f = (1,2)+(1,1) at 2, g h i = (2,0)+(1,3) at 3
//!    g h i . . .
//! ```

use std::collections::HashMap;
use std::ops::Range;

use indexmap::IndexSet;

use crate::geometry::{Block, Geometry, GeometryId};
use crate::nest::{nest, stored_run};
use crate::region::{Dims, Region};
use crate::units::Elements;

/// What one process of a tensor-parallel group computes with: boxes of a parameter, and where each lies in a
/// row-major tensor of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    shape: Dims,
    geometry: Geometry,
}

impl Shard {
    /// A shard of shape `shape` whose boxes lie as `geometry` says, offsets and strides counted in the shard.
    #[must_use]
    pub fn new(shape: impl IntoIterator<Item = u64>, geometry: Geometry) -> Self {
        Self { shape: shape.into_iter().collect(), geometry }
    }

    /// The shard that is one box of a parameter of shape `parameter`.
    #[must_use]
    pub fn of_box(parameter: &[u64], region: Region) -> Self {
        let shape = Dims::from_slice(region.extent());
        let block = Block::dense(region, Elements(0));
        Self::new(shape, Geometry::new(Dims::from_slice(parameter), [block]))
    }

    /// Its own extents.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Which boxes of the parameter lie where in it.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The geometry of a stretch of the flattened shard, stored from the base on.
    ///
    /// # Errors
    /// [`RunFault`] if the run leaves the shard, or a box of the shard is not one in its own coordinates.
    pub fn run(&self, run: Range<u64>) -> Result<Geometry, RunFault> {
        let elements = crate::region::volume(&self.shape);
        if run.start > run.end || elements.is_none_or(|elements| run.end > elements) {
            return Err(RunFault::Leaves);
        }
        nest(&self.geometry, &stored_run(&self.shape, run)).ok_or(RunFault::NotABox)
    }
}

/// Why a stretch of a shard has no geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunFault {
    /// It begins or ends outside the shard.
    Leaves,
    /// The shard keeps a box with other strides than its own row-major ones.
    NotABox,
}

/// Names a [`Shard`] of one [`LayoutBuilder`](crate::LayoutBuilder).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardId(pub(crate) u32);

/// The shards of a builder, and the geometries of the runs of them that were already worked out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shards {
    shards: IndexSet<Shard>,
    known: HashMap<(ShardId, u64, u64), GeometryId>,
}

impl Shards {
    pub(crate) fn intern(&mut self, shard: Shard) -> ShardId {
        let (index, _) = self.shards.insert_full(shard);
        ShardId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    pub(crate) fn get(&self, id: ShardId) -> &Shard {
        &self.shards[id.0 as usize]
    }

    /// The geometry of a run, which `intern` names if it is new.
    pub(crate) fn run(
        &mut self,
        id: ShardId,
        run: Range<u64>,
        intern: impl FnOnce(Geometry) -> GeometryId,
    ) -> Result<GeometryId, RunFault> {
        let key = (id, run.start, run.end);
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let geometry = intern(self.get(id).run(run)?);
        self.known.insert(key, geometry);
        Ok(geometry)
    }
}

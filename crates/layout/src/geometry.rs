//! The shape of one holding, without saying whose: boxes of a parameter, and where each lies relative to a
//! base address. Equal layers, experts and ranks share one geometry, so that work is done once for all.
//!
//! ```text
//!   parameter (4, 6)          geometry of "columns 2..4, packed"       instances
//!   . . # # . .               region (0,2)+(4,2)                       layer 0, rank 1, buffer 7, base    0
//!   . . # # . .        <->    offset 0, strides (2, 1)                 layer 1, rank 1, buffer 7, base  512
//! ```

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::region::{Dims, Region};
use crate::units::Elements;

/// A box of a parameter and where it lies, relative to the base of the instance that holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The box, in coordinates of the parameter.
    pub region: Region,
    /// Distance of its lowest corner from the base.
    pub offset: Elements,
    /// Elements between neighbours along each axis.
    pub strides: Dims,
    /// Stored value = logical value x scale.
    pub scale: f64,
}

impl Block {
    /// A box at an offset, with scale 1.
    #[must_use]
    pub fn new(region: Region, offset: Elements, strides: impl IntoIterator<Item = u64>) -> Self {
        Self { region, offset, strides: strides.into_iter().collect(), scale: 1.0 }
    }

    /// A box whose elements lie one after another in row-major order.
    #[must_use]
    pub fn dense(region: Region, offset: Elements) -> Self {
        let strides = crate::region::row_major(region.extent());
        Self::new(region, offset, strides)
    }

    /// The distance from the base to one past the last element; `None` past 2^64.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        let mut last = self.offset.0;
        for (extent, stride) in self.region.extent().iter().zip(&self.strides) {
            last = last.checked_add(stride.checked_mul(extent.checked_sub(1)?)?)?;
        }
        last.checked_add(1)
    }
}

impl Eq for Block {}

impl Hash for Block {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.region.hash(state);
        self.offset.hash(state);
        self.strides.hash(state);
        self.scale.to_bits().hash(state);
    }
}

/// Boxes of a parameter of one shape, relative to a base.
///
/// Invariants, once it is part of a [`Layout`](crate::Layout): every block has the shape's number of axes
/// and lies inside it; strides are positive where the extent is above 1 and address no element twice; no
/// two blocks share an element of the parameter or an address; no block is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Geometry {
    shape: Dims,
    blocks: Vec<Block>,
}

impl Geometry {
    /// A geometry of blocks in the order given. Empty blocks cover nothing and are left out; strides along
    /// axes of extent 1 say nothing and become 0, so that equal geometries compare equal.
    #[must_use]
    pub fn new(shape: impl IntoIterator<Item = u64>, blocks: impl IntoIterator<Item = Block>) -> Self {
        let mut blocks: Vec<Block> = blocks.into_iter().filter(|block| !block.region.is_empty()).collect();
        for block in &mut blocks {
            for (stride, extent) in block.strides.iter_mut().zip(block.region.extent()) {
                if *extent == 1 {
                    *stride = 0;
                }
            }
        }
        Self { shape: shape.into_iter().collect(), blocks }
    }

    /// The whole of a parameter, row-major from the base.
    #[must_use]
    pub fn whole(shape: &[u64]) -> Self {
        Self::new(Dims::from_slice(shape), [Block::dense(Region::whole(shape), Elements(0))])
    }

    /// Shape of the parameter that it is a holding of.
    #[must_use]
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The boxes.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// The number of elements held.
    #[must_use]
    pub fn volume(&self) -> Elements {
        Elements(self.blocks.iter().map(|block| block.region.volume()).sum())
    }
}

/// Names a [`Geometry`] of one layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GeometryId(pub(crate) u32);

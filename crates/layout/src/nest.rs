//! A layout of shards composed with a layout of each shard's own storage.
//!
//! ```text
//!  W (3, 6), tensor parallel over 2: shard 0 = columns 0..3      ZeRO-3 over 2: rank 2 keeps run [5, 9)
//!    a b c | . . .        a b c                                  of the flattened shard: "f" "g h i"
//!    d e f | . . .   ->   d e f   ->   . . . . . f g h i   ->    in W: (1,2)+(1,1) at 0, (2,0)+(1,3) at 1
//!    g h i | . . .        g h i
//! ```

use std::ops::Range;

use crate::geometry::{Block, Geometry};
use crate::join::overlapping_pairs;
use crate::region::{Dims, Region, address, coordinate, row_major};
use crate::runs::boxes_of_run;
use crate::units::Elements;

/// Composes `outer` (boxes of a parameter -> addresses in a row-major shard of shape `inner.shape()`) with
/// `inner` (boxes of that shard -> addresses in a storage): boxes of the parameter -> addresses in the
/// storage. What `inner` does not store is left out; scales multiply.
///
/// Returns `None` if a block of `outer` is not a box of the shard: its strides are not the shard's
/// row-major strides, or it leaves the shard.
#[must_use]
pub fn nest(outer: &Geometry, inner: &Geometry) -> Option<Geometry> {
    let shard = inner.shape();
    let local: Vec<Region> =
        outer.blocks().iter().map(|block| region_in_shard(block, shard)).collect::<Option<_>>()?;
    let outer_boxes: Vec<&Region> = local.iter().collect();
    let inner_boxes: Vec<&Region> = inner.blocks().iter().map(|block| &block.region).collect();
    let mut pairs = Vec::new();
    overlapping_pairs(&outer_boxes, &inner_boxes, &mut |o, i| pairs.push((i, o)));
    pairs.sort_unstable();
    let blocks = pairs.into_iter().filter_map(|(i, o)| {
        let common = local[o].intersection(inner_boxes[i])?;
        let (outside, inside) = (&outer.blocks()[o], &inner.blocks()[i]);
        let shifted = |from: &[u64], to: &[u64]| -> Dims {
            common.origin().iter().zip(from).zip(to).map(|((at, from), to)| at - from + to).collect()
        };
        let origin = shifted(local[o].origin(), outside.region.origin());
        let zeros: Dims = common.origin().iter().map(|_| 0).collect();
        let within = shifted(inner_boxes[i].origin(), &zeros);
        Some(Block {
            region: Region::new(origin, Dims::from_slice(common.extent())),
            offset: inside.offset + Elements(address(&within, &inside.strides)),
            strides: inside.strides.clone(),
            scale: outside.scale * inside.scale,
        })
    });
    Some(Geometry::new(Dims::from_slice(outer.shape()), blocks.collect::<Vec<_>>()))
}

/// The geometry of a run `[run.start, run.end)` of a flattened row-major tensor, stored from the base on.
///
/// # Panics
/// If the run leaves the tensor.
#[must_use]
pub fn stored_run(shape: &[u64], run: Range<u64>) -> Geometry {
    let mut offset = 0;
    let blocks: Vec<Block> = boxes_of_run(shape, run)
        .into_iter()
        .map(|region| {
            let block = Block::dense(region, Elements(offset));
            offset += block.region.volume();
            block
        })
        .collect();
    Geometry::new(Dims::from_slice(shape), blocks)
}

fn region_in_shard(block: &Block, shard: &[u64]) -> Option<Region> {
    let strides = row_major(shard);
    let extent = block.region.extent();
    if extent.len() != shard.len() {
        return None;
    }
    let fits = |axis: usize| extent[axis] == 1 || block.strides[axis] == strides[axis];
    let origin = coordinate(block.offset.0, shard);
    let inside = |axis: usize| origin[axis].checked_add(extent[axis]).is_some_and(|end| end <= shard[axis]);
    (0..shard.len())
        .all(|axis| fits(axis) && inside(axis))
        .then(|| Region::new(origin, Dims::from_slice(extent)))
}

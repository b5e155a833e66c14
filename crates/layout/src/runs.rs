//! A stored flat run of a tensor, cut into boxes.
//!
//! ```text
//! shape (5, 7), run [3, 24):      . . . a a a a     a  (0,3)+(1,4)   first partial row
//!                                 b b b b b b b     b  (1,0)+(2,7)   whole rows
//!                                 b b b b b b b
//!                                 c c c . . . .     c  (3,0)+(1,3)   last partial row
//! ```
//!
//! Going through the run in address order, each box starts on the outermost axis that is aligned there and
//! still fits, so that at most `2 * axes - 1` boxes come out. Each box is dense in the run.

use std::ops::Range;

use crate::region::{Dims, Region, coordinate, row_major};

/// Cuts the row-major run `[run.start, run.end)` of a tensor into boxes, in address order: each box begins
/// where the one before it ended. At most `2 * axes - 1` boxes.
///
/// # Panics
/// If the run leaves the tensor: callers check outside input first.
#[must_use]
pub fn boxes_of_run(shape: &[u64], run: Range<u64>) -> Vec<Region> {
    if run.start >= run.end {
        return Vec::new();
    }
    assert!(run.end <= shape.iter().product(), "run {run:?} leaves a tensor of shape {shape:?}");
    let strides = row_major(shape);
    let mut boxes = Vec::new();
    let mut at = run.start;
    while at < run.end {
        let origin = coordinate(at, shape);
        let left = run.end - at;
        let axis = (0..shape.len()).find(|&axis| at.is_multiple_of(strides[axis]) && left >= strides[axis]);
        let mut extent: Dims = shape.iter().map(|_| 1).collect();
        if let Some(axis) = axis {
            extent[axis] = (left / strides[axis]).min(shape[axis] - origin[axis]);
            extent[axis + 1..].copy_from_slice(&shape[axis + 1..]);
        }
        let region = Region::new(origin, extent);
        at += region.volume();
        boxes.push(region);
    }
    boxes
}

//! Axis-aligned boxes, and the two ways to walk one: as coordinates, or as runs of addresses.
//!
//! ```text
//!            0 1 2 3 4 5
//!          0 . . . . . .      Region { origin: (1, 2), extent: (2, 3) } of a 4x6 parameter
//!          1 . . # # # .      row-major strides (6, 1): flat indices 8 9 10, 14 15 16
//!          2 . . # # # .
//!          3 . . . . . .
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// One number an axis: a coordinate, a shape or strides. Inline up to four axes.
pub type Dims = SmallVec<[u64; 4]>;

/// The number of elements of a shape; 1 for the empty shape of a scalar. `None` past 2^64.
#[must_use]
pub fn volume(shape: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent))
}

/// Row-major (C order) strides of a shape, in elements.
#[must_use]
pub fn row_major(shape: &[u64]) -> Dims {
    let mut strides: Dims = SmallVec::from_elem(1, shape.len());
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    strides
}

/// The address of a coordinate: its dot product with the strides.
#[must_use]
pub fn address(coordinate: &[u64], strides: &[u64]) -> u64 {
    coordinate.iter().zip(strides).map(|(index, stride)| index * stride).sum()
}

/// The coordinate of a flat row-major index. Axes of extent 0 count as 1.
#[must_use]
pub fn coordinate(mut flat: u64, shape: &[u64]) -> Dims {
    let mut at: Dims = SmallVec::from_elem(0, shape.len());
    for (axis, stride) in row_major(shape).into_iter().enumerate() {
        at[axis] = flat / stride;
        flat %= stride;
    }
    at
}

/// An axis-aligned box of a parameter.
///
/// Invariant: origin and extent have one number an axis each, and `origin + extent` does not overflow.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Region {
    origin: Dims,
    extent: Dims,
}

impl Region {
    /// A box from its lowest corner and its extents.
    ///
    /// # Panics
    /// If the two have different numbers of axes, or a corner lies past 2^64: a bug of the caller, who
    /// checks outside input first.
    #[must_use]
    pub fn new(origin: impl IntoIterator<Item = u64>, extent: impl IntoIterator<Item = u64>) -> Self {
        let (origin, extent): (Dims, Dims) = (origin.into_iter().collect(), extent.into_iter().collect());
        assert_eq!(origin.len(), extent.len(), "a region's origin and extent have the same axes");
        for (start, length) in origin.iter().zip(&extent) {
            assert!(start.checked_add(*length).is_some(), "a region's corner fits in 64 bits");
        }
        Self { origin, extent }
    }

    /// The whole of a tensor of this shape.
    #[must_use]
    pub fn whole(shape: &[u64]) -> Self {
        Self { origin: SmallVec::from_elem(0, shape.len()), extent: Dims::from_slice(shape) }
    }

    /// The lowest corner.
    #[must_use]
    pub fn origin(&self) -> &[u64] {
        &self.origin
    }

    /// The length along each axis.
    #[must_use]
    pub fn extent(&self) -> &[u64] {
        &self.extent
    }

    /// The number of axes.
    #[must_use]
    pub fn axes(&self) -> usize {
        self.origin.len()
    }

    /// The first coordinate past the box along an axis.
    #[must_use]
    pub fn end(&self, axis: usize) -> u64 {
        self.origin[axis] + self.extent[axis]
    }

    /// The number of elements; 1 for a box without axes.
    #[must_use]
    pub fn volume(&self) -> u64 {
        self.extent.iter().product()
    }

    /// Whether the box covers nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extent.contains(&0)
    }

    /// The common part of two boxes, if it holds an element.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let mut origin = Dims::new();
        let mut extent = Dims::new();
        for axis in 0..self.axes() {
            let start = self.origin[axis].max(other.origin[axis]);
            let end = self.end(axis).min(other.end(axis));
            if start >= end {
                return None;
            }
            origin.push(start);
            extent.push(end - start);
        }
        Some(Self { origin, extent })
    }

    /// Whether two boxes share an element.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        (0..self.axes())
            .all(|axis| self.origin[axis].max(other.origin[axis]) < self.end(axis).min(other.end(axis)))
    }

    /// The two parts of the box below and from coordinate `at` of an axis. Either may be empty.
    #[must_use]
    pub fn split(&self, axis: usize, at: u64) -> (Self, Self) {
        let at = at.clamp(self.origin[axis], self.end(axis));
        let (mut low, mut high) = (self.clone(), self.clone());
        low.extent[axis] = at - self.origin[axis];
        high.origin[axis] = at;
        high.extent[axis] = self.end(axis) - at;
        (low, high)
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}+{:?}", self.origin.as_slice(), self.extent.as_slice())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

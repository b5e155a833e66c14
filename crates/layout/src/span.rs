//! Do two strided boxes of one storage share a byte? Exact, without walking every element.
//!
//! ```text
//!   bytes   0 . . . . 5 . . . . 10          a: 3 runs of 2 bytes, 5 apart     b: 3 runs of 2 bytes, 5 apart
//!           a a b b . a a b b . a a b b     spans meet, runs do not
//! ```
//!
//! Boxes of one row-major frame are compared by their coordinates in it; others by halving the longer one
//! until the spans part or both are single runs.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::join::overlapping_pairs;
use crate::region::{Dims, Region};

/// The answer, or that the budget ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meet {
    No,
    Yes,
    Unknown,
}

/// Halvings spent on one pair, and pairs compared in one set.
const BUDGET: u32 = 1 << 20;

/// A strided set of bytes: `first + Σ index_k * stride_k`, for runs of `run` bytes.
#[derive(Clone, Debug)]
pub(crate) struct Lattice {
    first: u64,
    run: u64,
    /// (extent, stride), largest stride first, extents above 1.
    axes: SmallVec<[(u64, u64); 4]>,
}

impl Lattice {
    /// The bytes of a box at byte `first`, with strides in elements of `size` bytes.
    pub(crate) fn new(first: u64, extent: &[u64], strides: &[u64], size: u64) -> Self {
        let mut axes: SmallVec<[(u64, u64); 4]> = extent
            .iter()
            .zip(strides)
            .filter(|(extent, _)| **extent > 1)
            .map(|(extent, stride)| (*extent, stride * size))
            .collect();
        axes.sort_unstable_by_key(|&(_, stride)| std::cmp::Reverse(stride));
        let mut run = size;
        while let Some(&(extent, stride)) = axes.last()
            && stride == run
        {
            run *= extent;
            axes.pop();
        }
        Self { first, run, axes }
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// One past the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.run + self.axes.iter().map(|(extent, stride)| (extent - 1) * stride).sum::<u64>()
    }

    fn halves(&self) -> (Self, Self) {
        let (extent, stride) = self.axes[0];
        let half = |first: u64, extent: u64| {
            let mut half = self.clone();
            half.first = first;
            if extent > 1 {
                half.axes[0].0 = extent;
            } else {
                half.axes.remove(0);
            }
            half
        };
        (half(self.first, extent / 2), half(self.first + extent / 2 * stride, extent - extent / 2))
    }

    fn meets(&self, other: &Self, budget: &mut u32) -> Meet {
        if self.end() <= other.first || other.end() <= self.first {
            return Meet::No;
        }
        if self.axes.is_empty() && other.axes.is_empty() {
            return Meet::Yes;
        }
        let Some(left) = budget.checked_sub(1) else { return Meet::Unknown };
        *budget = left;
        let longer_is_self = !self.axes.is_empty()
            && (other.axes.is_empty() || self.end() - self.first >= other.end() - other.first);
        let (cut, kept) = if longer_is_self { (self, other) } else { (other, self) };
        let (low, high) = cut.halves();
        match low.meets(kept, budget) {
            Meet::No => high.meets(kept, budget),
            met => met,
        }
    }

    /// Coordinates in the row-major frame of the own strides, outermost unbounded, if the box is a box there.
    fn in_frame(&self) -> Option<Region> {
        let mut origin = Dims::new();
        let mut extent = Dims::new();
        let mut rest = self.first;
        for (at, &(count, stride)) in self.axes.iter().enumerate() {
            if at > 0 && (rest / stride + count) * stride > self.axes[at - 1].1 {
                return None;
            }
            origin.push(rest / stride);
            extent.push(count);
            rest %= stride;
        }
        let inner = self.axes.last().map_or(u64::MAX, |&(_, stride)| stride);
        if rest.checked_add(self.run)? > inner {
            return None;
        }
        origin.push(rest);
        extent.push(self.run);
        Some(Region::new(origin, extent))
    }
}

/// Whether any two of the lattices share a byte.
pub(crate) fn any_meet(lattices: &[Lattice]) -> Meet {
    let mut frames: HashMap<SmallVec<[u64; 4]>, Vec<(usize, Region)>> = HashMap::new();
    let mut framed = vec![None; lattices.len()];
    for (at, lattice) in lattices.iter().enumerate() {
        let frame: SmallVec<[u64; 4]> = lattice.axes.iter().map(|&(_, stride)| stride).collect();
        if let Some(region) = lattice.in_frame() {
            framed[at] = Some(frame.clone());
            frames.entry(frame).or_default().push((at, region));
        }
    }
    for members in frames.values() {
        let regions: Vec<&Region> = members.iter().map(|(_, region)| region).collect();
        let mut met = false;
        overlapping_pairs(&regions, &regions, &mut |i, j| met |= i < j);
        if met {
            return Meet::Yes;
        }
    }
    if frames.len() <= 1 && framed.iter().all(Option::is_some) {
        return Meet::No;
    }
    across_frames(lattices, &framed)
}

/// Compares lattices of different frames whose spans meet.
fn across_frames(lattices: &[Lattice], framed: &[Option<SmallVec<[u64; 4]>>]) -> Meet {
    let mut order: Vec<usize> = (0..lattices.len()).collect();
    order.sort_by_key(|&at| lattices[at].first);
    let mut open: Vec<usize> = Vec::new();
    let mut budget = BUDGET;
    for at in order {
        open.retain(|&earlier| lattices[earlier].end() > lattices[at].first);
        for &earlier in &open {
            if framed[at].is_some() && framed[at] == framed[earlier] {
                continue;
            }
            match lattices[at].meets(&lattices[earlier], &mut budget) {
                Meet::No => {}
                met => return met,
            }
        }
        open.push(at);
    }
    Meet::No
}

/// Whether strides send two elements of one box to one address.
pub(crate) fn addresses_twice(extent: &[u64], strides: &[u64]) -> Meet {
    let mut axes: Vec<(u64, u64)> =
        strides.iter().copied().zip(extent.iter().copied()).filter(|&(_, extent)| extent > 1).collect();
    axes.sort_unstable();
    let mut reach: u64 = 0;
    let mut nested = true;
    for &(stride, extent) in &axes {
        if stride == 0 {
            return Meet::Yes;
        }
        nested &= stride > reach;
        let Some(end) = stride.checked_mul(extent - 1).and_then(|far| far.checked_add(reach)) else {
            return Meet::Unknown;
        };
        reach = end;
    }
    if nested {
        return Meet::No;
    }
    enumerate_addresses(&axes)
}

/// Strides that interleave without nesting are rare: look at every address, within a budget.
fn enumerate_addresses(axes: &[(u64, u64)]) -> Meet {
    let count = axes.iter().try_fold(1u64, |product, &(_, extent)| product.checked_mul(extent));
    if count.is_none_or(|count| count > u64::from(BUDGET)) {
        return Meet::Unknown;
    }
    let mut addresses = vec![0u64];
    for &(stride, extent) in axes {
        addresses = (0..extent).flat_map(|at| addresses.iter().map(move |a| a + at * stride)).collect();
    }
    let total = addresses.len();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.len() == total { Meet::No } else { Meet::Yes }
}

//! Do two strided boxes of one storage share a byte? Exact, without walking every element.
//!
//! ```text
//!   bytes   0 . . . . 5 . . . . 10          a: 3 runs of 2 bytes, 5 apart     b: 3 runs of 2 bytes, 5 apart
//!           a a b b . a a b b . a a b b     spans meet, runs do not
//! ```
//!
//! Boxes whose strides nest in one row-major frame are compared by their coordinates in it, all at once; others
//! by halving the longer one until the spans part or both are single runs.

use std::collections::{BTreeMap, BTreeSet};

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
    /// (extent, stride), largest stride first, extents above 1, after merging what is contiguous.
    axes: Axes,
    /// The bytes of an element, and the axes before merging.
    element: u64,
    steps: Axes,
}

type Axes = SmallVec<[(u64, u64); 4]>;

impl Lattice {
    /// The bytes of a box at byte `first`, with strides in elements of `size` bytes.
    pub(crate) fn new(first: u64, extent: &[u64], strides: &[u64], size: u64) -> Self {
        let mut steps: Axes = extent
            .iter()
            .zip(strides)
            .filter(|(extent, _)| **extent > 1)
            .map(|(extent, stride)| (*extent, stride * size))
            .collect();
        steps.sort_unstable_by_key(|&(_, stride)| std::cmp::Reverse(stride));
        let mut axes = steps.clone();
        let mut run = size;
        while let Some(&(extent, stride)) = axes.last()
            && stride == run
        {
            run *= extent;
            axes.pop();
        }
        Self { first, run, axes, element: size, steps }
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

    /// Coordinates of the box in a row-major frame of the given strides, the outermost unbounded; `None` if
    /// the frame lacks one of its strides or the box runs over the end of a row.
    fn in_frame(&self, frame: &[u64]) -> Option<Region> {
        let mut origin = Dims::new();
        let mut extent = Dims::new();
        let mut rest = self.first;
        let mut steps = self.steps.iter().peekable();
        for (at, &stride) in frame.iter().enumerate() {
            let count = steps.next_if(|step| step.1 == stride).map_or(1, |step| step.0);
            if at > 0 && (rest / stride + count).checked_mul(stride)? > frame[at - 1] {
                return None;
            }
            origin.push(rest / stride);
            extent.push(count);
            rest %= stride;
        }
        let inner = frame.last().copied().unwrap_or(u64::MAX);
        if steps.next().is_some() || rest + self.element > inner {
            return None;
        }
        origin.push(rest);
        extent.push(self.element);
        Some(Region::new(origin, extent))
    }

    /// The bytes as a box of one axis, if they are one run.
    fn as_run(&self) -> Option<Region> {
        self.axes.is_empty().then(|| Region::new([self.first], [self.run]))
    }
}

/// The most different strides of a frame: more than any tensor has axes.
const FRAME_AXES_MAX: usize = 16;

/// All strides of the lattices, largest first, if each is a multiple of the next: one frame for all.
fn common_frame(lattices: &[Lattice]) -> Option<Vec<u64>> {
    let mut strides = BTreeSet::new();
    for lattice in lattices {
        strides.extend(lattice.steps.iter().map(|&(_, stride)| stride));
        if strides.len() > FRAME_AXES_MAX {
            return None;
        }
    }
    let frame: Vec<u64> = strides.into_iter().rev().collect();
    frame.windows(2).all(|pair| pair[0].is_multiple_of(pair[1])).then_some(frame)
}

/// Whether any two of the boxes share an element.
fn boxes_meet(boxes: &[Region]) -> Meet {
    let references: Vec<&Region> = boxes.iter().collect();
    let mut met = false;
    overlapping_pairs(&references, &references, &mut |i, j| met |= i < j);
    if met { Meet::Yes } else { Meet::No }
}

/// Whether any two of the lattices share a byte.
pub(crate) fn any_meet(lattices: &[Lattice]) -> Meet {
    if let Some(runs) = lattices.iter().map(Lattice::as_run).collect::<Option<Vec<_>>>() {
        return boxes_meet(&runs);
    }
    let in_common = common_frame(lattices).and_then(|frame| {
        lattices.iter().map(|lattice| lattice.in_frame(&frame)).collect::<Option<Vec<_>>>()
    });
    if let Some(boxes) = in_common {
        return boxes_meet(&boxes);
    }
    by_frames(lattices)
}

/// Boxes of one frame are compared at once, those of different frames in pairs whose spans meet.
fn by_frames(lattices: &[Lattice]) -> Meet {
    let mut frames: BTreeMap<Vec<u64>, Vec<Region>> = BTreeMap::new();
    let mut framed: Vec<Option<Vec<u64>>> = Vec::with_capacity(lattices.len());
    for lattice in lattices {
        let own: Vec<u64> = lattice.axes.iter().map(|&(_, stride)| stride).collect();
        let merged = Lattice { steps: lattice.axes.clone(), element: lattice.run, ..lattice.clone() };
        let region = merged.in_frame(&own);
        framed.push(region.is_some().then(|| own.clone()));
        if let Some(region) = region {
            frames.entry(own).or_default().push(region);
        }
    }
    if frames.values().any(|boxes| boxes_meet(boxes) == Meet::Yes) {
        return Meet::Yes;
    }
    across_frames(lattices, &framed)
}

/// Compares lattices of different frames, and those of none, whose spans meet.
fn across_frames(lattices: &[Lattice], framed: &[Option<Vec<u64>>]) -> Meet {
    let mut order: Vec<usize> = (0..lattices.len()).collect();
    order.sort_by_key(|&at| lattices[at].first);
    let mut open: BTreeMap<&Option<Vec<u64>>, Vec<usize>> = BTreeMap::new();
    let mut budget = BUDGET;
    for at in order {
        for (frame, earlier) in &mut open {
            if frame.is_some() && **frame == framed[at] {
                continue;
            }
            let Some(left) = budget.checked_sub(earlier.len() as u32) else { return Meet::Unknown };
            budget = left;
            earlier.retain(|&earlier| lattices[earlier].end() > lattices[at].first);
            for &earlier in earlier.iter() {
                match lattices[at].meets(&lattices[earlier], &mut budget) {
                    Meet::No => {}
                    met => return met,
                }
            }
        }
        open.entry(&framed[at]).or_default().push(at);
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

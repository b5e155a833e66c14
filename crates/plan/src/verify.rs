//! Proves that a plan is right, without the passes that made it.
//!
//! ```text
//!   for each copy:             its box at its source address is what the source layout keeps there,
//!                              its box at its target address is what the target layout wants there
//!   for each target holding:   the boxes of its copies are disjoint, and their volumes add up to it
//!   hence:                     every target element is written exactly once, from the right place
//! ```
//!
//! It looks boxes up by sorting along one axis, and knows nothing of how the planner finds overlaps.

use std::collections::HashMap;

use reshard_layout::{BufferId, Dims, Elements, GeometryId, Instance, Layout, Rank, Region};

use crate::copy::{Copy, End};
use crate::plan::Plan;

/// What `verify` proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Target elements that are each written exactly once.
    pub elements: Elements,
    /// Copies looked at.
    pub copies: u64,
}

/// Which side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What is read.
    Source,
    /// What is written.
    Target,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Target => "target",
        })
    }
}

/// Why a plan is wrong for two layouts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The plan was made for other storages or buffers.
    #[error("the plan's {side} buffers are not those of the {side} layout")]
    OtherPlaces {
        /// The side.
        side: Side,
    },
    /// A copy names a parameter that does not exist.
    #[error("copy {copy} names parameter {parameter} on the {side} side, which has no such parameter")]
    UnknownParameter {
        /// Position of the copy in the plan.
        copy: usize,
        /// Id or name.
        parameter: String,
        /// The side.
        side: Side,
    },
    /// A copy's box has another number of axes than its parameter, or a number past 2^64.
    #[error("{parameter}: copy {copy} has a malformed box or strides")]
    Malformed {
        /// The parameter.
        parameter: String,
        /// Position of the copy in the plan.
        copy: usize,
    },
    /// A copy's box does not lie where the copy says.
    #[error("{parameter}: copy {copy} takes box {region} at element {offset} of {side} buffer {}, rank {rank}, which does not hold it there", buffer.0)]
    WrongPlace {
        /// The parameter.
        parameter: String,
        /// Position of the copy in the plan.
        copy: usize,
        /// The side.
        side: Side,
        /// The box.
        region: Region,
        /// The buffer.
        buffer: BufferId,
        /// Its owner.
        rank: Rank,
        /// The element of the buffer.
        offset: Elements,
    },
    /// Two copies write one element.
    #[error("{parameter}: rank {rank} is written twice, by boxes {first} and {second}")]
    WrittenTwice {
        /// The parameter.
        parameter: String,
        /// The target rank.
        rank: Rank,
        /// One box.
        first: Region,
        /// The other.
        second: Region,
    },
    /// Some elements of a target holding are not written.
    #[error("{parameter}: {written} of the {expected} elements that rank {rank} wants are written")]
    NotWritten {
        /// The parameter.
        parameter: String,
        /// The target rank.
        rank: Rank,
        /// Elements of the holding.
        expected: Elements,
        /// Elements written.
        written: Elements,
    },
    /// The plan's padding is not the target layout's.
    #[error("the plan fills {found} boxes of padding, the target layout has {expected} or others")]
    OtherFills {
        /// Fills of the layout.
        expected: usize,
        /// Fills of the plan.
        found: usize,
    },
}

/// Proves that `plan` writes every element of `target` exactly once, from where `source` holds it.
///
/// # Errors
/// [`VerifyError`] with the first thing that is wrong.
pub fn verify(plan: &Plan, source: &Layout, target: &Layout) -> Result<Verified, VerifyError> {
    if &plan.source != source.places() {
        return Err(VerifyError::OtherPlaces { side: Side::Source });
    }
    if &plan.target != target.places() {
        return Err(VerifyError::OtherPlaces { side: Side::Target });
    }
    if plan.fills != target.fills() {
        return Err(VerifyError::OtherFills { expected: target.fills().len(), found: plan.fills.len() });
    }
    let mut source_side = Holdings::new(source, Side::Source);
    let mut target_side = Holdings::new(target, Side::Target);
    let mut written: HashMap<(u32, usize), Vec<Region>> = HashMap::new();
    for (number, copy) in plan.copies.iter().enumerate() {
        let region = region_of(plan, number, copy, target)?;
        let name = &target.parameter(copy.parameter).name;
        let aliases = target.aliases().filter(|(_, of)| *of == copy.parameter).map(|(alias, _)| alias);
        let from = std::iter::once(name.as_str()).chain(aliases).find_map(|name| source.find(name));
        let from = from.ok_or_else(|| VerifyError::UnknownParameter {
            copy: number,
            parameter: name.clone(),
            side: Side::Source,
        })?;
        source_side.check(number, from.0, &copy.source, &region, name)?;
        let holding = target_side.check(number, copy.parameter.0, &copy.target, &region, name)?;
        written.entry((copy.parameter.0, holding)).or_default().push(region);
    }
    exact_cover(target, written, plan.copies.len())
}

fn region_of(plan: &Plan, number: usize, copy: &Copy, target: &Layout) -> Result<Region, VerifyError> {
    if copy.parameter.index() >= target.parameters().len() {
        let parameter = copy.parameter.0.to_string();
        return Err(VerifyError::UnknownParameter { copy: number, parameter, side: Side::Target });
    }
    let parameter = target.parameter(copy.parameter);
    let axes = parameter.shape.len();
    let lengths = [copy.shape.len(), copy.origin.len(), copy.source.strides.len(), copy.target.strides.len()];
    let fits = |axis: usize| {
        copy.origin[axis].checked_add(copy.shape[axis]).is_some_and(|end| end <= parameter.shape[axis])
    };
    let known = copy.source.buffer.index() < plan.source.buffers.len()
        && copy.target.buffer.index() < plan.target.buffers.len();
    if lengths.iter().any(|&length| length != axes)
        || !known
        || !(0..axes).all(fits)
        || copy.shape.contains(&0)
    {
        return Err(VerifyError::Malformed { parameter: parameter.name.clone(), copy: number });
    }
    Ok(Region::new(copy.origin.iter().copied(), copy.shape.iter().copied()))
}

/// What one side keeps where, with a sorted index for each geometry.
struct Holdings<'a> {
    layout: &'a Layout,
    side: Side,
    indexes: HashMap<GeometryId, SortedBoxes>,
}

impl<'a> Holdings<'a> {
    fn new(layout: &'a Layout, side: Side) -> Self {
        Self { layout, side, indexes: HashMap::new() }
    }

    /// Checks that the box lies at the copy's address, and returns the holding that it belongs to.
    fn check(
        &mut self,
        copy: usize,
        parameter: u32,
        end: &End,
        region: &Region,
        name: &str,
    ) -> Result<usize, VerifyError> {
        let instances = self.layout.instances(reshard_layout::ParameterId(parameter));
        let candidates = (0..instances.len()).filter(|&at| instances[at].buffer == end.buffer);
        for at in candidates {
            if self.lies_there(&instances[at], end, region) {
                return Ok(at);
            }
        }
        Err(VerifyError::WrongPlace {
            parameter: name.to_owned(),
            copy,
            side: self.side,
            region: region.clone(),
            buffer: end.buffer,
            rank: self.layout.places().rank_of(end.buffer),
            offset: end.offset,
        })
    }

    /// Whether the blocks of the instance give every element of the box the address that the copy gives it.
    fn lies_there(&mut self, instance: &Instance, end: &End, region: &Region) -> bool {
        let geometry = self.layout.geometry(instance.geometry);
        let index = self.indexes.entry(instance.geometry).or_insert_with(|| {
            SortedBoxes::new(geometry.blocks().iter().map(|block| block.region.clone()).collect())
        });
        let mut covered = 0;
        for at in index.meeting(region) {
            let block = &geometry.blocks()[at];
            let Some(common) = block.region.intersection(region) else { continue };
            let by_layout = corner(&common, &block.region, &block.strides)
                .and_then(|within| within.checked_add(block.offset.0)?.checked_add(instance.base.0));
            let by_copy =
                corner(&common, region, &end.strides).and_then(|within| within.checked_add(end.offset.0));
            let same_steps = (0..common.axes())
                .all(|axis| common.extent()[axis] == 1 || block.strides[axis] == end.strides[axis]);
            if by_layout.is_none() || by_layout != by_copy || !same_steps {
                return false;
            }
            covered += common.volume();
        }
        covered == region.volume()
    }
}

/// Address of the lowest corner of `inner`, counted from that of `outer`.
fn corner(inner: &Region, outer: &Region, strides: &Dims) -> Option<u64> {
    (0..inner.axes()).try_fold(0u64, |sum, axis| {
        let steps = inner.origin()[axis] - outer.origin()[axis];
        sum.checked_add(steps.checked_mul(strides[axis])?)
    })
}

/// Boxes sorted along the axis on which they begin at most different coordinates.
struct SortedBoxes {
    axis: usize,
    /// (begin, furthest end so far, position), by begin.
    sorted: Vec<(u64, u64, usize)>,
}

impl SortedBoxes {
    fn new(boxes: Vec<Region>) -> Self {
        let axes = boxes.first().map_or(0, Region::axes);
        if axes == 0 {
            let sorted = (0..boxes.len()).map(|at| (0, 1, at)).collect();
            return Self { axis: 0, sorted };
        }
        let distinct = |axis: usize| {
            let mut begins: Vec<u64> = boxes.iter().map(|region| region.origin()[axis]).collect();
            begins.sort_unstable();
            begins.dedup();
            begins.len()
        };
        let axis = (0..axes).max_by_key(|&axis| distinct(axis)).unwrap_or(0);
        let mut sorted: Vec<(u64, u64, usize)> = boxes
            .iter()
            .enumerate()
            .map(|(at, region)| (region.origin()[axis], region.end(axis), at))
            .collect();
        sorted.sort_unstable();
        let mut furthest = 0;
        for entry in &mut sorted {
            furthest = furthest.max(entry.1);
            entry.1 = furthest;
        }
        Self { axis, sorted }
    }

    /// Positions of all boxes that may meet a region.
    fn meeting(&self, region: &Region) -> impl Iterator<Item = usize> {
        let (begin, end) =
            if region.axes() == 0 { (0, 1) } else { (region.origin()[self.axis], region.end(self.axis)) };
        let from = self.sorted.partition_point(|entry| entry.1 <= begin);
        self.sorted[from..].iter().take_while(move |entry| entry.0 < end).map(|entry| entry.2)
    }
}

fn exact_cover(
    target: &Layout,
    mut written: HashMap<(u32, usize), Vec<Region>>,
    copies: usize,
) -> Result<Verified, VerifyError> {
    let mut verified = Verified { elements: Elements(0), copies: copies as u64 };
    for (id, parameter) in target.parameters() {
        for (at, instance) in target.instances(id).iter().enumerate() {
            let boxes = written.remove(&(id.0, at)).unwrap_or_default();
            if let Some((first, second)) = meeting_pair(&boxes) {
                let (parameter, rank) = (parameter.name.clone(), instance.rank);
                return Err(VerifyError::WrittenTwice { parameter, rank, first, second });
            }
            let expected = target.geometry(instance.geometry).volume();
            let sum = Elements(boxes.iter().map(Region::volume).sum());
            if sum != expected {
                let (parameter, rank) = (parameter.name.clone(), instance.rank);
                return Err(VerifyError::NotWritten { parameter, rank, expected, written: sum });
            }
            verified.elements += sum;
        }
    }
    Ok(verified)
}

/// Two boxes that share an element, found by a sweep along the sorted axis.
fn meeting_pair(boxes: &[Region]) -> Option<(Region, Region)> {
    let index = SortedBoxes::new(boxes.to_vec());
    boxes.iter().enumerate().find_map(|(at, region)| {
        let other = index.meeting(region).find(|&other| other > at && boxes[other].overlaps(region))?;
        Some((region.clone(), boxes[other].clone()))
    })
}

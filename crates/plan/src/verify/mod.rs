//! Proves that a plan is right, without the passes that made it.
//!
//! ```text
//!   for each copy:             its box at its source address is what the source layout keeps there,
//!                              its box at its target address is what the target layout wants there
//!   for each target holding:   the boxes of its copies are disjoint, and their volumes add up to it
//!   hence:                     every target element is written exactly once, from the right place
//! ```
//!
//! It looks boxes up in a tree of intervals along one axis, and knows nothing of how the planner finds overlaps.

mod error;
mod intervals;

use std::collections::HashMap;

use reshard_layout::{Bytes, DType, Dims, Elements, GeometryId, Instance, Layout, ParameterId, Region};

use crate::copy::{Copy, End};
use crate::plan::Plan;
use intervals::Intervals;

pub use error::{Side, VerifyError};

/// What `verify` proved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Target elements that are each written exactly once.
    pub elements: Elements,
    /// Copies looked at.
    pub copies: u64,
}

/// Proves that `plan` writes every element of `target` exactly once, from where `source` holds it, and that
/// its sums are right.
///
/// # Errors
/// [`VerifyError`] with the first thing that is wrong.
pub fn verify(plan: &Plan, source: &Layout, target: &Layout) -> Result<Verified, VerifyError> {
    if plan.version != Plan::VERSION {
        return Err(VerifyError::OtherVersion { expected: Plan::VERSION, found: plan.version });
    }
    if &plan.source != source.places() {
        return Err(VerifyError::OtherPlaces { side: Side::Source });
    }
    if &plan.target != target.places() {
        return Err(VerifyError::OtherPlaces { side: Side::Target });
    }
    if plan.fills != target.fills() {
        return Err(VerifyError::OtherFills { expected: target.fills().len(), found: plan.fills.len() });
    }
    let origins = origins(plan, source, target)?;
    let mut source_side = Holdings::new(source, Side::Source);
    let mut target_side = Holdings::new(target, Side::Target);
    let mut written: HashMap<(u32, usize), Vec<Region>> = HashMap::new();
    for (number, copy) in plan.copies.iter().enumerate() {
        let region = region_of(plan, number, copy, target)?;
        let name = &target.parameter(copy.parameter).name;
        let from = origins[copy.parameter.index()].ok_or_else(|| VerifyError::UnknownParameter {
            copy: number,
            parameter: name.clone(),
            side: Side::Source,
        })?;
        let (_, read) = source_side.check(number, from, &copy.source, &region, name)?;
        let (holding, wanted) = target_side.check(number, copy.parameter, &copy.target, &region, name)?;
        if !same_scales(&read, &wanted) || !same_scales(&wanted, &read) {
            return Err(VerifyError::SidesDiffer { parameter: name.clone(), what: "scale" });
        }
        written.entry((copy.parameter.0, holding)).or_default().push(region);
    }
    let verified = exact_cover(target, written, plan.copies.len())?;
    check_statistics(plan, source, target)?;
    Ok(verified)
}

/// What may be converted into each other.
const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::Bf16];

/// The source parameter that each target parameter must come from, by its name and aliases.
fn origins(plan: &Plan, source: &Layout, target: &Layout) -> Result<Vec<Option<ParameterId>>, VerifyError> {
    let mut origins: Vec<Option<ParameterId>> = Vec::new();
    for (_, wanted) in target.parameters() {
        origins.push(source.find(&wanted.name));
    }
    for (alias, id) in target.aliases() {
        let by_alias = source.find(alias);
        let known = &mut origins[id.index()];
        if by_alias.is_some() && known.is_some() && *known != by_alias {
            let parameter = target.parameter(id).name.clone();
            return Err(VerifyError::SidesDiffer { parameter, what: "what an alias stands for" });
        }
        *known = known.or(by_alias);
    }
    for ((_, wanted), origin) in target.parameters().zip(&origins) {
        let Some(held) = origin.map(|id| source.parameter(id)) else { continue };
        let differs = |what| Err(VerifyError::SidesDiffer { parameter: wanted.name.clone(), what });
        if held.shape != wanted.shape {
            return differs("shape");
        }
        // Only a plan that says so converts, and only between floats of 16 bits and more.
        let is_cast = plan.cast && [held.dtype, wanted.dtype].iter().all(|dtype| FLOATS.contains(dtype));
        if held.dtype != wanted.dtype && !is_cast {
            return differs("dtype");
        }
    }
    Ok(origins)
}

/// Parts of a copy's box, and the scale that a layout gives them where it is not 1.
type Scaled = Vec<(Region, f64)>;

/// Whether `other` gives every part of `one` the same scale.
fn same_scales(one: &Scaled, other: &Scaled) -> bool {
    one.iter().all(|(region, scale)| {
        let equal = other.iter().filter(|(_, of_other)| of_other == scale);
        let common = equal.filter_map(|(part, _)| part.intersection(region));
        common.map(|part| part.volume()).sum::<u64>() == region.volume()
    })
}

fn check_statistics(plan: &Plan, source: &Layout, target: &Layout) -> Result<(), VerifyError> {
    let stated = &plan.statistics;
    let world = source.world().max(target.world()) as usize;
    let mut local = Bytes(0);
    let (mut sent, mut received) = (vec![Bytes(0); world], vec![Bytes(0); world]);
    for copy in &plan.copies {
        let (from, to) = (plan.source_rank(copy), plan.target_rank(copy));
        let held = plan.source.buffer(copy.source.buffer).dtype.size();
        let wanted = plan.target.buffer(copy.target.buffer).dtype.size();
        if from == to {
            local += Bytes(copy.elements().0 * wanted);
        } else {
            let bytes = Bytes(copy.elements().0 * held.min(wanted));
            sent[from.index()] += bytes;
            received[to.index()] += bytes;
        }
    }
    let found = sent.iter().copied().sum();
    let counts = (stated.copies, stated.source_pieces, stated.target_pieces);
    let same = counts == (plan.copies.len() as u64, source.piece_count(), target.piece_count())
        && stated.bytes_local == local
        && stated.bytes_sent == found
        && stated.sent_by_rank == sent
        && stated.received_by_rank == received;
    same.then_some(()).ok_or(VerifyError::WrongStatistics { stated: stated.bytes_sent, found })
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
    for (side, end, places) in
        [(Side::Source, &copy.source, &plan.source), (Side::Target, &copy.target, &plan.target)]
    {
        if end.buffer.index() >= places.buffers.len() {
            let (buffer, buffers) = (end.buffer, places.buffers.len());
            return Err(VerifyError::UnknownBuffer { copy: number, side, buffer, buffers });
        }
    }
    if lengths.iter().any(|&length| length != axes) || !(0..axes).all(fits) || copy.shape.contains(&0) {
        return Err(VerifyError::Malformed { parameter: parameter.name.clone(), copy: number });
    }
    Ok(Region::new(copy.origin.iter().copied(), copy.shape.iter().copied()))
}

/// What one side keeps where, with an index of boxes for each geometry.
struct Holdings<'a> {
    layout: &'a Layout,
    side: Side,
    indexes: HashMap<GeometryId, Intervals>,
}

impl<'a> Holdings<'a> {
    fn new(layout: &'a Layout, side: Side) -> Self {
        Self { layout, side, indexes: HashMap::new() }
    }

    /// Checks that the box lies at the copy's address. Returns the holding that it belongs to, and the parts
    /// of the box that are scaled there.
    fn check(
        &mut self,
        copy: usize,
        parameter: ParameterId,
        end: &End,
        region: &Region,
        name: &str,
    ) -> Result<(usize, Scaled), VerifyError> {
        let rank = self.layout.places().rank_of(end.buffer);
        let instances = self.layout.instances(parameter);
        // Instances are ordered by rank, then buffer.
        let first = instances.partition_point(|at| (at.rank, at.buffer) < (rank, end.buffer));
        let of_buffer = instances[first..].iter().take_while(|at| at.buffer == end.buffer);
        for (at, instance) in of_buffer.enumerate() {
            if let Some(scaled) = self.lies_there(instance, end, region) {
                return Ok((first + at, scaled));
            }
        }
        Err(VerifyError::WrongPlace {
            parameter: name.to_owned(),
            copy,
            side: self.side,
            region: region.clone(),
            buffer: end.buffer,
            rank,
            offset: end.offset,
        })
    }

    /// Whether the blocks of the instance give every element of the box the address that the copy gives it;
    /// then the parts with a scale.
    fn lies_there(&mut self, instance: &Instance, end: &End, region: &Region) -> Option<Scaled> {
        let geometry = self.layout.geometry(instance.geometry);
        let index = self
            .indexes
            .entry(instance.geometry)
            .or_insert_with(|| Intervals::new(geometry.blocks().iter().map(|block| &block.region)));
        let (mut covered, mut scaled) = (0, Scaled::new());
        let mut met = Vec::new();
        index.meeting(region, &mut |at| met.push(at));
        for at in met {
            let block = &geometry.blocks()[at];
            let Some(common) = block.region.intersection(region) else { continue };
            let by_layout = corner(&common, &block.region, &block.strides)
                .and_then(|within| within.checked_add(block.offset.0)?.checked_add(instance.base.0));
            let by_copy =
                corner(&common, region, &end.strides).and_then(|within| within.checked_add(end.offset.0));
            let same_steps = (0..common.axes())
                .all(|axis| common.extent()[axis] == 1 || block.strides[axis] == end.strides[axis]);
            if by_layout.is_none() || by_layout != by_copy || !same_steps {
                return None;
            }
            covered += common.volume();
            if block.scale != 1.0 {
                scaled.push((common, block.scale));
            }
        }
        (covered == region.volume()).then_some(scaled)
    }
}

/// Address of the lowest corner of `inner`, counted from that of `outer`.
fn corner(inner: &Region, outer: &Region, strides: &Dims) -> Option<u64> {
    (0..inner.axes()).try_fold(0u64, |sum, axis| {
        let steps = inner.origin()[axis] - outer.origin()[axis];
        sum.checked_add(steps.checked_mul(strides[axis])?)
    })
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

/// Two boxes that share an element.
fn meeting_pair(boxes: &[Region]) -> Option<(Region, Region)> {
    let index = Intervals::new(boxes.iter());
    for (at, region) in boxes.iter().enumerate() {
        let mut found = None;
        index.meeting(region, &mut |other| {
            if other != at && boxes[other].overlaps(region) {
                found = Some(other);
            }
        });
        if let Some(other) = found {
            return Some((region.clone(), boxes[other].clone()));
        }
    }
    None
}

//! Proves the invariants of a layout, per geometry where that is enough and per instance where it must be.
//!
//! ```text
//!  once per geometry:  boxes inside the shape, strides sound, no element and no address twice
//!  once per storage:   spans of instances sorted by address; only spans that meet are compared box by box
//!  once per signature: (shape, geometries of all holders): do they cover the parameter?
//! ```

use std::collections::{HashMap, HashSet};

use crate::error::{Finding, LayoutError};
use crate::geometry::{Block, Geometry, GeometryId};
use crate::join::{overlapping_pairs, refine};
use crate::layout::{Fill, Instance, Layout};
use crate::places::StorageId;
use crate::region::{Dims, Region, volume};
use crate::span::{self, Lattice, Meet};
use crate::units::{Bytes, Elements};

/// The largest rank number: plans keep a number for each rank up to the largest.
const RANK_MAX: u32 = (1 << 20) - 1;

/// No more findings than this are collected.
const FINDINGS_MAX: usize = 100;

/// Checks a layout, of which the builder already found what `findings` says.
pub(crate) fn check(layout: &Layout, mut findings: Vec<Finding>) -> Result<(), LayoutError> {
    places(layout, &mut findings);
    shapes(layout, &mut findings);
    stop_at(&findings)?;
    geometries(layout, &mut findings);
    bounds(layout, &mut findings);
    stop_at(&findings)?;
    storages(layout, &mut findings);
    holders(layout, &mut findings);
    stop_at(&findings)
}

/// Later passes rely on what the earlier ones proved.
fn stop_at(findings: &[Finding]) -> Result<(), LayoutError> {
    if findings.is_empty() {
        return Ok(());
    }
    Err(LayoutError::Findings { findings: findings.iter().take(FINDINGS_MAX).cloned().collect() })
}

fn places(layout: &Layout, findings: &mut Vec<Finding>) {
    let places = layout.places();
    let mut names = HashSet::new();
    for storage in &places.storages {
        if storage.rank.0 > RANK_MAX {
            findings.push(Finding::RankTooLarge { rank: storage.rank, limit: RANK_MAX });
        }
        if !names.insert((storage.rank, &storage.name)) {
            findings.push(Finding::RepeatedStorage { rank: storage.rank, name: storage.name.clone() });
        }
    }
    for (id, buffer) in (0u32..).map(crate::BufferId).zip(&places.buffers) {
        let storage = places.storage(buffer.storage);
        let size = buffer.dtype.size();
        let end = buffer.length.0.checked_mul(size).and_then(|bytes| bytes.checked_add(buffer.offset.0));
        if end.is_none_or(|end| end > storage.length.0) {
            findings.push(Finding::BufferOutOfStorage {
                buffer: id,
                storage: buffer.storage,
                name: storage.name.clone(),
                rank: storage.rank,
                end: Bytes(end.unwrap_or(u64::MAX)),
                length: storage.length,
            });
        }
        if !buffer.offset.0.is_multiple_of(size) {
            let (offset, dtype) = (buffer.offset, buffer.dtype);
            findings.push(Finding::BufferMisaligned { buffer: id, offset, size, dtype });
        }
    }
    for fill in layout.fills() {
        let expected = places.buffer(fill.buffer).dtype.size();
        if let Some(fault) = fill_fault(fill, places.buffer(fill.buffer).length) {
            let (buffer, shape, strides) = (fill.buffer, fill.shape.clone(), fill.strides.clone());
            findings.push(Finding::BadFill { buffer, shape, strides, fault });
        }
        if fill.value.len() as u64 != expected {
            findings.push(Finding::FillValue { buffer: fill.buffer, expected, found: fill.value.len() });
        }
    }
}

fn fill_fault(fill: &Fill, length: Elements) -> Option<&'static str> {
    if fill.shape.len() != fill.strides.len() {
        return Some("has other axes in one than in the other");
    }
    if fill.shape.contains(&0) {
        return Some("covers nothing");
    }
    let block = Block::new(Region::whole(&fill.shape), fill.offset, fill.strides.clone());
    if block.end().is_none_or(|end| end > length.0) {
        return Some("leaves the buffer");
    }
    match span::addresses_twice(&fill.shape, &fill.strides) {
        Meet::No => None,
        _ => Some("may address an element twice"),
    }
}

fn shapes(layout: &Layout, findings: &mut Vec<Finding>) {
    for (_, parameter) in layout.parameters() {
        if volume(&parameter.shape)
            .and_then(|elements| elements.checked_mul(parameter.dtype.size()))
            .is_none()
        {
            let (parameter, shape) = (parameter.name.clone(), parameter.shape.clone());
            findings.push(Finding::TooLarge { parameter, shape });
        }
    }
    for instance in layout.all_instances() {
        let parameter = layout.parameter(instance.parameter);
        let geometry = layout.geometry(instance.geometry);
        if geometry.shape() != parameter.shape.as_slice() {
            findings.push(Finding::ShapeDisagrees {
                parameter: parameter.name.clone(),
                rank: instance.rank,
                expected: parameter.shape.clone(),
                found: Dims::from_slice(geometry.shape()),
            });
        }
        let found = layout.places().buffer(instance.buffer).dtype;
        if found != parameter.dtype {
            findings.push(Finding::DtypeDisagrees {
                parameter: parameter.name.clone(),
                rank: instance.rank,
                buffer: instance.buffer,
                expected: parameter.dtype,
                found,
            });
        }
    }
}

/// One instance of each geometry, to name in a finding about the geometry.
fn examples(layout: &Layout) -> HashMap<GeometryId, &Instance> {
    let mut examples = HashMap::new();
    for instance in layout.all_instances() {
        examples.entry(instance.geometry).or_insert(instance);
    }
    examples
}

fn geometries(layout: &Layout, findings: &mut Vec<Finding>) {
    let examples = examples(layout);
    for (id, geometry) in layout.geometries() {
        let Some(instance) = examples.get(&id) else { continue };
        let name = layout.parameter(instance.parameter).name.clone();
        let before = findings.len();
        for block in geometry.blocks() {
            findings.extend(block_fault(geometry, block, &name, instance));
        }
        if findings.len() == before {
            let regions: Vec<&Region> = geometry.blocks().iter().map(|block| &block.region).collect();
            findings.extend(held_twice(&regions).map(|(first, second)| Finding::HeldTwice {
                parameter: name,
                rank: instance.rank,
                first,
                second,
            }));
        }
    }
}

fn block_fault(geometry: &Geometry, block: &Block, name: &str, instance: &Instance) -> Option<Finding> {
    let (parameter, rank) = (name.to_owned(), instance.rank);
    let (region, shape) = (&block.region, geometry.shape());
    if region.axes() != shape.len() || block.strides.len() != shape.len() {
        let found = if region.axes() == shape.len() { block.strides.len() } else { region.axes() };
        return Some(Finding::WrongAxes { parameter, rank, expected: shape.len(), found });
    }
    if (0..shape.len()).any(|axis| region.end(axis) > shape[axis]) {
        let (region, shape) = (region.clone(), Dims::from_slice(shape));
        return Some(Finding::RegionOutOfParameter { parameter, rank, region, shape });
    }
    if block.scale == 0.0 || !block.scale.is_finite() {
        return Some(Finding::BadScale { parameter, rank, region: region.clone(), scale: block.scale });
    }
    match span::addresses_twice(region.extent(), &block.strides) {
        Meet::No => None,
        Meet::Yes => Some(Finding::SelfOverlap {
            parameter,
            rank,
            region: region.clone(),
            strides: block.strides.clone(),
        }),
        Meet::Unknown => Some(Finding::TooIrregular { what: parameter }),
    }
}

fn held_twice(regions: &[&Region]) -> Option<(Region, Region)> {
    let mut pair = None;
    overlapping_pairs(regions, regions, &mut |i, j| {
        if i < j {
            pair.get_or_insert((i, j));
        }
    });
    pair.map(|(i, j)| (regions[i].clone(), regions[j].clone()))
}

fn bounds(layout: &Layout, findings: &mut Vec<Finding>) {
    let mut ends: HashMap<GeometryId, Option<u64>> = HashMap::new();
    for instance in layout.all_instances() {
        let geometry = layout.geometry(instance.geometry);
        let end = ends.entry(instance.geometry).or_insert_with(|| span_end(geometry));
        let length = layout.places().buffer(instance.buffer).length;
        let fits = end.and_then(|end| end.checked_add(instance.base.0)).is_some_and(|end| end <= length.0);
        if fits || geometry.blocks().is_empty() {
            continue;
        }
        let block_end = |block: &Block| block.end().and_then(|end| end.checked_add(instance.base.0));
        let past = geometry.blocks().iter().find(|block| block_end(block).is_none_or(|end| end > length.0));
        if let Some(block) = past {
            findings.push(Finding::PieceOutOfBuffer {
                parameter: layout.parameter(instance.parameter).name.clone(),
                rank: instance.rank,
                region: block.region.clone(),
                buffer: instance.buffer,
                end: block_end(block).unwrap_or(u64::MAX),
                length: length.0,
            });
        }
    }
}

fn span_end(geometry: &Geometry) -> Option<u64> {
    geometry.blocks().iter().try_fold(0, |end, block| Some(block.end()?.max(end)))
}

/// What takes bytes of a storage: an instance or a fill.
#[derive(Clone, Copy)]
enum Taker<'a> {
    Instance(&'a Instance),
    Fill(usize),
}

fn storages(layout: &Layout, findings: &mut Vec<Finding>) {
    let mut known: HashMap<GeometryId, (Meet, u64, u64)> = HashMap::new();
    let mut takers: Vec<(StorageId, u64, u64, Taker<'_>)> = Vec::new();
    for instance in layout.all_instances() {
        let geometry = layout.geometry(instance.geometry);
        if geometry.blocks().is_empty() {
            continue;
        }
        let (meet, first, end) = *known.entry(instance.geometry).or_insert_with(|| {
            let lattices = lattices(geometry.blocks(), Elements(0), 0, 1);
            let first = lattices.iter().map(Lattice::first).min().unwrap_or(0);
            (span::any_meet(&lattices), first, lattices.iter().map(Lattice::end).max().unwrap_or(0))
        });
        if meet != Meet::No {
            findings.push(overlap(layout, Taker::Instance(instance), Taker::Instance(instance), meet));
            continue;
        }
        let buffer = layout.places().buffer(instance.buffer);
        let byte = |element: u64| buffer.offset.0 + (instance.base.0 + element) * buffer.dtype.size();
        takers.push((buffer.storage, byte(first), byte(end), Taker::Instance(instance)));
    }
    for (index, fill) in layout.fills().iter().enumerate() {
        for lattice in taker_lattices(layout, Taker::Fill(index)) {
            let storage = layout.places().buffer(fill.buffer).storage;
            takers.push((storage, lattice.first(), lattice.end(), Taker::Fill(index)));
        }
    }
    takers.sort_by_key(|&(storage, first, end, _)| (storage, first, end));
    neighbours(layout, &takers, findings);
}

/// Compares box by box those takers whose spans of bytes meet.
fn neighbours(layout: &Layout, takers: &[(StorageId, u64, u64, Taker<'_>)], findings: &mut Vec<Finding>) {
    let mut open: Vec<usize> = Vec::new();
    for (at, &(storage, first, _, taker)) in takers.iter().enumerate() {
        open.retain(|&earlier| takers[earlier].0 == storage && takers[earlier].2 > first);
        for &earlier in &open {
            let mut both = taker_lattices(layout, takers[earlier].3);
            both.extend(taker_lattices(layout, taker));
            let meet = span::any_meet(&both);
            if meet != Meet::No {
                findings.push(overlap(layout, takers[earlier].3, taker, meet));
            }
        }
        if findings.len() >= FINDINGS_MAX {
            return;
        }
        open.push(at);
    }
}

fn lattices(blocks: &[Block], base: Elements, byte_offset: u64, size: u64) -> Vec<Lattice> {
    let lattice = |block: &Block| {
        Lattice::new(
            byte_offset + (base.0 + block.offset.0) * size,
            block.region.extent(),
            &block.strides,
            size,
        )
    };
    blocks.iter().map(lattice).collect()
}

fn taker_lattices(layout: &Layout, taker: Taker<'_>) -> Vec<Lattice> {
    match taker {
        Taker::Instance(instance) => {
            let buffer = layout.places().buffer(instance.buffer);
            let geometry = layout.geometry(instance.geometry);
            lattices(geometry.blocks(), instance.base, buffer.offset.0, buffer.dtype.size())
        }
        Taker::Fill(index) => {
            let fill = &layout.fills()[index];
            let buffer = layout.places().buffer(fill.buffer);
            let size = buffer.dtype.size();
            vec![Lattice::new(buffer.offset.0 + fill.offset.0 * size, &fill.shape, &fill.strides, size)]
        }
    }
}

fn overlap(layout: &Layout, first: Taker<'_>, second: Taker<'_>, meet: Meet) -> Finding {
    let describe = |taker: Taker<'_>| match taker {
        Taker::Instance(instance) => layout.parameter(instance.parameter).name.clone(),
        Taker::Fill(index) => format!("fill {index}"),
    };
    let buffer = match first {
        Taker::Instance(instance) => instance.buffer,
        Taker::Fill(index) => layout.fills()[index].buffer,
    };
    if meet == Meet::Unknown {
        let what = format!("{} and {}", describe(first), describe(second));
        return Finding::TooIrregular { what };
    }
    let id = layout.places().buffer(buffer).storage;
    let storage = layout.places().storage(id);
    Finding::StorageOverlap {
        storage: id,
        name: storage.name.clone(),
        rank: storage.rank,
        first: describe(first),
        second: describe(second),
    }
}

fn holders(layout: &Layout, findings: &mut Vec<Finding>) {
    let mut covered: HashSet<Vec<(u32, GeometryId)>> = HashSet::new();
    for (id, parameter) in layout.parameters() {
        let instances = layout.instances(id);
        let signature: Vec<_> = instances.iter().map(|at| (at.rank.0, at.geometry)).collect();
        if volume(&parameter.shape) == Some(0) || covered.contains(&signature) {
            continue;
        }
        let before = findings.len();
        for of_rank in instances.chunk_by(|one, other| one.rank == other.rank) {
            if of_rank.len() > 1 {
                let regions: Vec<&Region> = regions(layout, of_rank).collect();
                findings.extend(held_twice(&regions).map(|(first, second)| Finding::HeldTwice {
                    parameter: parameter.name.clone(),
                    rank: of_rank[0].rank,
                    first,
                    second,
                }));
            }
        }
        if findings.len() > before {
            continue;
        }
        findings.extend(hole(layout, &parameter.name, &parameter.shape, instances));
        if findings.len() == before {
            covered.insert(signature);
        }
    }
}

fn regions<'a>(layout: &'a Layout, instances: &'a [Instance]) -> impl Iterator<Item = &'a Region> {
    instances
        .iter()
        .flat_map(|instance| layout.geometry(instance.geometry).blocks())
        .map(|block| &block.region)
}

fn hole(layout: &Layout, name: &str, shape: &[u64], instances: &[Instance]) -> Option<Finding> {
    let distinct: HashSet<&Region> = regions(layout, instances).collect();
    let total = volume(shape)?;
    // No rank holds an element twice, so that one with as many elements as the parameter holds all of it.
    let elements = |of_rank: &[Instance]| regions(layout, of_rank).map(Region::volume).sum::<u64>();
    if instances.chunk_by(|one, other| one.rank == other.rank).any(|of_rank| elements(of_rank) == total) {
        return None;
    }
    let whole = Region::whole(shape);
    let mut boxes: Vec<&Region> = distinct.into_iter().collect();
    boxes.sort_unstable();
    let (mut missing, mut largest) = (0, None::<Region>);
    refine(&whole, &boxes, &mut |cell, holders| {
        if holders.is_empty() {
            missing += cell.volume();
            if largest.as_ref().is_none_or(|found| found.volume() < cell.volume()) {
                largest = Some(cell.clone());
            }
        }
    });
    largest.map(|region| Finding::Hole { parameter: name.to_owned(), region, missing, total })
}

//! Where the boxes of two layouts meet: once for all parameters whose holders and geometries are equal.
//!
//! ```text
//!   source boxes       target boxes         meetings
//!   +-----+-----+      +--+--+--+--+        target slot 0: (4,2) held by source slot 0
//!   |  0  |  1  |      |0 |1 |2 |3 |        target slot 1: (4,1) held by 0 ...
//!   +-----+-----+      +--+--+--+--+        a box that several ranks hold has several candidates
//! ```

use std::collections::{HashMap, HashSet};

use reshard_layout::{
    Elements, GeometryId, Instance, Layout, Rank, Region, overlapping, overlapping_pairs, refine,
};

use crate::error::PlanError;
use crate::names::Match;

/// A block of an instance: the instance's position among its parameter's, and the block's in its geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) instance: u32,
    pub(crate) block: u32,
}

/// A source block that holds the whole of a meeting's box.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) rank: Rank,
    pub(crate) slot: Slot,
}

/// A box that one target block wants and that each candidate holds. Candidates are in order of rank.
#[derive(Clone, Debug)]
pub(crate) struct Meeting {
    pub(crate) target_rank: Rank,
    pub(crate) target: Slot,
    pub(crate) region: Region,
    pub(crate) candidates: std::rc::Rc<[Candidate]>,
}

impl Meeting {
    pub(crate) fn elements(&self) -> Elements {
        Elements(self.region.volume())
    }
}

/// What a side's holders look like, apart from buffers and bases.
pub(crate) type Signature = Vec<(Rank, GeometryId)>;

pub(crate) fn signature(instances: &[Instance]) -> Signature {
    instances.iter().map(|instance| (instance.rank, instance.geometry)).collect()
}

/// All meetings of one parameter, ordered by target rank, block and lowest corner.
pub(crate) fn meetings(source: &Layout, target: &Layout, at: Match) -> Result<Vec<Meeting>, PlanError> {
    let sources = boxes(source, source.instances(at.source));
    let targets = boxes(target, target.instances(at.target));
    let source_regions: Vec<&Region> = sources.iter().map(|held| held.region).collect();
    let target_regions: Vec<&Region> = targets.iter().map(|wanted| wanted.region).collect();
    let name = &target.parameter(at.target).name;
    let mut meetings = Vec::new();
    for (wanted, found) in targets.iter().zip(overlapping(&target_regions, &source_regions)) {
        let held: Vec<&Held<'_>> = found.into_iter().map(|at| &sources[at]).collect();
        meetings_of_box(wanted, &held, name, &mut meetings)?;
    }
    check_scales(source, target, at, &meetings)?;
    meetings
        .sort_by(|one, other| (one.target, one.region.origin()).cmp(&(other.target, other.region.origin())));
    Ok(meetings)
}

/// One distinct box, and all slots that hold it.
struct Held<'a> {
    region: &'a Region,
    holders: Vec<Candidate>,
}

fn boxes<'a>(layout: &'a Layout, instances: &[Instance]) -> Vec<Held<'a>> {
    let mut known: HashMap<&Region, usize> = HashMap::new();
    let mut boxes: Vec<Held<'a>> = Vec::new();
    for (instance, holding) in (0u32..).zip(instances) {
        for (block, found) in (0u32..).zip(layout.geometry(holding.geometry).blocks()) {
            let position = *known.entry(&found.region).or_insert_with(|| {
                boxes.push(Held { region: &found.region, holders: Vec::new() });
                boxes.len() - 1
            });
            let slot = Slot { instance, block };
            boxes[position].holders.push(Candidate { rank: holding.rank, slot });
        }
    }
    boxes
}

/// Cuts one wanted box where the source's boxes meet it. Replicas that are cut at different places make
/// cells that each candidate holds as a whole.
fn meetings_of_box(
    wanted: &Held<'_>,
    held: &[&Held<'_>],
    name: &str,
    meetings: &mut Vec<Meeting>,
) -> Result<(), PlanError> {
    let mut hole = None;
    let mut meet = |cell: &Region, holders: &[usize]| {
        if holders.is_empty() {
            hole.get_or_insert_with(|| cell.clone());
            return;
        }
        let mut candidates: Vec<Candidate> =
            holders.iter().flat_map(|&holder| held[holder].holders.iter().copied()).collect();
        candidates.sort_by_key(|candidate| (candidate.rank, candidate.slot));
        let candidates: std::rc::Rc<[Candidate]> = candidates.into();
        meetings.extend(wanted.holders.iter().map(|holder| Meeting {
            target_rank: holder.rank,
            target: holder.slot,
            region: cell.clone(),
            candidates: candidates.clone(),
        }));
    };
    let common: Vec<Option<Region>> =
        held.iter().map(|holder| wanted.region.intersection(holder.region)).collect();
    let total: u64 = common.iter().flatten().map(Region::volume).sum();
    if total == wanted.region.volume() && disjoint(&common) {
        for (holder, cell) in common.iter().enumerate() {
            if let Some(cell) = cell {
                meet(cell, &[holder]);
            }
        }
    } else {
        let regions: Vec<&Region> = held.iter().map(|holder| holder.region).collect();
        refine(wanted.region, &regions, &mut meet);
    }
    hole.map_or(Ok(()), |region| Err(PlanError::NotHeld { parameter: name.to_owned(), region }))
}

fn disjoint(cells: &[Option<Region>]) -> bool {
    let cells: Vec<&Region> = cells.iter().flatten().collect();
    let mut met = false;
    if cells.len() > 1 {
        overlapping_pairs(&cells, &cells, &mut |i, j| met |= i < j);
    }
    !met
}

fn is_unscaled(layout: &Layout, instances: &[Instance]) -> bool {
    let geometries: HashSet<GeometryId> = instances.iter().map(|instance| instance.geometry).collect();
    geometries.iter().all(|&id| layout.geometry(id).blocks().iter().all(|block| block.scale == 1.0))
}

fn check_scales(source: &Layout, target: &Layout, at: Match, meetings: &[Meeting]) -> Result<(), PlanError> {
    if is_unscaled(source, source.instances(at.source)) && is_unscaled(target, target.instances(at.target)) {
        return Ok(());
    }
    let scale = |layout: &Layout, instances: &[Instance], slot: Slot| {
        let geometry = layout.geometry(instances[slot.instance as usize].geometry);
        geometry.blocks()[slot.block as usize].scale
    };
    for meeting in meetings {
        let target_scale = scale(target, target.instances(at.target), meeting.target);
        for candidate in meeting.candidates.iter() {
            let source_scale = scale(source, source.instances(at.source), candidate.slot);
            if source_scale != target_scale {
                return Err(PlanError::ScalesDiffer {
                    parameter: target.parameter(at.target).name.clone(),
                    region: meeting.region.clone(),
                    rank: candidate.rank,
                    source_scale,
                    target_scale,
                });
            }
        }
    }
    Ok(())
}

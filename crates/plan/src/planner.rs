//! The passes in order: names, overlap, choice, coalescing, statistics.
//!
//! ```text
//!   parameter   signature of its holders      meetings (once a signature)    copies (bases added)
//!   layer 0 up  (source A, target B)  ------>  [..., ...]  -- choose ------>  offsets + layer 0's bases
//!   layer 1 up  (source A, target B)  --^                  -- choose ------>  offsets + layer 1's bases
//! ```

use std::collections::HashMap;
use std::rc::Rc;

use reshard_layout::{Block, Bytes, Dims, Elements, Instance, Layout, Rank};
use xxhash_rust::xxh3::Xxh3Default;

use crate::choose::{Chooser, How, Request};
use crate::coalesce::{Draft, coalesce};
use crate::copy::{Copy, End, wire_type};
use crate::error::PlanError;
use crate::names::{Match, matches};
use crate::options::Options;
use crate::overlap::{Meeting, Signature, Slot, meetings, signature};
use crate::plan::{Plan, Policy, Statistics};

/// Plans how every element of `target` is filled from `source`.
///
/// Both layouts number the same processes. Parameters are joined by the target's names, through aliases.
/// Equal inputs give equal plans, byte for byte. [`Options`] say more than a policy.
///
/// # Errors
/// [`PlanError`] if a parameter is missing, or the sides disagree about its shape, dtype or scale.
pub fn plan(source: &Layout, target: &Layout, policy: Policy) -> Result<Plan, PlanError> {
    Options::new(policy).plan(source, target)
}

/// Like [`plan`], but asks `selector` who sends each box, once for each (target box x source box), also
/// where there is one holder. Every rank must give the same answers: the order of questions is fixed.
///
/// ```
/// use reshard_layout::{Bytes, DType, Elements, Geometry, LayoutBuilder, Rank};
/// use reshard_plan::plan_with;
///
/// let mut builder = LayoutBuilder::new();
/// let w = builder.parameter("w", [4], DType::F32);
/// for rank in 0..3 {
///     let storage = builder.storage(Rank(rank), "w", Bytes(16));
///     let buffer = builder.buffer(storage, Bytes(0), DType::F32, Elements(4));
///     let whole = builder.geometry(Geometry::whole(&[4]));
///     builder.place(w, buffer, Elements(0), whole);
/// }
/// let replicas = builder.build()?;
/// let highest = plan_with(&replicas, &replicas, |request| *request.candidates.last().unwrap())?;
/// assert_eq!(highest.statistics.sent_by_rank, [Bytes(0), Bytes(0), Bytes(32)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`plan`], and [`PlanError::NotACandidate`] for an answer that is no holder.
pub fn plan_with(
    source: &Layout,
    target: &Layout,
    selector: impl FnMut(&Request<'_>) -> Rank,
) -> Result<Plan, PlanError> {
    Options::ask(selector).plan(source, target)
}

/// All passes. `cast` permits copies from one float type to another.
pub(crate) fn plan_how(
    source: &Layout,
    target: &Layout,
    how: How<'_>,
    cast: bool,
) -> Result<Plan, PlanError> {
    let policy = how.policy();
    let mut chooser = Chooser::new(how, source.world());
    let mut drafts = DraftCache::default();
    let mut copies = Vec::new();
    for at in matches(source, target, cast)? {
        let known = drafts.meetings(source, target, at)?;
        let wanted = target.parameter(at.target);
        let wire = wire_type(source.parameter(at.source).dtype, wanted.dtype);
        let choice = chooser.choose(&wanted.name, &known.meetings, wire)?;
        let key = if chooser.is_stateless() { Vec::new() } else { choice.clone() };
        let chosen = drafts
            .chosen
            .entry((known.number, key))
            .or_insert_with(|| Rc::new(coalesce(drafts_of(source, target, at, &known.meetings, &choice))))
            .clone();
        place(source, target, at, &chosen, &mut copies);
    }
    copies.sort_unstable();
    let mut plan = Plan {
        version: Plan::VERSION,
        fingerprint: 0,
        policy,
        cast,
        source: source.places().clone(),
        target: target.places().clone(),
        copies,
        fills: target.fills().to_vec(),
        parameters: target.parameters().map(|(_, parameter)| parameter.clone()).collect(),
        statistics: Statistics::default(),
    };
    plan.fingerprint = fingerprint(source, target, &plan);
    plan.statistics = statistics(source, target, &plan);
    Ok(plan)
}

/// Hash of planner version, options, both layouts and the copies.
fn fingerprint(source: &Layout, target: &Layout, plan: &Plan) -> u64 {
    let mut digest = Xxh3Default::new();
    let mut feed = |numbers: &[u64]| numbers.iter().for_each(|number| digest.update(&number.to_le_bytes()));
    feed(&[u64::from(plan.version), plan.policy as u64, u64::from(plan.cast)]);
    feed(&[source.fingerprint(), target.fingerprint()]);
    for copy in &plan.copies {
        feed(&[u64::from(copy.parameter.0), copy.shape.len() as u64]);
        feed(&copy.shape);
        feed(&copy.origin);
        for end in [&copy.source, &copy.target] {
            feed(&[u64::from(end.buffer.0), end.offset.0]);
            feed(&end.strides);
        }
    }
    digest.digest()
}

#[derive(Clone)]
struct Known {
    number: usize,
    meetings: Rc<[Meeting]>,
}

/// What was worked out for one parameter and holds for all with the same holders and geometries.
#[derive(Default)]
struct DraftCache {
    known: HashMap<(Signature, Signature), Known>,
    chosen: HashMap<(usize, Vec<usize>), Rc<Vec<Draft>>>,
}

impl DraftCache {
    fn meetings(&mut self, source: &Layout, target: &Layout, at: Match) -> Result<Known, PlanError> {
        let key = (signature(source.instances(at.source)), signature(target.instances(at.target)));
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let known = Known { number: self.known.len(), meetings: meetings(source, target, at)?.into() };
        self.known.insert(key, known.clone());
        Ok(known)
    }
}

fn block<'a>(layout: &'a Layout, instances: &[Instance], slot: Slot) -> &'a Block {
    &layout.geometry(instances[slot.instance as usize].geometry).blocks()[slot.block as usize]
}

fn drafts_of(
    source: &Layout,
    target: &Layout,
    at: Match,
    meetings: &[Meeting],
    choice: &[usize],
) -> Vec<Draft> {
    let draft = |(meeting, &chosen): (&Meeting, &usize)| {
        let candidate = meeting.candidates[chosen];
        let from = block(source, source.instances(at.source), candidate.slot);
        let to = block(target, target.instances(at.target), meeting.target);
        Draft {
            target_instance: meeting.target.instance,
            source_instance: candidate.slot.instance,
            target_offset: offset_in(to, meeting),
            source_offset: offset_in(from, meeting),
            target_strides: strides_in(to, meeting),
            source_strides: strides_in(from, meeting),
            region: meeting.region.clone(),
        }
    };
    meetings.iter().zip(choice).map(draft).collect()
}

fn offset_in(block: &Block, meeting: &Meeting) -> Elements {
    let corner = meeting.region.origin().iter().zip(block.region.origin());
    block.offset + Elements(corner.zip(&block.strides).map(|((at, from), stride)| (at - from) * stride).sum())
}

fn strides_in(block: &Block, meeting: &Meeting) -> Dims {
    let extent = meeting.region.extent().iter();
    extent.zip(&block.strides).map(|(&extent, &stride)| if extent == 1 { 0 } else { stride }).collect()
}

fn place(source: &Layout, target: &Layout, at: Match, drafts: &[Draft], copies: &mut Vec<Copy>) {
    let end = |instance: &Instance, offset: Elements, strides: &Dims| End {
        buffer: instance.buffer,
        offset: instance.base + offset,
        strides: strides.clone(),
    };
    copies.extend(drafts.iter().map(|draft| {
        let from = &source.instances(at.source)[draft.source_instance as usize];
        let to = &target.instances(at.target)[draft.target_instance as usize];
        Copy {
            target: end(to, draft.target_offset, &draft.target_strides),
            source: end(from, draft.source_offset, &draft.source_strides),
            shape: Dims::from_slice(draft.region.extent()),
            parameter: at.target,
            origin: Dims::from_slice(draft.region.origin()),
        }
    }));
}

fn statistics(source: &Layout, target: &Layout, plan: &Plan) -> Statistics {
    let world = source.world().max(target.world()) as usize;
    let mut statistics = Statistics {
        source_pieces: source.piece_count(),
        target_pieces: target.piece_count(),
        copies: plan.copies.len() as u64,
        sent_by_rank: vec![Bytes(0); world],
        received_by_rank: vec![Bytes(0); world],
        ..Statistics::default()
    };
    for copy in &plan.copies {
        let (bytes, from, to) = (plan.bytes(copy), plan.source_rank(copy), plan.target_rank(copy));
        if from == to {
            statistics.bytes_local += bytes;
        } else {
            statistics.bytes_sent += bytes;
            statistics.sent_by_rank[from.index()] += bytes;
            statistics.received_by_rank[to.index()] += bytes;
        }
    }
    statistics
}

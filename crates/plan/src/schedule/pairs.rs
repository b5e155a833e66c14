//! Who has how much for whom, and the order of the copies between two ranks.
//!
//! ```text
//!   copies   0: 0 -> 1 bf16   1: 0 -> 1 f32   2: 0 -> 0   3: 0 -> 2      pairs (0,0) (0,1) (0,2)
//!   order    2 | 1 0 | 3                                                 copies  0..1 1..3 3..4
//! ```

use std::cmp::Reverse;
use std::ops::Range;

use reshard_layout::{Bytes, Places, Rank, volume};

use crate::copy::{Copy, End};
use crate::plan::Plan;
use crate::schedule::{Schedule, ScheduleError};

/// The copies that one rank has for another, or for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) source: Rank,
    pub(super) target: Rank,
    /// Positions in the schedule's list of copies.
    pub(super) copies: Range<u32>,
    /// Positions in the schedule's list of messages; empty for a rank with itself.
    pub(super) messages: Range<u32>,
}

/// One copy: what decides where it stands, and its bytes on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Item {
    source: Rank,
    target: Rank,
    width: Reverse<u64>,
    position: u32,
    bytes: Bytes,
}

/// All pairs, ordered by source and target, and the order of the copies in them.
pub(super) fn pairs(plan: &Plan, chunk: Bytes) -> Result<(Vec<Pair>, Vec<u32>), ScheduleError> {
    if plan.version != Plan::VERSION {
        return Err(ScheduleError::PlanVersion { expected: Plan::VERSION, found: plan.version });
    }
    let mut items: Vec<Item> = Vec::with_capacity(plan.copies.len());
    for (index, copy) in plan.copies.iter().enumerate() {
        let item = u32::try_from(index).map_err(|_| "its position is past 2^32");
        let item = item.and_then(|position| item_of(plan, copy, position));
        items.push(item.map_err(|cause| ScheduleError::CopyMalformed { copy: index, cause })?);
    }
    items.sort_unstable();
    let mut pairs: Vec<Pair> = Vec::new();
    let (mut copies_end, mut messages_end) = (0, 0u64);
    for group in items.chunk_by(|one, other| (one.source, one.target) == (other.source, other.target)) {
        let Item { source, target, position, .. } = group[0];
        let (copies_start, messages_start) = (copies_end, messages_end);
        copies_end += group.len() as u32;
        if source != target {
            let total = group.iter().try_fold(0u64, |sum, item| sum.checked_add(item.bytes.0));
            let cause = "the bytes between its ranks are past 2^64";
            let total = total.ok_or(ScheduleError::CopyMalformed { copy: position as usize, cause })?;
            messages_end = messages_end.saturating_add(total.div_ceil(chunk.0));
        }
        // Cut to 32 bits where there are too many, which is refused below.
        let messages = messages_start as u32..messages_end as u32;
        pairs.push(Pair { source, target, copies: copies_start..copies_end, messages });
    }
    let (expected, found) = (Schedule::MESSAGES_MAX, messages_end);
    if found > expected {
        return Err(ScheduleError::TooManyMessages { expected, found, chunk });
    }
    Ok((pairs, items.into_iter().map(|item| item.position).collect()))
}

fn item_of(plan: &Plan, copy: &Copy, position: u32) -> Result<Item, &'static str> {
    let bytes = wire_bytes(plan, copy)?;
    let width = Reverse(plan.wire(copy).size());
    Ok(Item { source: plan.source_rank(copy), target: plan.target_rank(copy), width, position, bytes })
}

/// The bytes of a copy on the wire, after a look at all that a share relies on.
fn wire_bytes(plan: &Plan, copy: &Copy) -> Result<Bytes, &'static str> {
    let exists = |places: &Places, end: &End| {
        let buffer = places.buffers.get(end.buffer.index());
        buffer.is_some_and(|buffer| buffer.storage.index() < places.storages.len())
    };
    if !exists(&plan.source, &copy.source) || !exists(&plan.target, &copy.target) {
        return Err("it names a buffer or storage that does not exist");
    }
    let (held, wanted) = plan.types(copy);
    if held != wanted && !plan.cast {
        return Err("its source and target have different types, and the plan may not cast");
    }
    if [&copy.source, &copy.target].iter().any(|end| end.strides.len() != copy.shape.len()) {
        return Err("shape and strides have different numbers of axes");
    }
    if [&copy.source, &copy.target].iter().any(|end| last(end, &copy.shape).is_none()) {
        return Err("an address is past 2^64");
    }
    let elements = volume(&copy.shape).ok_or("its elements are past 2^64")?;
    elements.checked_mul(plan.wire(copy).size()).map(Bytes).ok_or("its bytes are past 2^64")
}

/// The element at the far corner of a box.
fn last(end: &End, shape: &[u64]) -> Option<u64> {
    shape.iter().zip(&end.strides).try_fold(end.offset.0, |sum, (extent, stride)| {
        sum.checked_add(stride.checked_mul(extent.saturating_sub(1))?)
    })
}

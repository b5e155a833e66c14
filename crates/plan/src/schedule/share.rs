//! What one rank does: local copies, padding, and in each round a message to send and one to receive.
//!
//! ```text
//!   message, 40 bytes    |f32 f32 f32 f32 f32|bf16 bf16|f32 ...        boxes follow each other, each row-major
//!                        ^ position 0        ^ 20
//!   of the sender: boxes of its source buffers      of the receiver: boxes of its target buffers
//! ```

use reshard_layout::{BufferId, Bytes, DType, Dims, Elements, Fill, Rank, address, boxes_of_run};

use crate::copy::{Copy, End};
use crate::plan::Plan;
use crate::schedule::Schedule;
use crate::schedule::pairs::Pair;

/// What one rank does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Copies from this rank to itself, in the plan's order. They are in no round and need no staging.
    pub local: Vec<Copy>,
    /// Padding of this rank's target buffers.
    pub fills: Vec<Fill>,
    /// What it sends and receives, round by round.
    pub rounds: Vec<Round>,
}

/// What one rank sends and receives in one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// To another rank; boxes are in source buffers.
    pub send: Option<Message>,
    /// From another rank; boxes are in target buffers.
    pub receive: Option<Message>,
}

/// Bytes that go from one rank to another in one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The other rank.
    pub peer: Rank,
    /// Its length: the sum of its boxes.
    pub bytes: Bytes,
    /// The boxes, one after another without gaps. Both ranks have the same number of them, of the same shapes.
    pub boxes: Vec<WireBox>,
}

/// A box of a buffer, and the bytes of a message that it fills or is filled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireBox {
    /// The buffer, in the plan's source or target places.
    pub buffer: BufferId,
    /// The element of the buffer at which the box begins.
    pub offset: Elements,
    /// Extents of the box; empty for a scalar.
    pub shape: Dims,
    /// Elements between neighbours along each axis.
    pub strides: Dims,
    /// The byte of the message at which it begins, a multiple of the size of `wire`.
    pub position: Bytes,
    /// The type of its elements in the message, row-major. Where the buffer's differs, its owner converts.
    pub wire: DType,
}

/// Which end of a copy a rank has.
#[derive(Clone, Copy)]
enum Role {
    Sender,
    Receiver,
}

pub(super) fn of(schedule: &Schedule, plan: &Plan, rank: Rank) -> Share {
    let mut share = Share { rounds: vec![Round::default(); schedule.rounds as usize], ..Share::default() };
    let filled = |fill: &&Fill| plan.target.rank_of(fill.buffer) == rank;
    share.fills = plan.fills.iter().filter(filled).cloned().collect();
    for pair in &schedule.pairs {
        if pair.source == rank && pair.target == rank {
            let mut positions = copies(schedule, pair).to_vec();
            positions.sort_unstable();
            share.local = positions.into_iter().map(|at| plan.copies[at as usize].clone()).collect();
        } else if pair.source == rank {
            messages(schedule, plan, pair, Role::Sender, |round, message| {
                share.rounds[round].send = Some(message);
            });
        } else if pair.target == rank {
            messages(schedule, plan, pair, Role::Receiver, |round, message| {
                share.rounds[round].receive = Some(message);
            });
        }
    }
    share
}

fn copies<'a>(schedule: &'a Schedule, pair: &Pair) -> &'a [u32] {
    &schedule.copies[pair.copies.start as usize..pair.copies.end as usize]
}

/// Cuts a pair's stream every chunk, and gives each message with its round.
fn messages(schedule: &Schedule, plan: &Plan, pair: &Pair, role: Role, mut give: impl FnMut(usize, Message)) {
    let rounds = &schedule.round_of[pair.messages.start as usize..pair.messages.end as usize];
    let mut rounds = rounds.iter().map(|&round| round as usize);
    let mut give = |message| {
        if let Some(round) = rounds.next() {
            give(round, message);
        }
    };
    let peer = match role {
        Role::Sender => pair.target,
        Role::Receiver => pair.source,
    };
    let empty = || Message { peer, bytes: Bytes(0), boxes: Vec::new() };
    let mut message = empty();
    for &at in copies(schedule, pair) {
        let copy = &plan.copies[at as usize];
        let (wire, total) = (plan.wire(copy), copy.elements().0);
        let mut first = 0;
        while first < total {
            // What is in the message, and the chunk, are multiples of this element's size.
            let room = (schedule.chunk.0 - message.bytes.0) / wire.size();
            if room == 0 {
                give(std::mem::replace(&mut message, empty()));
                continue;
            }
            let end = total.min(first + room);
            add(&mut message, copy, role, first..end, wire);
            first = end;
        }
    }
    if message.bytes.0 > 0 {
        give(message);
    }
}

/// Appends the run of a copy's elements, as boxes.
fn add(message: &mut Message, copy: &Copy, role: Role, run: std::ops::Range<u64>, wire: DType) {
    let end: &End = match role {
        Role::Sender => &copy.source,
        Role::Receiver => &copy.target,
    };
    for region in boxes_of_run(&copy.shape, run) {
        message.boxes.push(WireBox {
            buffer: end.buffer,
            offset: end.offset + Elements(address(region.origin(), &end.strides)),
            shape: Dims::from_slice(region.extent()),
            strides: end.strides.clone(),
            position: message.bytes,
            wire,
        });
        message.bytes += Elements(region.volume()).bytes(wire);
    }
}

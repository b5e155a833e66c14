//! The memory of one group: a counter, a header a member, and two boxes a member.
//!
//! ```text
//!   arrived | header 0 | header 1 | ...      box 0a | box 0b | box 1a | box 1b | ...
//!   round k: write own box (a for even k, b for odd) ─► arrived += 1 ─► wait for (k+1)·n ─► read all boxes
//! ```
//!
//! **Why it is right.** A member writes its box, then adds to `arrived` with Release; a reader sees the sum reach
//! (k+1)·n with Acquire. Additions by others in between continue the release sequence, so all n writes of round
//! k happen before any read of round k. A box is written again in round k+2. Its writer gets there only
//! after round k+1 is full, which needs every member's arrival in it, and a member arrives there (Release) only
//! after its reads of round k: every read of a box happens before its next write. One wait a round is thus enough.
//! `arrived` wraps; rounds are compared as signed differences, and members are never a round apart.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::TransportError;
use crate::memory::CommonMemory;
use crate::park;

/// Bytes that one member passes in one round.
pub(crate) const BOX_BYTES: usize = 256 * 1024;

const LINE: usize = 64;
const PAGE: usize = 4096;

/// What a member calls: written beside its box, and compared by all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: CallKind,
    /// Position in the group, for a broadcast.
    pub(crate) root: u32,
    /// Bytes of the member's own buffer.
    pub(crate) length: u64,
}

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum CallKind {
    Barrier,
    AllGather,
    Broadcast,
    AllReduce,
    ReduceScatter,
}

impl CallKind {
    const ALL: [(Self, &str); 5] = [
        (Self::Barrier, "barrier"),
        (Self::AllGather, "all_gather"),
        (Self::Broadcast, "broadcast"),
        (Self::AllReduce, "all_reduce"),
        (Self::ReduceScatter, "reduce_scatter"),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            CallKind::Barrier => write!(f, "barrier"),
            CallKind::Broadcast => {
                write!(f, "broadcast of {} bytes from position {}", self.length, self.root)
            }
            kind => write!(f, "{} of {} bytes", kind.name(), self.length),
        }
    }
}

/// One member's view of its group's memory.
///
/// Contract: every process that maps the memory uses it through this type, with the same number of
/// members, and each position in at most one place. The registry hands it to each member once.
#[derive(Debug)]
pub(crate) struct Mailboxes {
    memory: CommonMemory,
    members: usize,
    position: usize,
    /// Rounds this member has begun.
    rounds: u32,
}

impl Mailboxes {
    fn boxes_begin(members: usize) -> usize {
        (LINE * (1 + members)).next_multiple_of(PAGE)
    }

    /// The memory that a group of this many members needs.
    pub(crate) fn bytes(members: usize) -> usize {
        Self::boxes_begin(members) + 2 * members * BOX_BYTES
    }

    /// Maps the group's memory, as the member at `position`.
    pub(crate) fn from_fd(
        descriptor: BorrowedFd<'_>,
        members: usize,
        position: usize,
    ) -> Result<Self, TransportError> {
        let memory = CommonMemory::from_fd(descriptor, Self::bytes(members))?;
        Ok(Self { memory, members, position, rounds: 0 })
    }

    /// The count of arrivals: the word to park on.
    pub(crate) fn arrived(&self) -> &AtomicU32 {
        self.memory.word(0)
    }

    /// Whether this count of arrivals completes the round that this member is in.
    pub(crate) fn is_complete(&self, arrived: u32) -> bool {
        arrived.wrapping_sub(self.rounds.wrapping_mul(self.members as u32)).cast_signed() >= 0
    }

    /// Positions of the members that have not arrived in this member's round. For messages only.
    pub(crate) fn late(&self) -> Vec<usize> {
        let is_late = |&position: &usize| {
            let begun = self.header(position, 0).load(Ordering::Acquire);
            begun.wrapping_sub(self.rounds).cast_signed() < 0
        };
        (0..self.members).filter(is_late).collect()
    }

    /// Begins a round: fills this member's box and arrives. Does not wait.
    pub(crate) fn post(&mut self, call: Call, write: impl FnOnce(&mut [u8])) {
        let half = self.rounds % 2;
        let offset = self.box_offset(self.position, half);
        // SAFETY: by the module's argument all reads of this box, of two rounds ago, happened before this.
        write(unsafe { self.memory.range_mut(offset, BOX_BYTES) });
        let words = [call.kind as u32, call.root, call.length as u32, (call.length >> 32) as u32];
        for (index, word) in words.into_iter().enumerate() {
            self.header(self.position, Self::call_word(half, index)).store(word, Ordering::Relaxed);
        }
        self.rounds = self.rounds.wrapping_add(1);
        self.header(self.position, 0).store(self.rounds, Ordering::Release);
        let arrived = self.arrived().fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        if self.is_complete(arrived) {
            park::wake_all(self.arrived());
        }
    }

    /// What a member posted in this round. To be called only once the round is complete.
    pub(crate) fn posted(&self, position: usize) -> &[u8] {
        debug_assert!(
            self.is_complete(self.arrived().load(Ordering::Acquire)),
            "boxes are read after the wait"
        );
        let offset = self.box_offset(position, self.rounds.wrapping_sub(1) % 2);
        // SAFETY: the round is complete, so the write happened before; the next write waits until this member
        // has arrived in the next round, which takes `&mut self` and so ends this borrow.
        unsafe { self.memory.range(offset, BOX_BYTES) }
    }

    /// What a member called in this round. To be called only once the round is complete.
    pub(crate) fn called(&self, position: usize) -> Call {
        let half = self.rounds.wrapping_sub(1) % 2;
        let word = |index| self.header(position, Self::call_word(half, index)).load(Ordering::Relaxed);
        let kind = CallKind::ALL[word(0) as usize % CallKind::ALL.len()].0;
        Call { kind, root: word(1), length: u64::from(word(2)) | u64::from(word(3)) << 32 }
    }

    /// Word 0 counts rounds; 1 to 4 and 5 to 8 hold the call of an even and an odd round.
    fn call_word(half: u32, index: usize) -> usize {
        1 + 4 * half as usize + index
    }

    fn header(&self, position: usize, word: usize) -> &AtomicU32 {
        self.memory.word(LINE * (1 + position) + 4 * word)
    }

    fn box_offset(&self, position: usize, half: u32) -> usize {
        Self::boxes_begin(self.members) + (2 * position + half as usize) * BOX_BYTES
    }
}

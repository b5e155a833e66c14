//! Collectives of a group over its mailboxes.
//!
//! ```text
//!   all_reduce of [a b c | d e f] by 2 members, a box at a time
//!   round 1: each posts its data           member 0 adds a b c of 0, 1;  member 1 adds d e f of 0, 1
//!   round 2: each posts its sums           everyone copies a b c from 0, d e f from 1
//! ```
//!
//! Every sum is computed once, by one member, in group order: the bits are the same on all members.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use reshard_layout::{Bytes, Rank};

use crate::communicator::Communicator;
use crate::error::TransportError;
use crate::mailbox::{BOX_BYTES, Call, CallKind, Mailboxes};
use crate::rendezvous::{Membership, WorldId, lock};
use crate::transport::sealed::Member;

const F32_BYTES: usize = size_of::<f32>();

/// An ordered group of ranks of one world, with memory of its own.
///
/// Groups that share no rank run at the same time; a rank calls its groups one at a time.
#[derive(Debug)]
pub struct Group {
    members: Vec<Rank>,
    position: usize,
    membership: Arc<Membership>,
    mailboxes: Mutex<Mailboxes>,
}

impl Group {
    pub(crate) fn new(
        members: Vec<Rank>,
        position: usize,
        membership: Arc<Membership>,
        mailboxes: Mailboxes,
    ) -> Self {
        Self { members, position, membership, mailboxes: Mutex::new(mailboxes) }
    }

    fn call(kind: CallKind, length: usize) -> Call {
        Call { kind, root: 0, length: length as u64 }
    }

    fn expect(&self, call: CallKind, expected: usize, found: usize) -> Result<(), TransportError> {
        if expected == found {
            return Ok(());
        }
        Err(TransportError::BufferLength {
            rank: self.membership.rank(),
            call: call.name().to_owned(),
            expected: Bytes(expected as u64),
            found: Bytes(found as u64),
        })
    }

    /// Posts, waits for everybody, and compares what everybody called.
    fn round(
        &self,
        mailboxes: &mut Mailboxes,
        call: Call,
        write: impl FnOnce(&mut [u8]),
    ) -> Result<(), TransportError> {
        self.membership.check()?;
        mailboxes.post(call, write);
        let mailboxes = &*mailboxes;
        let late = || mailboxes.late().into_iter().map(|position| self.members[position]).collect();
        let arrived: &AtomicU32 = mailboxes.arrived();
        self.membership.wait(arrived, |count| mailboxes.is_complete(count), late, call.kind.name())?;
        let first = mailboxes.called(0);
        for (position, &rank) in self.members.iter().enumerate() {
            let other = mailboxes.called(position);
            if other != first {
                let (expected, found) = (first.to_string(), other.to_string());
                return Err(TransportError::CollectiveMismatch { rank, expected, found });
            }
        }
        Ok(())
    }

    /// Adds what all members posted at a byte offset of their boxes into `sums`, in group order.
    fn add_posted(&self, mailboxes: &Mailboxes, offset: usize, sums: &mut [f32]) {
        let bytes = F32_BYTES * sums.len();
        for position in 0..self.members.len() {
            let posted: &[f32] = bytemuck::cast_slice(&mailboxes.posted(position)[offset..offset + bytes]);
            if position == 0 {
                sums.copy_from_slice(posted);
            } else {
                for (sum, value) in sums.iter_mut().zip(posted) {
                    *sum += value;
                }
            }
        }
    }

    /// The part of `count` elements that a member adds up.
    fn share(&self, count: usize, position: usize) -> std::ops::Range<usize> {
        let cut = |position| count * position / self.members.len();
        cut(position)..cut(position + 1)
    }
}

/// Consecutive ranges of at most `step`; one empty range for nothing, so that every call has a round.
fn steps(length: usize, step: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..length.div_ceil(step).max(1)).map(move |index| index * step..((index + 1) * step).min(length))
}

impl Member for Group {
    fn world(&self) -> Option<WorldId> {
        Some(self.membership.world())
    }
}

impl Communicator for Group {
    fn ranks(&self) -> &[Rank] {
        &self.members
    }

    fn position(&self) -> usize {
        self.position
    }

    fn barrier(&self) -> Result<(), TransportError> {
        self.round(&mut lock(&self.mailboxes), Self::call(CallKind::Barrier, 0), |_| ())
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<(), TransportError> {
        self.expect(CallKind::AllGather, mine.len() * self.members.len(), all.len())?;
        let mailboxes = &mut *lock(&self.mailboxes);
        for step in steps(mine.len(), BOX_BYTES) {
            let bytes = step.len();
            self.round(mailboxes, Self::call(CallKind::AllGather, mine.len()), |own| {
                own[..bytes].copy_from_slice(&mine[step.clone()]);
            })?;
            for position in 0..self.members.len() {
                let begin = position * mine.len() + step.start;
                all[begin..begin + bytes].copy_from_slice(&mailboxes.posted(position)[..bytes]);
            }
        }
        Ok(())
    }

    fn broadcast(&self, data: &mut [u8], root: usize) -> Result<(), TransportError> {
        let size = self.members.len();
        if root >= size {
            return Err(TransportError::PositionOutOfRange {
                rank: self.membership.rank(),
                found: root,
                size,
            });
        }
        let mailboxes = &mut *lock(&self.mailboxes);
        let call = Call { kind: CallKind::Broadcast, root: root as u32, length: data.len() as u64 };
        for step in steps(data.len(), BOX_BYTES) {
            let part = &mut data[step];
            self.round(mailboxes, call, |own| {
                if root == self.position {
                    own[..part.len()].copy_from_slice(part);
                }
            })?;
            part.copy_from_slice(&mailboxes.posted(root)[..part.len()]);
        }
        Ok(())
    }

    fn all_reduce(&self, data: &mut [f32]) -> Result<(), TransportError> {
        let mailboxes = &mut *lock(&self.mailboxes);
        let call = Self::call(CallKind::AllReduce, F32_BYTES * data.len());
        for step in steps(data.len(), BOX_BYTES / F32_BYTES) {
            let part = &mut data[step];
            self.round(mailboxes, call, |own| {
                own[..F32_BYTES * part.len()].copy_from_slice(bytemuck::cast_slice(part));
            })?;
            let share = self.share(part.len(), self.position);
            let offset = F32_BYTES * share.start;
            self.add_posted(mailboxes, offset, &mut part[share.clone()]);
            self.round(mailboxes, call, |own| {
                own[..F32_BYTES * share.len()].copy_from_slice(bytemuck::cast_slice(&part[share.clone()]));
            })?;
            for position in 0..self.members.len() {
                let share = self.share(part.len(), position);
                let bytes = F32_BYTES * share.len();
                part[share].copy_from_slice(bytemuck::cast_slice(&mailboxes.posted(position)[..bytes]));
            }
        }
        Ok(())
    }

    fn reduce_scatter(&self, data: &[f32], mine: &mut [f32]) -> Result<(), TransportError> {
        let size = self.members.len();
        self.expect(CallKind::ReduceScatter, F32_BYTES * mine.len() * size, F32_BYTES * data.len())?;
        let mailboxes = &mut *lock(&self.mailboxes);
        let call = Self::call(CallKind::ReduceScatter, F32_BYTES * data.len());
        let length = mine.len();
        for step in steps(length, (BOX_BYTES / F32_BYTES / size).max(1)) {
            let bytes = F32_BYTES * step.len();
            self.round(mailboxes, call, |own| {
                for position in 0..size {
                    let part = &data[position * length + step.start..position * length + step.end];
                    own[position * bytes..][..bytes].copy_from_slice(bytemuck::cast_slice(part));
                }
            })?;
            self.add_posted(mailboxes, self.position * bytes, &mut mine[step]);
        }
        Ok(())
    }
}

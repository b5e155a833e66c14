//! The page that every rank of a world looks at while it waits.
//!
//! ```text
//!   joined | failed | length | ... failure, as JSON ... | state of rank 0 | state of rank 1 | ...
//!   ranks so far    1 = the failure is there             absent, joined or left
//! ```
//!
//! **Why it is right.** Only one thread writes it, the hub (or whoever holds the registry's lock in a world of
//! threads), so the first failure wins without a race. The failure's bytes are stored before `failed` becomes 1
//! with Release and read after it was seen as 1 with Acquire, and are never stored again.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use reshard_layout::Rank;

use crate::error::TransportError;
use crate::memory::CommonMemory;
use crate::park;

const JOINED: usize = 0;
const FAILED: usize = 4;
const LENGTH: usize = 8;
const TEXT: usize = 64;
const STATES: usize = 8192;

/// What a rank has done so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankState {
    Absent,
    Joined,
    Left,
}

impl RankState {
    fn from_word(word: u32) -> Self {
        match word {
            0 => Self::Absent,
            1 => Self::Joined,
            _ => Self::Left,
        }
    }
}

/// The control page of one world.
#[derive(Debug)]
pub(crate) struct Control {
    memory: CommonMemory,
    size: usize,
}

impl Control {
    fn bytes(size: usize) -> usize {
        STATES + 4 * size
    }

    /// A page for a world of `size` ranks, and the descriptor by which ranks map it.
    pub(crate) fn create(size: usize) -> Result<(Self, OwnedFd), TransportError> {
        let (memory, descriptor) = CommonMemory::create(Self::bytes(size))?;
        Ok((Self { memory, size }, descriptor))
    }

    /// The page that the hub handed out.
    pub(crate) fn from_fd(descriptor: BorrowedFd<'_>, size: usize) -> Result<Self, TransportError> {
        Ok(Self { memory: CommonMemory::from_fd(descriptor, Self::bytes(size))?, size })
    }

    /// The number of ranks of the world.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The number of ranks that have joined; a word to park on.
    pub(crate) fn joined(&self) -> &AtomicU32 {
        self.memory.word(JOINED)
    }

    /// What a rank of the world has done so far.
    pub(crate) fn state(&self, rank: Rank) -> RankState {
        RankState::from_word(self.memory.word(STATES + 4 * rank.index()).load(Ordering::Acquire))
    }

    /// Called by the one writer only.
    pub(crate) fn set_state(&self, rank: Rank, state: RankState) {
        self.memory.word(STATES + 4 * rank.index()).store(state as u32, Ordering::Release);
        if state == RankState::Joined {
            self.joined().fetch_add(1, Ordering::Release);
            park::wake_all(self.joined());
        }
    }

    /// The failure of this world, if there was one.
    pub(crate) fn failure(&self) -> Option<TransportError> {
        if self.memory.word(FAILED).load(Ordering::Acquire) == 0 {
            return None;
        }
        let length = (self.memory.word(LENGTH).load(Ordering::Relaxed) as usize).min(STATES - TEXT);
        // SAFETY: the text was stored before `failed` became 1 and is never stored again.
        let text = unsafe { self.memory.range(TEXT, length) };
        Some(serde_json::from_slice(text).unwrap_or_else(|error| TransportError::Protocol {
            doing: "reading the failure record".to_owned(),
            found: error.to_string(),
        }))
    }

    /// Records a failure unless there is one, and returns the one that counts. Called by the one writer only.
    pub(crate) fn record(&self, error: TransportError) -> TransportError {
        if let Some(first) = self.failure() {
            return first;
        }
        let text = serde_json::to_vec(&error).unwrap_or_default();
        let length = text.len().min(STATES - TEXT);
        // SAFETY: `failed` is 0, so nobody reads the text yet, and this is the only writer.
        unsafe { self.memory.range_mut(TEXT, length) }.copy_from_slice(&text[..length]);
        self.memory.word(LENGTH).store(length as u32, Ordering::Relaxed);
        self.memory.word(FAILED).store(1, Ordering::Release);
        park::wake_all(self.joined());
        error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_wins_and_fits() {
        let (control, _descriptor) = Control::create(3).unwrap();
        assert_eq!(control.failure(), None);
        let cause = crate::error::shortened("\u{1}é".repeat(5000));
        let first = TransportError::PeerFailed { rank: Rank(2), cause };
        assert_eq!(control.record(first.clone()), first);
        assert_eq!(control.record(TransportError::LauncherGone { rank: Rank(0) }), first);
        assert_eq!(control.failure(), Some(first));
    }
}

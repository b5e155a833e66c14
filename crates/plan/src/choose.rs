//! Which holder each box is read from.
//!
//! ```text
//!   candidates of a box for target rank 5:   ranks 0, 2, 5        lowest 0    local 5    balanced 5
//!                         for target rank 6: ranks 0, 2, 5        lowest 0    local 0    balanced: who sent least
//! ```
//!
//! `balanced` goes through parameters in the target's order, and in each through boxes by target rank, block
//! and lowest corner. A rank's load is the bytes that it sends to other ranks so far.

use reshard_layout::{Bytes, DType};

use crate::overlap::{Candidate, Meeting};
use crate::plan::Policy;

/// Chooses for one parameter after another; `balanced` remembers what each rank sends.
pub(crate) struct Chooser {
    policy: Policy,
    sent: Vec<Bytes>,
}

impl Chooser {
    /// A chooser for source ranks below `world`.
    pub(crate) fn new(policy: Policy, world: u32) -> Self {
        Self { policy, sent: vec![Bytes(0); world as usize] }
    }

    /// Whether equal meetings always get equal answers.
    pub(crate) fn is_stateless(&self) -> bool {
        self.policy != Policy::Balanced
    }

    /// The position of the chosen candidate of each meeting.
    pub(crate) fn choose(&mut self, meetings: &[Meeting], dtype: DType) -> Vec<u32> {
        meetings.iter().map(|meeting| self.one(meeting, dtype)).collect()
    }

    fn one(&mut self, meeting: &Meeting, dtype: DType) -> u32 {
        let candidates = &meeting.candidates;
        let own = candidates.iter().position(|candidate| candidate.rank == meeting.target_rank);
        let chosen = match (self.policy, own) {
            (Policy::Local | Policy::Balanced, Some(own)) => own,
            (Policy::Lowest | Policy::Local, _) => 0,
            (Policy::Balanced, None) => self.least_loaded(candidates),
        };
        if candidates[chosen].rank != meeting.target_rank {
            self.sent[candidates[chosen].rank.index()] += meeting.elements().bytes(dtype);
        }
        u32::try_from(chosen).unwrap_or(u32::MAX)
    }

    fn least_loaded(&self, candidates: &[Candidate]) -> usize {
        let load = |&at: &usize| (self.sent[candidates[at].rank.index()], candidates[at].rank);
        (0..candidates.len()).min_by_key(load).unwrap_or(0)
    }
}

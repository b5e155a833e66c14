//! Which holder each box is read from.
//!
//! ```text
//!   candidates of a box for target rank 5:   ranks 0, 2, 5        lowest 0    local 5    balanced 5
//!                         for target rank 6: ranks 0, 2, 5        lowest 0    local 0    balanced: who sent least
//! ```
//!
//! `balanced` goes through parameters in the target's order, and in each through boxes by target rank, block
//! and lowest corner. A rank's load is the bytes that it sends to other ranks so far.

use reshard_layout::{Bytes, DType, Rank, Region};

use crate::error::PlanError;
use crate::overlap::{Candidate, Meeting};
use crate::plan::Policy;

/// One question to a caller's own policy: who shall send this box to this rank?
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The target's name of the parameter.
    pub parameter: &'a str,
    /// The rank that wants the box.
    pub target_rank: Rank,
    /// The box.
    pub region: &'a Region,
    /// Its bytes, in the narrower type where the plan casts.
    pub bytes: Bytes,
    /// The ranks that hold all of it, ascending.
    pub candidates: &'a [Rank],
}

/// A caller's own policy: answers with one of the candidates.
pub(crate) type Selector<'a> = dyn FnMut(&Request<'_>) -> Rank + 'a;

/// Chooses for one parameter after another; `balanced` remembers what each rank sends.
pub(crate) struct Chooser<'a> {
    how: How<'a>,
    sent: Vec<Bytes>,
}

pub(crate) enum How<'a> {
    Policy(Policy),
    Selector(Box<Selector<'a>>),
}

impl How<'_> {
    pub(crate) fn policy(&self) -> Policy {
        match self {
            Self::Policy(policy) => *policy,
            Self::Selector(_) => Policy::Custom,
        }
    }
}

impl<'a> Chooser<'a> {
    /// A chooser for source ranks below `world`.
    pub(crate) fn new(how: How<'a>, world: u32) -> Self {
        Self { how, sent: vec![Bytes(0); world as usize] }
    }

    /// Whether equal meetings always get equal answers.
    pub(crate) fn is_stateless(&self) -> bool {
        matches!(self.how, How::Policy(Policy::Lowest | Policy::Local))
    }

    /// The position of the chosen candidate of each meeting.
    pub(crate) fn choose(
        &mut self,
        parameter: &str,
        meetings: &[Meeting],
        wire: DType,
    ) -> Result<Vec<usize>, PlanError> {
        meetings.iter().map(|meeting| self.one(parameter, meeting, wire)).collect()
    }

    fn one(&mut self, parameter: &str, meeting: &Meeting, wire: DType) -> Result<usize, PlanError> {
        let candidates = &meeting.candidates;
        let bytes = meeting.elements().bytes(wire);
        // Candidates are in order of rank, one a rank.
        let own = candidates.binary_search_by_key(&meeting.target_rank, |candidate| candidate.rank).ok();
        let chosen = match (&mut self.how, own) {
            (How::Selector(selector), _) => ask(selector.as_mut(), parameter, meeting, bytes)?,
            (How::Policy(Policy::Local | Policy::Balanced), Some(own)) => own,
            (How::Policy(Policy::Balanced), None) => least_loaded(&self.sent, candidates),
            (How::Policy(_), _) => 0,
        };
        if candidates[chosen].rank != meeting.target_rank {
            self.sent[candidates[chosen].rank.index()] += bytes;
        }
        Ok(chosen)
    }
}

fn ask(
    selector: &mut Selector<'_>,
    parameter: &str,
    meeting: &Meeting,
    bytes: Bytes,
) -> Result<usize, PlanError> {
    let ranks: Vec<Rank> = meeting.candidates.iter().map(|candidate| candidate.rank).collect();
    let request = Request {
        parameter,
        target_rank: meeting.target_rank,
        region: &meeting.region,
        bytes,
        candidates: &ranks,
    };
    let answer = selector(&request);
    ranks.iter().position(|&rank| rank == answer).ok_or_else(|| PlanError::NotACandidate {
        parameter: parameter.to_owned(),
        region: meeting.region.clone(),
        answer,
        candidates: ranks,
    })
}

fn least_loaded(sent: &[Bytes], candidates: &[Candidate]) -> usize {
    let load = |&at: &usize| (sent[candidates[at].rank.index()], candidates[at].rank);
    (0..candidates.len()).min_by_key(load).unwrap_or(0)
}

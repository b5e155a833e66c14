//! The sync protocol: agree, move, verify, commit. Any refusal is every rank's error.
//!
//! ```text
//!   offer ─► agree 1: plan, pairs, version, readiness ─► reach ─► agree 2: reached?      no byte has moved yet
//!         ─► target torn ─► move ─► verify ─► agree 3: verified? ─► committed, sources free again
//! ```
//!
//! Every agreement is one all-gather of a fixed-size ballot, judged by the same function on every rank: all
//! reach the same verdict. The third one is the commit: a rank that reports version v has seen every ballot
//! say that v was verified. A rank that verified but never saw the ballots is in doubt. The third ballot also means
//! that its rank reads no source any more, so that the commit releases the sources.
//!
//! A rank whose second or third agreement comes to no verdict (a failed world, a panic) cannot know whether others
//! still read its sources. It abandons the sync: nobody in its process may read on.

use std::time::Instant;

use reshard_layout::Rank;

use crate::ballot::{Ballot, judge, judge_pairs};
use crate::binding::{SourceBinding, TargetBinding};
use crate::communicator::Communicator;
use crate::error::TransportError;
use crate::transport::{Moved, Permit, Report, Transport};

/// The number of a set of weights. Callers choose it; ranks compare it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// What a target holds. Its owner keeps it beside the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TargetState {
    /// Nothing usable: never written, or a move that did not end well.
    #[default]
    Torn,
    /// All of one version, verified on every rank.
    Committed(Version),
    /// This rank verified, but could not learn whether all others did. Reads as not committed.
    InDoubt,
}

impl TargetState {
    /// The version, if there is one to read.
    #[must_use]
    pub fn version(self) -> Option<Version> {
        match self {
            Self::Committed(version) => Some(version),
            Self::Torn | Self::InDoubt => None,
        }
    }
}

/// Runs syncs of one transport among the ranks of one group.
pub struct Synchroniser<'a, T> {
    transport: T,
    communicator: &'a dyn Communicator,
}

impl<'a, T: Transport> Synchroniser<'a, T> {
    /// A synchroniser for a transport; the group holds every rank that the plan moves bytes from or to.
    #[must_use]
    pub fn new(transport: T, communicator: &'a dyn Communicator) -> Self {
        Self { transport, communicator }
    }

    /// The transport.
    #[must_use]
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Moves one version from the sources to the targets. All members of the group call it.
    ///
    /// `verify` looks at this rank's targets after the move. Sources may be written again once this returns: after
    /// a failure of the world, a survivor in another process that still reads them gets arbitrary bytes in a
    /// target that is torn, and one in this process has been waited for.
    ///
    /// # Errors
    /// Before a byte moves, with `state` as it was: [`TransportError::Refused`],
    /// [`TransportError::PlanMismatch`], [`TransportError::CopiesMismatch`],
    /// [`TransportError::VersionMismatch`], the same on every rank. After it, with `state` torn:
    /// [`TransportError::NotVerified`], the same on every rank. At any time the first failure of any rank
    /// of the world; `state` is then as it was, torn, or in doubt.
    pub fn sync(
        &mut self,
        version: Version,
        sources: &SourceBinding<'_>,
        targets: &mut TargetBinding<'_>,
        state: &mut TargetState,
        verify: impl FnOnce(&TargetBinding<'_>) -> Result<(), String>,
    ) -> Result<Report, TransportError> {
        let start = Instant::now();
        let stamps = self.agree(version, sources, targets)?;
        let mut shown = Shown { transport: &mut self.transport, is_released: false };
        let permit = shown.agree(self.communicator, version, &stamps)?;
        *state = TargetState::Torn;
        let moving = Instant::now();
        let moved = shown.transport.move_all(&permit, sources, targets);
        let seconds_moving = moving.elapsed().as_secs_f64();
        let verified = moved.map_err(|error| error.to_string()).and_then(|moved| {
            verify(targets)?;
            Ok(moved)
        });
        let moved = shown.commit(self.communicator, version, state, verified)?;
        Ok(Report { moved, seconds: start.elapsed().as_secs_f64(), seconds_moving })
    }

    /// The first agreement: each rank's stamp.
    fn agree(
        &mut self,
        version: Version,
        sources: &SourceBinding<'_>,
        targets: &TargetBinding<'_>,
    ) -> Result<Vec<(Rank, u64)>, TransportError> {
        let ranks = self.communicator.ranks().to_vec();
        let missing = self.transport.peers().iter().find(|peer| !ranks.contains(peer));
        let offered = match missing {
            Some(&rank) => Err(TransportError::RankMissing { rank }),
            None => self.check_world().and_then(|()| self.transport.offer(sources, targets)),
        };
        let ballot = Ballot::new(self.transport.fingerprint(), version.0, offered);
        let ballots = ballot.exchange(self.communicator)?;
        judge(&ranks, &ballots)?;
        judge_pairs(self.communicator, self.transport.digests())?;
        Ok(ranks.iter().zip(&ballots).map(|(&rank, ballot)| (rank, ballot.stamp)).collect())
    }

    /// Whom the transport reads from is whom the group agrees with.
    fn check_world(&self) -> Result<(), TransportError> {
        let world = self.transport.world();
        if self.transport.peers().is_empty() || world == self.communicator.world() {
            return Ok(());
        }
        Err(TransportError::WorldMismatch { rank: self.communicator.ranks()[self.communicator.position()] })
    }
}

/// A transport whose sources others may be reading. Dropped before a verdict, it abandons the sync.
struct Shown<'t, T: Transport> {
    transport: &'t mut T,
    is_released: bool,
}

impl<T: Transport> Shown<'_, T> {
    /// The second agreement.
    fn agree(
        &mut self,
        communicator: &dyn Communicator,
        version: Version,
        stamps: &[(Rank, u64)],
    ) -> Result<Permit, TransportError> {
        let reached = self.transport.reach(stamps).map(|()| 0);
        let ballot = Ballot::new(self.transport.fingerprint(), version.0, reached);
        let ballots = ballot.exchange(communicator)?;
        let verdict = judge(communicator.ranks(), &ballots);
        // A refusal is everybody's: nobody reads.
        self.is_released = verdict.is_err();
        verdict.map(|()| Permit::new())
    }

    /// The third agreement, after the move.
    fn commit(
        &mut self,
        communicator: &dyn Communicator,
        version: Version,
        state: &mut TargetState,
        verified: Result<Moved, String>,
    ) -> Result<Moved, TransportError> {
        let (moved, refusal) = match verified {
            Ok(moved) => (moved, None),
            Err(cause) => (Moved::default(), Some(cause)),
        };
        let is_verified = refusal.is_none();
        let ballot =
            Ballot { fingerprint: self.transport.fingerprint(), version: version.0, stamp: 0, refusal };
        match ballot.exchange(communicator) {
            Ok(ballots) => {
                // Every rank has moved: nobody reads any more.
                self.is_released = true;
                judge(communicator.ranks(), &ballots).map_err(not_verified)?;
                *state = TargetState::Committed(version);
                Ok(moved)
            }
            Err(error) => {
                if is_verified {
                    *state = TargetState::InDoubt;
                }
                Err(error)
            }
        }
    }
}

impl<T: Transport> Drop for Shown<'_, T> {
    fn drop(&mut self) {
        if !self.is_released {
            self.transport.abandon();
        }
    }
}

/// A refusal after the move is about what was moved.
fn not_verified(verdict: TransportError) -> TransportError {
    match verdict {
        TransportError::Refused { rank, cause } => TransportError::NotVerified { rank, cause },
        other => other,
    }
}

//! What a transport must do, and what it reports.
//!
//! ```text
//!   offer: check the bindings, show own sources ─► (all ranks agree) ─► reach: find the others' sources
//!        ─► (all ranks agree again) ─► move_all: run the copies whose targets are here
//! ```
//!
//! The last step takes a [`Permit`], which the synchroniser makes once all ranks have agreed, and a synchroniser
//! takes only communicators and transports of this crate: so nobody reads a source outside a sync.
//!
//! A transport is made once for a plan (that compiles and checks its copies) and is used for many syncs. The
//! order of the calls, and what happens between them, is the business of [`Synchroniser`](crate::Synchroniser).

use reshard_layout::{Bytes, Rank};

use crate::binding::{SourceBinding, TargetBinding};
use crate::compile::CompiledCopy;
use crate::digest::PairDigests;
use crate::error::TransportError;

/// What keeps traits to this crate, because unsafe code relies on their implementations.
pub(crate) mod sealed {
    use crate::rendezvous::WorldId;

    /// Implemented in this crate only.
    pub trait Member {
        /// The world whose ranks it talks to; none if it talks to nobody.
        fn world(&self) -> Option<WorldId>;
    }
}

/// Leave to read the sources of all ranks of a group: they have agreed, and none writes to its sources before
/// it knows that nobody reads them any more. Only a [`Synchroniser`](crate::Synchroniser) makes one.
#[derive(Debug)]
pub struct Permit(());

impl Permit {
    /// To be made when all ranks have agreed.
    pub(crate) fn new() -> Self {
        Self(())
    }
}

/// Moves the bytes of one plan between storages that are bound anew at each sync. This crate alone
/// implements it.
pub trait Transport: sealed::Member {
    /// The plan's fingerprint.
    fn fingerprint(&self) -> u64;

    /// Digests of the copies between this process' ranks and the others.
    fn digests(&self) -> &PairDigests;

    /// The ranks that this process reads from or that read from it, itself left out.
    fn peers(&self) -> &[Rank];

    /// Checks the bindings and makes this process' sources reachable. Returns a number that grows whenever
    /// others must look for them again.
    ///
    /// # Errors
    /// What is wrong with the bindings; the first failure of any rank.
    fn offer(
        &mut self,
        sources: &SourceBinding<'_>,
        targets: &TargetBinding<'_>,
    ) -> Result<u64, TransportError>;

    /// Finds the sources of others; `stamps` holds what each rank's `offer` returned.
    ///
    /// # Errors
    /// What is wrong with the others' storages; the first failure of any rank.
    fn reach(&mut self, stamps: &[(Rank, u64)]) -> Result<(), TransportError>;

    /// Runs every copy whose target this process owns. Waits for no other rank.
    ///
    /// # Errors
    /// [`TransportError::StorageMissing`] if `offer` and `reach` were not called with these bindings before.
    fn move_all(
        &mut self,
        permit: &Permit,
        sources: &SourceBinding<'_>,
        targets: &mut TargetBinding<'_>,
    ) -> Result<Moved, TransportError>;

    /// Ends a sync whose end the other ranks may not know of. Once this returns, no thread of this
    /// process reads this process' sources until the next agreement.
    fn abandon(&mut self);
}

/// What one `move_all` moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes whose source and target rank are the same.
    pub bytes_local: Bytes,
    /// Bytes that came from other ranks.
    pub bytes_sent: Bytes,
    /// Copies that were run.
    pub copies: u64,
    /// Contiguous blocks that they consist of.
    pub blocks: u64,
    /// Rounds of messages; 0 where the target reads the source's memory.
    pub rounds: u64,
    /// The most memory that messages took at any time.
    pub staging_bytes_max: Bytes,
}

impl Moved {
    /// Counts a copy that is run straight from source to target.
    pub(crate) fn count(&mut self, copy: &CompiledCopy) {
        let bytes = copy.moved.bytes();
        if copy.source_rank == copy.target_rank {
            self.bytes_local += bytes;
        } else {
            self.bytes_sent += bytes;
        }
        self.copies += 1;
        self.blocks += copy.moved.blocks();
    }
}

/// What one sync did in this process. Sums over processes are the caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// What was moved.
    pub moved: Moved,
    /// From the first agreement to the commit, seconds.
    pub seconds: f64,
    /// Of these, the time of the move alone, seconds.
    pub seconds_moving: f64,
}

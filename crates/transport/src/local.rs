//! All ranks in one process: every copy of the plan, one after another.
//!
//! ```text
//!   bindings of all ranks ──► for each copy: source storage ──► target storage        rounds 0, staging 0
//! ```

use std::collections::BTreeSet;

use reshard_layout::{Places, Rank, StorageId};
use reshard_plan::Plan;

use crate::binding::{SourceBinding, TargetBinding};
use crate::compile::{CompiledCopy, compile};
use crate::digest::PairDigests;
use crate::error::TransportError;
use crate::transport::{Moved, Transport};

/// The transport of a process that holds the storages of all ranks.
#[derive(Clone, Debug)]
pub struct Local<'p> {
    plan: &'p Plan,
    copies: Vec<CompiledCopy>,
    sources: BTreeSet<StorageId>,
    targets: BTreeSet<StorageId>,
    digests: PairDigests,
}

impl<'p> Local<'p> {
    /// Compiles and checks all copies of a plan.
    ///
    /// # Errors
    /// [`TransportError::CopyMalformed`] or [`TransportError::CopyOutOfBounds`], for the first wrong copy.
    pub fn new(plan: &'p Plan) -> Result<Self, TransportError> {
        let copies = compile(plan, |_| true)?;
        let sources = copies.iter().map(|copy| copy.source).collect();
        let targets = copies.iter().map(|copy| copy.target).collect();
        Ok(Self { plan, copies, sources, targets, digests: PairDigests::default() })
    }

    /// What a move will count, before any byte has moved.
    #[must_use]
    pub fn expected(&self) -> Moved {
        let mut moved = Moved::default();
        self.copies.iter().for_each(|copy| moved.count(copy));
        moved
    }
}

impl Transport for Local<'_> {
    fn fingerprint(&self) -> u64 {
        self.plan.fingerprint
    }

    fn digests(&self) -> &PairDigests {
        &self.digests
    }

    fn peers(&self) -> &[Rank] {
        &[]
    }

    fn offer(
        &mut self,
        sources: &SourceBinding<'_>,
        targets: &TargetBinding<'_>,
    ) -> Result<u64, TransportError> {
        sources.check(&self.plan.source, &self.sources)?;
        targets.check(&self.plan.target, &self.targets)?;
        Ok(0)
    }

    fn reach(&mut self, _stamps: &[(Rank, u64)]) -> Result<(), TransportError> {
        Ok(())
    }

    fn move_all(
        &mut self,
        sources: &SourceBinding<'_>,
        targets: &mut TargetBinding<'_>,
    ) -> Result<Moved, TransportError> {
        let mut moved = Moved::default();
        for copy in &self.copies {
            let source = sources.view(copy.source).ok_or_else(|| missing(&self.plan.source, copy.source))?;
            let target =
                targets.view_mut(copy.target).ok_or_else(|| missing(&self.plan.target, copy.target))?;
            copy.moved.run(source, target);
            moved.count(copy);
        }
        Ok(moved)
    }
}

/// The error for a storage that is not bound.
pub(crate) fn missing(places: &Places, id: StorageId) -> TransportError {
    let storage = places.storage(id);
    TransportError::StorageMissing {
        rank: storage.rank,
        name: storage.name.clone(),
        expected: storage.length,
    }
}

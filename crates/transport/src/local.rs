//! All ranks in one process: every copy of the plan, one after another.
//!
//! ```text
//!   bindings of all ranks ──► for each copy: source storage ──► target storage        rounds 0, staging 0
//! ```

use std::collections::BTreeSet;

use reshard_layout::{Rank, StorageId};
use reshard_plan::Plan;

use crate::binding::{SourceBinding, TargetBinding};
use crate::compile::{CompiledCopy, compile};
use crate::digest::PairDigests;
use crate::error::TransportError;
use crate::execute::Share;
use crate::fill::{CompiledFill, compile_fills};
use crate::rendezvous::WorldId;
use crate::transport::sealed::Member;
use crate::transport::{Moved, Permit, Transport};

/// The transport of a process that holds the storages of all ranks.
#[derive(Clone, Debug)]
pub struct Local<'p> {
    plan: &'p Plan,
    copies: Vec<CompiledCopy>,
    fills: Vec<CompiledFill>,
    sources: BTreeSet<StorageId>,
    targets: BTreeSet<StorageId>,
    digests: PairDigests,
}

impl<'p> Local<'p> {
    /// Compiles and checks all copies of a plan.
    ///
    /// # Errors
    /// [`TransportError::CopyMalformed`], [`TransportError::CopyOutOfBounds`] or
    /// [`TransportError::FillMalformed`], for the first that is wrong.
    pub fn new(plan: &'p Plan) -> Result<Self, TransportError> {
        let copies = compile(plan, |_| true)?;
        let sources = copies.iter().map(|copy| copy.source).collect();
        let fills = compile_fills(plan, |_| true)?;
        let filled = fills.iter().map(|fill| fill.target);
        let targets = copies.iter().map(|copy| copy.target).chain(filled).collect();
        Ok(Self { plan, copies, fills, sources, targets, digests: PairDigests::default() })
    }

    /// What a move will count, before any byte has moved.
    #[must_use]
    pub fn expected(&self) -> Moved {
        self.share().expected()
    }

    fn share(&self) -> Share<'_> {
        Share { plan: self.plan, copies: &self.copies, fills: &self.fills }
    }
}

impl Member for Local<'_> {
    fn world(&self) -> Option<WorldId> {
        None
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
        _permit: &Permit,
        sources: &SourceBinding<'_>,
        targets: &mut TargetBinding<'_>,
    ) -> Result<Moved, TransportError> {
        self.share().run(targets, |id| sources.view(id))
    }

    /// Nobody else reads here.
    fn abandon(&mut self) {}
}

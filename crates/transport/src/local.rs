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
use crate::fill::{CompiledFill, compile_fills};
use crate::transport::{Moved, Transport};

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
        run_fills(&self.fills, self.plan, targets)?;
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

/// Writes the padding of bound targets.
pub(crate) fn run_fills(
    fills: &[CompiledFill],
    plan: &Plan,
    targets: &mut TargetBinding<'_>,
) -> Result<(), TransportError> {
    for fill in fills {
        let target = targets.view_mut(fill.target).ok_or_else(|| missing(&plan.target, fill.target))?;
        fill.run(target);
    }
    Ok(())
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

//! The loop over a compiled plan, the same for every transport that reads sources in place.
//!
//! ```text
//!   fills of this process ─► for each copy: find its source ──► target storage        rounds 0, staging 0
//! ```

use reshard_layout::{Places, StorageId};
use reshard_plan::Plan;

use crate::binding::TargetBinding;
use crate::compile::CompiledCopy;
use crate::error::TransportError;
use crate::fill::CompiledFill;
use crate::transport::Moved;
use crate::view::ReadView;

/// What one process runs of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) copies: &'a [CompiledCopy],
    pub(crate) fills: &'a [CompiledFill],
}

impl Share<'_> {
    /// What [`run`](Self::run) will count.
    pub(crate) fn expected(&self) -> Moved {
        let mut moved = Moved::default();
        self.copies.iter().for_each(|copy| moved.count(copy));
        moved
    }

    /// Writes the padding, then runs the copies in plan order.
    ///
    /// # Errors
    /// [`TransportError::StorageMissing`] for a target that is not bound or a source that is not found.
    pub(crate) fn run<'v>(
        &self,
        targets: &mut TargetBinding<'_>,
        find_source: impl Fn(StorageId) -> Option<ReadView<'v>>,
    ) -> Result<Moved, TransportError> {
        let Self { plan, copies, fills } = self;
        for fill in *fills {
            let target = targets.view_mut(fill.target).ok_or_else(|| missing(&plan.target, fill.target))?;
            fill.run(target);
        }
        for copy in *copies {
            let source = find_source(copy.source).ok_or_else(|| missing(&plan.source, copy.source))?;
            let target = targets.view_mut(copy.target).ok_or_else(|| missing(&plan.target, copy.target))?;
            copy.moved.run(source, target);
        }
        Ok(self.expected())
    }
}

/// The error for a storage that is not bound.
fn missing(places: &Places, id: StorageId) -> TransportError {
    let storage = places.storage(id);
    TransportError::StorageMissing {
        rank: storage.rank,
        name: storage.name.clone(),
        expected: storage.length,
    }
}

//! One process (or thread) a rank: each target pulls straight from the sources' mapped pages.
//!
//! ```text
//!   rank 0: SharedMemory "flat" ── publish ──► hub ── map, read only ──► rank 1
//!           own pages ◄───────────── copies read here ──────────────── target of rank 1
//! ```
//!
//! No staging and no rounds: a byte is read once and written once. A storage is published, and mapped by
//! its readers, only when its memory is another than at the last sync.

use std::collections::{BTreeMap, BTreeSet};

use reshard_layout::{Rank, StorageId};
use reshard_plan::Plan;

use crate::binding::{SourceBinding, TargetBinding};
use crate::compile::{CompiledCopy, compile};
use crate::digest::PairDigests;
use crate::error::TransportError;
use crate::execute::Share;
use crate::fill::{CompiledFill, compile_fills};
use crate::memory::PeerMemory;
use crate::transport::{Moved, Transport};
use crate::world::World;

/// The transport of one rank of a world on one machine.
#[derive(Debug)]
pub struct Shm<'p> {
    plan: &'p Plan,
    world: &'p World,
    /// The copies whose target rank is this one.
    copies: Vec<CompiledCopy>,
    fills: Vec<CompiledFill>,
    /// This rank's storages that its own copies read.
    sources: BTreeSet<StorageId>,
    /// This rank's storages that others read, and the memory that they were published with.
    shown: BTreeMap<StorageId, Option<u64>>,
    /// This rank's storages that are written.
    targets: BTreeSet<StorageId>,
    /// Others' storages that this rank reads, with the stamp of their mapping.
    mapped: BTreeMap<StorageId, Option<(u64, PeerMemory)>>,
    peers: Vec<Rank>,
    stamp: u64,
    digests: PairDigests,
}

impl<'p> Shm<'p> {
    /// Compiles and checks this rank's copies of a plan.
    ///
    /// # Errors
    /// [`TransportError::CopyMalformed`], [`TransportError::CopyOutOfBounds`] or
    /// [`TransportError::FillMalformed`], for the first that is wrong.
    pub fn new(plan: &'p Plan, world: &'p World) -> Result<Self, TransportError> {
        let rank = world.rank();
        let copies = compile(plan, |target| target == rank)?;
        let storage_of = |copy: &reshard_plan::Copy| plan.source.buffer(copy.source.buffer).storage;
        let mut shown = BTreeMap::new();
        let mut peers: BTreeSet<Rank> = copies.iter().map(|copy| copy.source_rank).collect();
        for copy in &plan.copies {
            let reader = plan.target_rank(copy);
            if plan.source_rank(copy) == rank && reader != rank {
                shown.insert(storage_of(copy), None);
                peers.insert(reader);
            }
        }
        peers.remove(&rank);
        let (own, others): (Vec<_>, Vec<_>) = copies.iter().partition(|copy| copy.source_rank == rank);
        let fills = compile_fills(plan, |target| target == rank)?;
        let filled = fills.iter().map(|fill| fill.target);
        Ok(Self {
            plan,
            world,
            sources: own.iter().map(|copy| copy.source).chain(shown.keys().copied()).collect(),
            shown,
            targets: copies.iter().map(|copy| copy.target).chain(filled).collect(),
            mapped: others.iter().map(|copy| (copy.source, None)).collect(),
            peers: peers.into_iter().collect(),
            stamp: 0,
            digests: PairDigests::new(plan, rank),
            copies,
            fills,
        })
    }

    /// What a move will count, before any byte has moved.
    #[must_use]
    pub fn expected(&self) -> Moved {
        self.share().expected()
    }

    fn share(&self) -> Share<'_> {
        Share { plan: self.plan, copies: &self.copies, fills: &self.fills }
    }

    /// Two plans may have storages of one name; they are published apart.
    fn published_name(&self, id: StorageId) -> String {
        format!("{:016x}/{}", self.plan.fingerprint, self.plan.source.storage(id).name)
    }

    fn publish(&mut self, id: StorageId, sources: &SourceBinding<'_>) -> Result<(), TransportError> {
        let storage = self.plan.source.storage(id);
        let memory = sources.shared(id).ok_or_else(|| TransportError::StorageNotShared {
            rank: storage.rank,
            name: storage.name.clone(),
        })?;
        if self.shown.get(&id) == Some(&Some(memory.identity())) {
            return Ok(());
        }
        let generations = self.world.publish(&[(&self.published_name(id), memory)])?;
        self.stamp = generations.into_iter().fold(self.stamp, u64::max);
        self.shown.insert(id, Some(memory.identity()));
        Ok(())
    }

    fn map(&self, id: StorageId) -> Result<PeerMemory, TransportError> {
        let storage = self.plan.source.storage(id);
        let memory = self.world.map(storage.rank, &self.published_name(id))?;
        if memory.length() != storage.length {
            return Err(TransportError::StorageLength {
                rank: storage.rank,
                name: storage.name.clone(),
                expected: storage.length,
                found: memory.length(),
            });
        }
        Ok(memory)
    }
}

impl Transport for Shm<'_> {
    fn fingerprint(&self) -> u64 {
        self.plan.fingerprint
    }

    fn digests(&self) -> &PairDigests {
        &self.digests
    }

    fn peers(&self) -> &[Rank] {
        &self.peers
    }

    fn offer(
        &mut self,
        sources: &SourceBinding<'_>,
        targets: &TargetBinding<'_>,
    ) -> Result<u64, TransportError> {
        sources.check(&self.plan.source, &self.sources)?;
        targets.check(&self.plan.target, &self.targets)?;
        let shown: Vec<StorageId> = self.shown.keys().copied().collect();
        for id in shown {
            self.publish(id, sources)?;
        }
        Ok(self.stamp)
    }

    fn reach(&mut self, stamps: &[(Rank, u64)]) -> Result<(), TransportError> {
        let stamps: BTreeMap<Rank, u64> = stamps.iter().copied().collect();
        let wanted: Vec<StorageId> = self.mapped.keys().copied().collect();
        for id in wanted {
            let rank = self.plan.source.storage(id).rank;
            let stamp = *stamps.get(&rank).ok_or(TransportError::RankMissing { rank })?;
            let known = self.mapped.get(&id).and_then(Option::as_ref).map(|(known, _)| *known);
            if known != Some(stamp) {
                let memory = self.map(id)?;
                self.mapped.insert(id, Some((stamp, memory)));
            }
        }
        Ok(())
    }

    fn move_all(
        &mut self,
        sources: &SourceBinding<'_>,
        targets: &mut TargetBinding<'_>,
    ) -> Result<Moved, TransportError> {
        let mapped = |id| self.mapped.get(&id).and_then(Option::as_ref);
        let find = |id| mapped(id).map(|(_, memory)| memory.into()).or_else(|| sources.view(id));
        self.share().run(targets, find)
    }
}

impl Drop for Shm<'_> {
    fn drop(&mut self) {
        for (&id, _) in self.shown.iter().filter(|(_, shown)| shown.is_some()) {
            // A world that has failed keeps its storages until it ends.
            let _withdrawn = self.world.withdraw(&[&self.published_name(id)]);
        }
    }
}

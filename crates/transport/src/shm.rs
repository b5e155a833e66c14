//! One process (or thread) a rank: each target pulls straight from the sources' mapped pages.
//!
//! ```text
//!   rank 0: SharedMemory "flat" ── publish ──► hub ── map, read only ──► rank 1
//!           own pages ◄───────────── copies read here ──────────────── target of rank 1
//! ```
//!
//! No staging and no rounds: a byte is read once and written once. Storages are published, and mapped by
//! their readers, only when their memory is another than at the last sync.
//!
//! **Why reading is right.** Others' memory is read in `move_all` alone, with a permit: all peers are in the
//! group (of the same world), and each has shown, for this sync, the memory that it bound: the mapping's number is of
//! the publication that the peer's stamp names. A peer borrows that memory, and so does not write to it, until
//! its `sync` returns. That is after the third agreement, to which this rank comes after its last read; or, without a
//! verdict, after the peer has put its world among the abandoned ones, which it can only while
//! nobody in this process reads, and after which nobody does.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{PoisonError, RwLock};

use reshard_layout::{Rank, StorageId};
use reshard_plan::Plan;

use crate::binding::{SourceBinding, TargetBinding};
use crate::compile::{CompiledCopy, compile};
use crate::digest::PairDigests;
use crate::error::TransportError;
use crate::execute::Share;
use crate::fill::{CompiledFill, compile_fills};
use crate::memory::PeerMemory;
use crate::rendezvous::WorldId;
use crate::transport::sealed::Member;
use crate::transport::{Moved, Permit, Transport};
use crate::world::World;

/// The worlds in which a rank of this process left a sync without a verdict. Reading sources holds the lock.
static ABANDONED: RwLock<BTreeSet<WorldId>> = RwLock::new(BTreeSet::new());

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

    /// Publishes all shown storages if the memory of one is new, so that one stamp stands for all.
    fn publish(&mut self, sources: &SourceBinding<'_>) -> Result<(), TransportError> {
        let mut shown = BTreeMap::new();
        for &id in self.shown.keys() {
            let storage = self.plan.source.storage(id);
            let memory = sources.shared(id).ok_or_else(|| TransportError::StorageNotShared {
                rank: storage.rank,
                name: storage.name.clone(),
            })?;
            shown.insert(id, (self.published_name(id), memory));
        }
        if shown.iter().all(|(id, (_, memory))| self.shown[id] == Some(memory.identity())) {
            return Ok(());
        }
        let named: Vec<_> = shown.values().map(|(name, memory)| (name.as_str(), *memory)).collect();
        let generations = self.world.publish(&named)?;
        self.stamp = generations.into_iter().fold(self.stamp, u64::max);
        self.shown = shown.into_iter().map(|(id, (_, memory))| (id, Some(memory.identity()))).collect();
        Ok(())
    }

    /// Maps the memory that a peer published under a stamp.
    fn map(&self, id: StorageId, stamp: u64) -> Result<PeerMemory, TransportError> {
        let storage = self.plan.source.storage(id);
        let (rank, name) = (storage.rank, || storage.name.clone());
        let (generation, memory) = self.world.map_published(rank, &self.published_name(id))?;
        if generation > stamp {
            return Err(TransportError::StorageReplaced { rank, name: name() });
        }
        if memory.length() != storage.length {
            let (expected, found) = (storage.length, memory.length());
            return Err(TransportError::StorageLength { rank, name: name(), expected, found });
        }
        Ok(memory)
    }
}

impl Member for Shm<'_> {
    fn world(&self) -> Option<WorldId> {
        Some(self.world.id())
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
        self.publish(sources)?;
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
                let memory = self.map(id, stamp)?;
                self.mapped.insert(id, Some((stamp, memory)));
            }
        }
        Ok(())
    }

    fn move_all(
        &mut self,
        _permit: &Permit,
        sources: &SourceBinding<'_>,
        targets: &mut TargetBinding<'_>,
    ) -> Result<Moved, TransportError> {
        let abandoned = ABANDONED.read().unwrap_or_else(PoisonError::into_inner);
        if abandoned.contains(&self.world.id()) {
            return Err(TransportError::SyncAbandoned { rank: self.world.rank() });
        }
        let mapped = |id| self.mapped.get(&id).and_then(Option::as_ref);
        // SAFETY: by the module's argument no thread of this process writes to it while `abandoned` is held.
        let peers = |id| mapped(id).map(|(_, memory)| unsafe { memory.view() });
        self.share().run(targets, |id| peers(id).or_else(|| sources.view(id)))
    }

    fn abandon(&mut self) {
        if !self.shown.is_empty() {
            ABANDONED.write().unwrap_or_else(PoisonError::into_inner).insert(self.world.id());
        }
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

#[cfg(test)]
mod tests {
    use reshard_layout::{
        Block, Bytes, DType, Elements, Geometry, Layout, LayoutBuilder, LayoutError, Region, StorageId,
    };
    use reshard_plan::{Policy, plan};

    use super::*;
    use crate::memory::SharedMemory;

    /// A vector of four bytes, all on one rank.
    fn held_by(rank: Rank) -> Result<Layout, LayoutError> {
        let mut builder = LayoutBuilder::new();
        let vector = builder.parameter("v", [4], DType::U8);
        let storage = builder.storage(rank, "flat", Bytes(4));
        let buffer = builder.buffer(storage, Bytes(0), DType::U8, Elements(4));
        let block = Block::dense(Region::new([0], [4]), Elements(0));
        let geometry = builder.geometry(Geometry::new([4], [block]));
        builder.place(vector, buffer, Elements(0), geometry);
        builder.build()
    }

    #[test]
    fn nobody_reads_what_was_published_since_or_after_a_sync_was_abandoned() {
        let plan = plan(&held_by(Rank(0)).unwrap(), &held_by(Rank(1)).unwrap(), Policy::Lowest).unwrap();
        let worlds = World::in_process(2).unwrap();
        let mut owner = Shm::new(&plan, &worlds[0]).unwrap();
        let mut memory = SharedMemory::create(Bytes(4)).unwrap();
        memory.as_mut_slice().copy_from_slice(&[1, 2, 3, 4]);
        let mut sources = SourceBinding::new();
        sources.bind_shared(StorageId(0), &memory);
        let stamp = owner.offer(&sources, &TargetBinding::new()).unwrap();

        let mut reader = Shm::new(&plan, &worlds[1]).unwrap();
        reader.reach(&[(Rank(0), stamp)]).unwrap();
        let (nothing, mut target) = (SourceBinding::new(), [0; 4]);
        let mut targets = TargetBinding::new();
        targets.bind(StorageId(0), &mut target[..]);
        reader.move_all(&Permit::new(), &nothing, &mut targets).unwrap();
        assert_eq!(targets.bytes(StorageId(0)), Some(&[1, 2, 3, 4][..]));

        owner.abandon();
        let error = reader.move_all(&Permit::new(), &nothing, &mut targets).unwrap_err();
        assert_eq!(error, TransportError::SyncAbandoned { rank: Rank(1) });

        let other = SharedMemory::create(Bytes(4)).unwrap();
        worlds[0].publish(&[(&owner.published_name(StorageId(0)), &other)]).unwrap();
        let error = Shm::new(&plan, &worlds[1]).unwrap().reach(&[(Rank(0), stamp)]).unwrap_err();
        assert_eq!(error, TransportError::StorageReplaced { rank: Rank(0), name: "flat".to_owned() });
    }
}

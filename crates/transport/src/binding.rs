//! Storage id -> memory, given anew at each sync.
//!
//! ```text
//!   plan.source.storages: 0 "flat" of rank 0, 96 bytes      SourceBinding { 0: address, 96 bytes }
//!   plan.target.storages: 4 "w" of rank 1, 24 bytes         TargetBinding { 4: address, 24 bytes }
//! ```
//!
//! Addresses change between syncs (memory is offloaded, reloaded, reallocated); a plan holds none of them.

use std::collections::{BTreeMap, BTreeSet};

use reshard_layout::{Bytes, Places, StorageId};

use crate::error::TransportError;
use crate::memory::SharedMemory;
use crate::view::{ReadView, WriteView};

/// Memory of the storages that this process reads or shows to others.
#[derive(Clone, Debug, Default)]
pub struct SourceBinding<'a> {
    views: BTreeMap<StorageId, ReadView<'a>>,
    shared: BTreeMap<StorageId, &'a SharedMemory>,
}

impl<'a> SourceBinding<'a> {
    /// No storage bound.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds memory that only this process sees. A second binding of a storage replaces the first.
    pub fn bind(&mut self, storage: StorageId, memory: impl Into<ReadView<'a>>) {
        self.shared.remove(&storage);
        self.views.insert(storage, memory.into());
    }

    /// Binds memory that other processes can map. A second binding of a storage replaces the first.
    pub fn bind_shared(&mut self, storage: StorageId, memory: &'a SharedMemory) {
        self.shared.insert(storage, memory);
        self.views.insert(storage, memory.into());
    }

    /// The memory of a storage.
    #[must_use]
    pub fn view(&self, storage: StorageId) -> Option<ReadView<'a>> {
        self.views.get(&storage).copied()
    }

    /// The memory of a storage, if others can map it.
    #[must_use]
    pub fn shared(&self, storage: StorageId) -> Option<&'a SharedMemory> {
        self.shared.get(&storage).copied()
    }

    /// Checks what is bound, and that all that is needed is.
    ///
    /// # Errors
    /// [`TransportError::StorageOutOfRange`], [`TransportError::StorageLength`],
    /// [`TransportError::StorageMissing`], [`TransportError::StorageMisaligned`].
    pub fn check(&self, places: &Places, needed: &BTreeSet<StorageId>) -> Result<(), TransportError> {
        let bound =
            self.views.iter().map(|(&id, view)| (id, (view.address().addr(), view.length()))).collect();
        check(&bound, places, needed)
    }
}

/// Memory of the storages that this process writes.
#[derive(Debug, Default)]
pub struct TargetBinding<'a> {
    views: BTreeMap<StorageId, WriteView<'a>>,
}

impl<'a> TargetBinding<'a> {
    /// No storage bound.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds memory. A second binding of a storage replaces the first.
    pub fn bind(&mut self, storage: StorageId, memory: impl Into<WriteView<'a>>) {
        self.views.insert(storage, memory.into());
    }

    /// The bytes of a storage, for example to verify them after a move.
    #[must_use]
    pub fn bytes(&self, storage: StorageId) -> Option<&[u8]> {
        self.views.get(&storage).map(WriteView::as_slice)
    }

    /// The memory of a storage, to write.
    pub fn view_mut(&mut self, storage: StorageId) -> Option<&mut WriteView<'a>> {
        self.views.get_mut(&storage)
    }

    /// Checks what is bound, and that all that is needed is.
    ///
    /// # Errors
    /// As [`SourceBinding::check`].
    pub fn check(&self, places: &Places, needed: &BTreeSet<StorageId>) -> Result<(), TransportError> {
        let bound =
            self.views.iter().map(|(&id, view)| (id, (view.address().addr(), view.length()))).collect();
        check(&bound, places, needed)
    }
}

/// The address and length of what is bound.
type Bound = BTreeMap<StorageId, (usize, Bytes)>;

fn check(bound: &Bound, places: &Places, needed: &BTreeSet<StorageId>) -> Result<(), TransportError> {
    for (&id, &(_, found)) in bound {
        let Some(storage) = places.storages.get(id.index()) else {
            return Err(TransportError::StorageOutOfRange { expected: places.storages.len(), found: id.0 });
        };
        if storage.length != found {
            let (rank, name, expected) = (storage.rank, storage.name.clone(), storage.length);
            return Err(TransportError::StorageLength { rank, name, expected, found });
        }
    }
    for &id in needed {
        if !bound.contains_key(&id) {
            let storage = places.storage(id);
            let (rank, name, expected) = (storage.rank, storage.name.clone(), storage.length);
            return Err(TransportError::StorageMissing { rank, name, expected });
        }
    }
    check_alignment(bound, places)
}

fn check_alignment(bound: &Bound, places: &Places) -> Result<(), TransportError> {
    for buffer in &places.buffers {
        let Some(&(address, _)) = bound.get(&buffer.storage) else {
            continue;
        };
        let excess = (address as u64).wrapping_add(buffer.offset.0) % buffer.dtype.size();
        if excess != 0 && buffer.length.0 != 0 {
            let storage = places.storage(buffer.storage);
            return Err(TransportError::StorageMisaligned {
                rank: storage.rank,
                name: storage.name.clone(),
                dtype: buffer.dtype,
                excess: Bytes(excess),
            });
        }
    }
    Ok(())
}

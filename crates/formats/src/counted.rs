//! Storages whose reads are counted.

use std::sync::atomic::{AtomicU64, Ordering};

use reshard_layout::{Bytes, StorageId};
use reshard_transport::ReadAt;

/// Counts the bytes that are read of other storages.
pub(crate) struct Counted<'a> {
    sources: &'a dyn ReadAt,
    bytes: AtomicU64,
}

impl<'a> Counted<'a> {
    pub(crate) fn new(sources: &'a dyn ReadAt) -> Self {
        Self { sources, bytes: AtomicU64::new(0) }
    }

    /// What was read so far.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.bytes.load(Ordering::Relaxed))
    }
}

impl ReadAt for Counted<'_> {
    fn read_at(&self, storage: StorageId, offset: Bytes, into: &mut [u8]) -> std::io::Result<()> {
        self.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        self.sources.read_at(storage, offset, into)
    }
}

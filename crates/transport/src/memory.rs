//! Memory that several processes see, without a name anywhere: it is gone when its last process is.
//!
//! ```text
//!   owner                        peer
//!   SharedMemory (reads, writes) PeerMemory (reads)
//!        └──────── memfd ────────────┘     sealed: never shrinks, no second writer
//!   CommonMemory (several writers): words and byte ranges, handed out under a protocol
//! ```
//!
//! **Contract.** The seals make a mapping valid for as long as it exists, and make the owner's handle the only
//! way to write. What they cannot stop is a peer that reads while the owner writes: so mapping is safe and
//! reading is not. The caller of [`PeerMemory::view`] keeps the owner from writing meanwhile if it is a thread of
//! this process, where that would be a data race; the sync protocol does so (see `shm`). An owner in another
//! process that writes meanwhile makes the bytes arbitrary and no more than that: they leave a view by
//! copying, never as a slice, and any bit pattern is a byte.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use reshard_layout::Bytes;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use crate::error::TransportError;
use crate::view::ReadView;

/// A descriptor of `length` bytes of fresh, zeroed memory. Nothing on disk, nothing in `/dev/shm`.
fn fresh(length: u64) -> Result<OwnedFd, TransportError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("reshard", flags).map_err(|e| TransportError::system("create memory", e))?;
    ftruncate(&memory, length).map_err(|e| TransportError::system("size memory", e))?;
    seal(&memory, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(memory)
}

fn seal(memory: &OwnedFd, seals: SealFlags) -> Result<(), TransportError> {
    fcntl_add_seals(memory, seals).map_err(|e| TransportError::system("seal memory", e))
}

/// The length of a descriptor's memory, once it is known that it will not shrink.
fn sealed_length(memory: BorrowedFd<'_>) -> Result<u64, TransportError> {
    let seals = fcntl_get_seals(memory).map_err(|e| TransportError::system("read the seals of memory", e))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(TransportError::MemoryNotSealed);
    }
    let status = fstat(memory).map_err(|e| TransportError::system("measure memory", e))?;
    u64::try_from(status.st_size).map_err(|e| TransportError::system("measure memory", e))
}

fn expect_length(expected: Bytes, found: u64) -> Result<usize, TransportError> {
    if expected.0 != found {
        return Err(TransportError::MemoryLength { expected, found: Bytes(found) });
    }
    usize::try_from(found).map_err(|e| TransportError::system("map memory", e))
}

/// Maps all of it; nothing where there is nothing, since a mapping cannot be empty.
fn map(memory: BorrowedFd<'_>, length: usize, writable: bool) -> Result<Option<MmapRaw>, TransportError> {
    if length == 0 {
        return Ok(None);
    }
    let mut options = MmapOptions::new();
    options.len(length);
    let raw = if writable { options.map_raw(&memory) } else { options.map_raw_read_only(&memory) };
    raw.map(Some).map_err(|e| TransportError::system("map memory", e))
}

/// Where an empty mapping points: aligned for every element, never read.
fn pointer(map: Option<&MmapRaw>) -> *mut u8 {
    map.map_or(std::ptr::without_provenance_mut(64), MmapRaw::as_mut_ptr)
}

/// Memory that this process owns and others may read.
///
/// Invariants: the descriptor is sealed at `length` bytes; no other handle writes to it.
#[derive(Debug)]
pub struct SharedMemory {
    memory: OwnedFd,
    map: Option<MmapRaw>,
    length: usize,
    identity: u64,
}

/// A number that no other handle of this process has.
fn fresh_identity() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl SharedMemory {
    /// Fresh memory of this length, all zero. Zero bytes are allowed.
    ///
    /// # Errors
    /// [`TransportError::System`] if the system has no memory or no descriptor left.
    pub fn create(length: Bytes) -> Result<Self, TransportError> {
        let memory = fresh(length.0)?;
        let length = expect_length(length, sealed_length(memory.as_fd())?)?;
        let map = map(memory.as_fd(), length, true)?;
        // From here on nobody can map it writable: the mapping above stays the only one.
        seal(&memory, SealFlags::FUTURE_WRITE)?;
        Ok(Self { memory, map, length, identity: fresh_identity() })
    }

    /// Takes over memory that someone else made, to read and to write.
    ///
    /// # Errors
    /// [`TransportError::MemoryLength`] unless it has the expected length, [`TransportError::MemoryNotSealed`]
    /// if it could still shrink, [`TransportError::System`] if it cannot be mapped writable.
    ///
    /// # Safety
    /// While this handle lives, no other handle or mapping, in any process, may write to the memory, and
    /// others may read it only under the protocol of this module.
    pub unsafe fn from_fd(memory: OwnedFd, expected: Bytes) -> Result<Self, TransportError> {
        let length = expect_length(expected, sealed_length(memory.as_fd())?)?;
        let map = map(memory.as_fd(), length, true)?;
        Ok(Self { memory, map, length, identity: fresh_identity() })
    }

    /// How many bytes there are.
    #[must_use]
    pub fn length(&self) -> Bytes {
        Bytes(self.length as u64)
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping has `length` bytes and lives as long as `self`; only `&mut self` writes to it.
        unsafe { std::slice::from_raw_parts(pointer(self.map.as_ref()), self.length) }
    }

    /// The bytes, to write. Others must not be reading them: see the module's contract.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only writer.
        unsafe { std::slice::from_raw_parts_mut(pointer(self.map.as_ref()), self.length) }
    }

    /// Tells this handle from every other that this process has made.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    /// The descriptor, to send to another process.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

/// Another rank's memory, mapped to be read.
#[derive(Debug)]
pub struct PeerMemory {
    map: Option<MmapRaw>,
    length: usize,
}

impl PeerMemory {
    /// Maps a descriptor's memory.
    ///
    /// # Errors
    /// [`TransportError::MemoryNotSealed`] if it could still shrink, [`TransportError::System`] if it cannot
    /// be mapped.
    pub fn from_fd(memory: BorrowedFd<'_>) -> Result<Self, TransportError> {
        let found = sealed_length(memory)?;
        let length = expect_length(Bytes(found), found)?;
        Ok(Self { map: map(memory, length, false)?, length })
    }

    /// How many bytes there are.
    #[must_use]
    pub fn length(&self) -> Bytes {
        Bytes(self.length as u64)
    }

    /// The bytes, for a copy to read.
    ///
    /// # Safety
    /// Until the last use of the view no thread of this process may write to the memory. What a view
    /// gives while another process writes is arbitrary.
    #[must_use]
    pub unsafe fn view(&self) -> ReadView<'_> {
        // SAFETY: the mapping has `length` bytes and lives as long as `self`; the caller keeps writers away.
        unsafe { ReadView::from_raw(pointer(self.map.as_ref()), self.length()) }
    }

    /// A copy of the bytes as they are now.
    ///
    /// # Safety
    /// As [`view`](Self::view), for the time of the call.
    #[must_use]
    pub unsafe fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        let begin = pointer(self.map.as_ref());
        // SAFETY: both sides have `length` bytes; the vector is fresh, so they do not overlap; the caller keeps
        // writers away.
        unsafe { std::ptr::copy_nonoverlapping(begin, bytes.as_mut_ptr(), self.length) };
        bytes
    }
}

/// Memory that several processes write: words that are atomic, and byte ranges under a protocol.
#[derive(Debug)]
pub(crate) struct CommonMemory {
    map: Option<MmapRaw>,
    length: usize,
}

impl CommonMemory {
    /// Fresh memory, all zero, and the descriptor by which others map it.
    pub(crate) fn create(length: usize) -> Result<(Self, OwnedFd), TransportError> {
        let memory = fresh(length as u64)?;
        Ok((Self { map: map(memory.as_fd(), length, true)?, length }, memory))
    }

    /// Maps memory that another process created.
    pub(crate) fn from_fd(memory: BorrowedFd<'_>, length: usize) -> Result<Self, TransportError> {
        let length = expect_length(Bytes(length as u64), sealed_length(memory)?)?;
        Ok(Self { map: map(memory, length, true)?, length })
    }

    /// The word at a byte offset that is a multiple of 4.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.length, "a word lies in its memory");
        // SAFETY: in bounds and aligned (mappings begin at a page); words are accessed only as atomics.
        unsafe { AtomicU32::from_ptr(pointer(self.map.as_ref()).add(offset).cast()) }
    }

    /// A range, to read.
    ///
    /// # Safety
    /// Nobody may write to the range while the slice lives, and the range must not cover a word.
    pub(crate) unsafe fn range(&self, offset: usize, length: usize) -> &[u8] {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.length),
            "a range lies in its memory"
        );
        // SAFETY: in bounds; the caller keeps writers away.
        unsafe { std::slice::from_raw_parts(pointer(self.map.as_ref()).add(offset), length) }
    }

    /// A range, to write.
    ///
    /// # Safety
    /// Nobody else may read or write the range while the slice lives, and it must not cover a word.
    #[expect(clippy::mut_from_ref, reason = "shared between processes; exclusion is the caller's contract")]
    pub(crate) unsafe fn range_mut(&self, offset: usize, length: usize) -> &mut [u8] {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.length),
            "a range lies in its memory"
        );
        // SAFETY: in bounds; the caller keeps everybody else away.
        unsafe { std::slice::from_raw_parts_mut(pointer(self.map.as_ref()).add(offset), length) }
    }
}

//! Where a storage's bytes are, for the time of one sync: an address, a length, a lifetime.
//!
//! ```text
//!   &'a [u8], &'a SharedMemory, PeerMemory::view ──► ReadView<'a>     (address, length)
//!   &'a mut [u8], &'a mut SharedMemory           ──► WriteView<'a>    (address, length), the only access
//! ```
//!
//! Views exist because a peer's memory cannot be a slice (its owner writes to it between syncs), and because memory
//! of other languages comes as an address. The copy kernel needs no more than this.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use reshard_layout::Bytes;

use crate::memory::SharedMemory;

/// Bytes that can be read for `'a`.
#[derive(Clone, Copy, Debug)]
pub struct ReadView<'a> {
    address: *const u8,
    length: usize,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> ReadView<'a> {
    /// Memory that only its address and length are known of.
    ///
    /// # Safety
    /// `length` bytes at `address` must be readable for `'a`, and be written by no thread of this process while
    /// the view is used.
    #[must_use]
    pub unsafe fn from_raw(address: *const u8, length: Bytes) -> Self {
        Self { address, length: length.0 as usize, memory: PhantomData }
    }

    /// The first byte.
    #[must_use]
    pub fn address(&self) -> *const u8 {
        self.address
    }

    /// How many bytes there are.
    #[must_use]
    pub fn length(&self) -> Bytes {
        Bytes(self.length as u64)
    }
}

impl<'a> From<&'a [u8]> for ReadView<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { address: bytes.as_ptr(), length: bytes.len(), memory: PhantomData }
    }
}

impl<'a> From<&'a SharedMemory> for ReadView<'a> {
    fn from(memory: &'a SharedMemory) -> Self {
        memory.as_slice().into()
    }
}

/// Bytes that can be written for `'a`, and that nobody else reads or writes meanwhile.
#[derive(Debug)]
pub struct WriteView<'a> {
    address: *mut u8,
    length: usize,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> WriteView<'a> {
    /// Memory that only its address and length are known of.
    ///
    /// # Safety
    /// `length` bytes at `address` must be initialised, and readable and writable through this view alone
    /// for `'a`.
    #[must_use]
    pub unsafe fn from_raw(address: *mut u8, length: Bytes) -> Self {
        Self { address, length: length.0 as usize, memory: PhantomData }
    }

    /// The first byte.
    #[must_use]
    pub fn address(&self) -> *const u8 {
        self.address
    }

    /// The first byte, to write.
    #[must_use]
    pub fn address_mut(&mut self) -> *mut u8 {
        self.address
    }

    /// How many bytes there are.
    #[must_use]
    pub fn length(&self) -> Bytes {
        Bytes(self.length as u64)
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the view is the only access to these bytes, and is borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

impl<'a> From<&'a mut [u8]> for WriteView<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { address: bytes.as_mut_ptr(), length: bytes.len(), memory: PhantomData }
    }
}

impl<'a> From<&'a mut SharedMemory> for WriteView<'a> {
    fn from(memory: &'a mut SharedMemory) -> Self {
        memory.as_mut_slice().into()
    }
}

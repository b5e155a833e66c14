//! What is to be written, before a byte of it is: names, lengths, known bytes, and layouts of the rest.
//!
//! ```text
//!   TargetFile "zero/w/fp32.pt"   | known: zip headers, pickle | storage 0: 4 KiB of w | known: zip directory |
//!                                             crc32 of storage 0 ^ is written here, and here ^
//! ```

use std::ops::Range;
use std::path::PathBuf;

use indexmap::IndexMap;

use crate::checkpoint::Part;
use crate::kept::Kept;

/// Bytes that are known before any tensor is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Where they begin in the file.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// A CRC-32 (as zip has it) of a stretch of the file, as four little-endian bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    /// The stretch: known bytes, or whole storages.
    pub data: Range<u64>,
    /// Where it is written.
    pub at: Vec<u64>,
}

/// One file to be written.
#[derive(Clone, Debug)]
pub struct TargetFile {
    /// Its path in the output folder; never absolute, never climbing.
    pub path: PathBuf,
    /// Its length.
    pub length: u64,
    /// Bytes that are known. What neither these nor a storage cover is zero.
    pub known: Vec<Known>,
    /// Checksums to fill in when the data is there.
    pub checksums: Vec<Checksum>,
}

/// A folder to be written.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Its files; `FileId` i of the parts' spans is the i-th.
    pub files: Vec<TargetFile>,
    /// The layouts of what is filled from a source. A target parameter may have another float type than the source.
    pub parts: IndexMap<Kept, Part>,
    /// Files that are taken over as they are: from where, to which path in the folder.
    pub copied: Vec<(PathBuf, PathBuf)>,
}

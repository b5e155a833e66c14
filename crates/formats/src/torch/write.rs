//! Writing what `torch.load` reads, before the bytes of a tensor are there.
//!
//! ```text
//!   | x/data.pkl | x/.storage_alignment | x/byteorder | x/data/0 | x/data/1 ... | x/version | directory |
//!       crc32 of the bytes of data/0:      in the header ^                         and here ^
//! ```
//!
//! As torch does it: entries stored as they are, the bytes of each at a multiple of 64, zip64 where it is needed.
//! Unlike torch, checksums and lengths stand in the headers and not behind the bytes, and there is no
//! `.format_version`: it would promise an order of the storages from which `torch.load` reckons where they lie;
//! without it, `torch.load` looks. Source: torch 2.15, `torch/serialization.py` (`_save`, `_load`).

use std::path::PathBuf;

use reshard_layout::{DType, Elements, row_major};

use super::dtype;
use crate::output::{Checksum, Known, TargetFile};
use crate::pickle::{NodeId, Pickle, PickleBuilder, PickleFault};

/// Where the bytes of an entry may begin.
const ALIGNMENT_BYTES: u64 = 64;
/// The version of torch's file format that has what is used here.
const VERSION: &[u8] = b"3\n";
/// Names are UTF-8.
const FLAGS: u16 = 1 << 11;
/// 1 January 1980, the first day that zip can say.
const DATE: u16 = 0x0021;
/// The version of zip that a reader must know, without and with 64-bit lengths.
const ZIP_VERSION: (u16, u16) = (20, 45);
/// The extra field of 64-bit lengths, and that of padding (torch's own).
const EXTRA_ZIP64: u16 = 1;
const EXTRA_PADDING: u16 = u16::from_le_bytes(*b"FB");
/// Where the checksum stands in a header of an entry, and in one of the directory.
const LOCAL_CHECKSUM: u64 = 14;
const DIRECTORY_CHECKSUM: u64 = 16;

/// The bytes of a storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Known now.
    Known(Vec<u8>),
    /// So many bytes, which a storage of a layout fills later.
    Data(u64),
}

impl PickleBuilder {
    /// A dense tensor: `shape` elements from element `offset` on of storage `key`, which has `storage_elements`.
    pub fn tensor(
        &mut self,
        key: &str,
        dtype: DType,
        storage_elements: u64,
        offset: u64,
        shape: &[u64],
    ) -> NodeId {
        let (name, class) = dtype::names(dtype);
        let (class, count) = match class {
            Some(class) => (self.class("torch", class), storage_elements),
            None => {
                (self.class("torch.storage", "UntypedStorage"), Elements(storage_elements).bytes(dtype).0)
            }
        };
        let (kind, key, device) = (self.str("storage"), self.str(key), self.str("cpu"));
        let count = self.uint(count);
        let id = self.tuple([kind, class, key, device, count]);
        let storage = self.persistent(id);
        let (offset, size, strides) =
            (self.uint(offset), self.numbers(shape), self.numbers(&row_major(shape)));
        let (requires_gradient, hooks) = (self.bool(false), self.ordered_dict([]));
        let mut arguments = vec![storage, offset, size, strides, requires_gradient, hooks];
        let function = if dtype::names(dtype).1.is_some() {
            "_rebuild_tensor_v2"
        } else {
            arguments.push(self.class("torch", name));
            "_rebuild_tensor_v3"
        };
        let callable = self.class("torch._utils", function);
        let arguments = self.tuple(arguments);
        self.call(callable, arguments)
    }
}

/// A file that `torch.load` reads, also with `mmap=True` and with `weights_only=True` if all classes in the pickle
/// are ones that it allows. `archive` is the name of the folder in it, without a slash; each storage has the name
/// that the pickle gives it. Second: where the bytes of each storage begin in the file.
///
/// # Errors
/// As [`Pickle::write`].
pub fn torch_file(
    path: PathBuf,
    archive: &str,
    pickle: &Pickle,
    storages: Vec<(String, Contents)>,
) -> Result<(TargetFile, Vec<u64>), PickleFault> {
    let mut file = Archive::default();
    let alignment = ALIGNMENT_BYTES.to_string().into_bytes();
    file.entry(&format!("{archive}/data.pkl"), Contents::Known(pickle.write()?));
    file.entry(&format!("{archive}/.storage_alignment"), Contents::Known(alignment));
    file.entry(&format!("{archive}/byteorder"), Contents::Known(b"little".to_vec()));
    let offsets = storages
        .into_iter()
        .map(|(key, contents)| file.entry(&format!("{archive}/data/{key}"), contents))
        .collect();
    file.entry(&format!("{archive}/version"), Contents::Known(VERSION.to_vec()));
    Ok((file.finish(path), offsets))
}

/// A zip archive that grows.
#[derive(Default)]
struct Archive {
    length: u64,
    known: Vec<Known>,
    directory: Vec<u8>,
    entries: u64,
    checksums: Vec<Checksum>,
}

impl Archive {
    fn append(&mut self, bytes: &[u8]) {
        match self.known.last_mut() {
            Some(last) if last.offset + last.bytes.len() as u64 == self.length => {
                last.bytes.extend_from_slice(bytes)
            }
            _ => self.known.push(Known { offset: self.length, bytes: bytes.to_vec() }),
        }
        self.length += bytes.len() as u64;
    }

    /// Adds an entry; gives where its bytes begin.
    fn entry(&mut self, name: &str, contents: Contents) -> u64 {
        let begin = self.length;
        let (length, crc32) = match &contents {
            Contents::Known(bytes) => (bytes.len() as u64, crc32fast::hash(bytes)),
            Contents::Data(length) => (*length, 0),
        };
        let header = local_header(name, begin, length, crc32);
        self.append(&header);
        let data = self.length;
        match contents {
            Contents::Known(bytes) => self.append(&bytes),
            Contents::Data(0) => {}
            Contents::Data(length) => {
                self.length += length;
                // The second place counts from the directory until that has its own.
                let at = vec![begin + LOCAL_CHECKSUM, self.directory.len() as u64 + DIRECTORY_CHECKSUM];
                self.checksums.push(Checksum { data: data..self.length, at });
            }
        }
        directory_header(&mut self.directory, name, begin, length, crc32);
        self.entries += 1;
        data
    }

    /// Adds the directory and its ends, the one for 64 bits and the old one.
    fn finish(mut self, path: PathBuf) -> TargetFile {
        let (begin, length) = (self.length, self.directory.len() as u64);
        for checksum in &mut self.checksums {
            checksum.at[1] += begin;
        }
        let mut tail = std::mem::take(&mut self.directory);
        tail.extend(0x0606_4b50u32.to_le_bytes());
        tail.extend(44u64.to_le_bytes());
        tail.extend([ZIP_VERSION.1, ZIP_VERSION.1].map(u16::to_le_bytes).concat());
        tail.extend([0u32, 0].map(u32::to_le_bytes).concat());
        tail.extend([self.entries, self.entries, length, begin].map(u64::to_le_bytes).concat());
        tail.extend(0x0706_4b50u32.to_le_bytes());
        tail.extend(0u32.to_le_bytes());
        tail.extend((begin + length).to_le_bytes());
        tail.extend(1u32.to_le_bytes());
        let entries = u16::try_from(self.entries).unwrap_or(u16::MAX);
        tail.extend(0x0605_4b50u32.to_le_bytes());
        tail.extend([0, 0, entries, entries].map(u16::to_le_bytes).concat());
        tail.extend([short(length), short(begin)].map(u32::to_le_bytes).concat());
        tail.extend(0u16.to_le_bytes());
        self.append(&tail);
        TargetFile { path, length: self.length, known: self.known, checksums: self.checksums }
    }
}

/// A number in 32 bits, or the mark that it stands in 64 elsewhere.
fn short(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn is_long(number: u64) -> bool {
    number >= u64::from(u32::MAX)
}

fn extra(id: u16, bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    [&id.to_le_bytes(), &length.to_le_bytes(), bytes].concat()
}

/// What both headers of an entry say from the version on to the length of the name.
fn common(header: &mut Vec<u8>, name: &str, length: u64, crc32: u32, is_zip64: bool) {
    let version = if is_zip64 { ZIP_VERSION.1 } else { ZIP_VERSION.0 };
    let (method, time) = (0, 0);
    header.extend([version, FLAGS, method, time, DATE].map(u16::to_le_bytes).concat());
    header.extend([crc32, short(length), short(length)].map(u32::to_le_bytes).concat());
    header.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
}

/// The header of an entry at `begin`, padded so that what follows is aligned.
fn local_header(name: &str, begin: u64, length: u64, crc32: u32) -> Vec<u8> {
    let mut extras = Vec::new();
    if is_long(length) {
        extras = extra(EXTRA_ZIP64, &[length, length].map(u64::to_le_bytes).concat());
    }
    let before_padding = begin + 30 + (name.len() + extras.len() + 4) as u64;
    let padding = before_padding.next_multiple_of(ALIGNMENT_BYTES) - before_padding;
    extras.extend(extra(EXTRA_PADDING, &vec![b'Z'; padding as usize]));
    let mut header = 0x0403_4b50u32.to_le_bytes().to_vec();
    common(&mut header, name, length, crc32, is_long(length));
    header.extend(u16::try_from(extras.len()).unwrap_or(u16::MAX).to_le_bytes());
    header.extend(name.as_bytes());
    header.extend(extras);
    header
}

fn directory_header(directory: &mut Vec<u8>, name: &str, begin: u64, length: u64, crc32: u32) {
    let lengths = [length, length];
    let longs: Vec<u8> =
        lengths.into_iter().chain([begin]).filter(|n| is_long(*n)).flat_map(u64::to_le_bytes).collect();
    let extras = if longs.is_empty() { Vec::new() } else { extra(EXTRA_ZIP64, &longs) };
    let version_made_by = ZIP_VERSION.1;
    directory.extend(0x0201_4b50u32.to_le_bytes());
    directory.extend(version_made_by.to_le_bytes());
    common(directory, name, length, crc32, !longs.is_empty());
    let (comment, disk, internal_attributes) = (0, 0, 0);
    let extras_length = u16::try_from(extras.len()).unwrap_or(u16::MAX);
    directory.extend([extras_length, comment, disk, internal_attributes].map(u16::to_le_bytes).concat());
    directory.extend([0, short(begin)].map(u32::to_le_bytes).concat());
    directory.extend(name.as_bytes());
    directory.extend(extras);
}

//! The files of a checkpoint, read by position.
//!
//! ```text
//!   FileId 0  model-00001-of-00002.safetensors   |header| q_proj ... |
//!                                                         ^ Span { file 0, offset, length } = one storage of a layout
//! ```
//!
//! Nothing is mapped: a file that shrinks while it is read is an error and not a signal, and memory is what the
//! caller hands in. Handles are opened when they are needed, and only so many are kept.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use reshard_layout::Bytes;
use rustix::fs::OFlags;

use crate::error::FormatError;

/// Names a file of [`Files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

impl FileId {
    /// The id as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A byte range of a file: what a storage of a checkpoint's layout is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The file.
    pub file: FileId,
    /// Where it begins in the file.
    pub offset: Bytes,
    /// Its length.
    pub length: Bytes,
}

/// How many files are kept open.
const OPEN_MAX: usize = 256;

#[derive(Debug)]
struct Entry {
    path: PathBuf,
    length: Bytes,
}

/// Files, by [`FileId`].
#[derive(Debug, Default)]
pub struct Files {
    entries: Vec<Entry>,
    open: Mutex<VecDeque<(FileId, Arc<File>)>>,
}

impl Files {
    /// Adds a regular file. Its length is read now and holds from here on.
    ///
    /// # Errors
    /// [`FormatError::Io`] if it cannot be opened, or is no regular file.
    pub fn add(&mut self, path: &Path) -> Result<FileId, FormatError> {
        let metadata = std::fs::metadata(path).map_err(|cause| FormatError::io("look at", path, cause))?;
        if !metadata.is_file() {
            let cause = std::io::Error::other("not a regular file");
            return Err(FormatError::io("read", path, cause));
        }
        self.entries.push(Entry { path: path.to_owned(), length: Bytes(metadata.len()) });
        Ok(FileId(u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)))
    }

    /// The path of a file.
    ///
    /// # Panics
    /// If the id belongs to other files.
    #[must_use]
    pub fn path(&self, file: FileId) -> &Path {
        &self.entries[file.index()].path
    }

    /// The length of a file when it was added.
    ///
    /// # Panics
    /// If the id belongs to other files.
    #[must_use]
    pub fn length(&self, file: FileId) -> Bytes {
        self.entries[file.index()].length
    }

    /// How many files there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Fills `into` from byte `offset` on.
    ///
    /// # Errors
    /// [`FormatError::Io`], also if the file ends before `into` is full.
    pub fn read_at(&self, file: FileId, offset: Bytes, into: &mut [u8]) -> Result<(), FormatError> {
        let handle = self.handle(file)?;
        handle.read_exact_at(into, offset.0).map_err(|cause| {
            let ends_early =
                || std::io::Error::new(cause.kind(), "it is shorter now than when it was opened");
            let is_end = cause.kind() == std::io::ErrorKind::UnexpectedEof;
            FormatError::io("read", self.path(file), if is_end { ends_early() } else { cause })
        })
    }

    fn handle(&self, file: FileId) -> Result<Arc<File>, FormatError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.iter().position(|(known, _)| *known == file) {
            return Ok(Arc::clone(&open[at].1));
        }
        let path = self.path(file);
        let handle = Arc::new(open_regular(path)?);
        if open.len() == OPEN_MAX {
            open.pop_front();
        }
        open.push_back((file, Arc::clone(&handle)));
        Ok(handle)
    }
}

/// Opens a regular file. Nothing is waited for: a pipe without a writer is refused like a device.
///
/// # Errors
/// [`FormatError::Io`] if it cannot be opened, or is no regular file.
pub(crate) fn open_regular(path: &Path) -> Result<File, FormatError> {
    let without_waiting = OFlags::NONBLOCK.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(without_waiting).open(path);
    let file = opened.map_err(|cause| FormatError::io("open", path, cause))?;
    let metadata = file.metadata().map_err(|cause| FormatError::io("look at", path, cause))?;
    if metadata.is_file() {
        return Ok(file);
    }
    Err(FormatError::io("read", path, std::io::Error::other("not a regular file")))
}

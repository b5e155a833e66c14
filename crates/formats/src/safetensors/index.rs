//! The index of a folder: which file holds which tensor.
//!
//! ```text
//!   {"metadata": {"total_size": 64},
//!    "weight_map": {"k": "model-00001-of-00002.safetensors",     files that are absent are counted
//!                   "v": "model-00002-of-00002.safetensors"}}    before a byte of another is read
//! ```

use std::io::Read;
use std::path::Path;

use indexmap::{IndexMap, IndexSet};
use reshard_layout::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::fault::SafetensorsFault;
use super::json::Entries;
use crate::error::FormatError;
use crate::files::open_regular;
use crate::paths::stays_inside;

/// Bytes of an index or a config that are read. The index of a public model of 139,583 tensors has 16 MB.
pub const TEXT_BYTES_MAX: u64 = 100_000_000;

/// An index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// The path in the folder of each tensor's file, in the order of the index.
    pub files: IndexMap<String, String>,
    /// Bytes of all tensors, where the writer left a number. Published indexes have also sizes of files there, or of
    /// tensors that were taken out since.
    pub total_size: Option<u64>,
}

#[derive(Deserialize)]
struct RawIndex {
    #[serde(default)]
    metadata: Value,
    weight_map: Entries<String>,
}

impl Index {
    /// Reads an index.
    ///
    /// # Errors
    /// [`FormatError::Safetensors`] as in [`parse`](Self::parse); [`FormatError::Io`].
    pub fn read(path: &Path) -> Result<Self, FormatError> {
        Self::parse(&read_text(path)?)
            .map_err(|fault| FormatError::Safetensors { path: path.to_owned(), fault })
    }

    /// Reads the JSON of an index.
    ///
    /// # Errors
    /// [`SafetensorsFault`] for what is no index, a tensor that it names twice, and a path that leaves the folder.
    pub fn parse(json: &[u8]) -> Result<Self, SafetensorsFault> {
        let raw: RawIndex = serde_json::from_slice(json).map_err(|cause| SafetensorsFault::Json { cause })?;
        let files = raw.weight_map.unique().map_err(|name| SafetensorsFault::RepeatedName { name })?;
        if let Some((tensor, file)) = files.iter().find(|(_, file)| !stays_inside(file)) {
            let (tensor, file) = (tensor.clone(), file.clone());
            return Err(SafetensorsFault::PathEscapes { tensor, file });
        }
        Ok(Self { files, total_size: raw.metadata.get("total_size").and_then(Value::as_u64) })
    }

    /// The files that it names, each once, in order of their names.
    #[must_use]
    pub fn file_names(&self) -> Vec<&str> {
        let names: IndexSet<&str> = self.files.values().map(String::as_str).collect();
        let mut names: Vec<&str> = names.into_iter().collect();
        names.sort_unstable();
        names
    }

    /// Looks for every file that it names.
    ///
    /// # Errors
    /// [`SafetensorsFault::FilesAbsent`] with all that are not there.
    pub fn check_files(&self, folder: &Path) -> Result<(), SafetensorsFault> {
        let named = self.file_names();
        let absent: IndexSet<&str> =
            named.iter().copied().filter(|name| !folder.join(name).exists()).collect();
        if absent.is_empty() {
            return Ok(());
        }
        let tensors = self.files.values().filter(|file| absent.contains(file.as_str())).count();
        let files = absent.into_iter().map(str::to_owned).collect();
        Err(SafetensorsFault::FilesAbsent { files, named: named.len(), tensors })
    }
}

/// The bytes of a small text file.
pub(crate) fn read_text(path: &Path) -> Result<Vec<u8>, FormatError> {
    let failed = |cause| FormatError::io("read", path, cause);
    let mut text = Vec::new();
    open_regular(path)?.take(TEXT_BYTES_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > TEXT_BYTES_MAX {
        let (length, limit) = (Bytes(text.len() as u64), Bytes(TEXT_BYTES_MAX));
        let fault = SafetensorsFault::TextTooLong { length, limit };
        return Err(FormatError::Safetensors { path: path.to_owned(), fault });
    }
    Ok(text)
}

//! From a path to the files that make up a checkpoint.
//!
//! ```text
//!   x.safetensors                         that file
//!   x.index.json                          the files that it names
//!   folder  model.safetensors.index.json  the files that it names      (or the only other index)
//!           model.safetensors             that file
//!           a.safetensors b.safetensors   both
//! ```

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::fault::SafetensorsFault;
use super::index::Index;
use crate::error::FormatError;

/// The only file of a folder without an index.
pub(super) const SINGLE: &str = "model.safetensors";
/// The usual name of an index.
pub(super) const INDEX: &str = "model.safetensors.index.json";
const INDEX_ENDING: &str = ".safetensors.index.json";
const ENDING: &str = ".safetensors";

/// What lies at a path.
pub(super) struct Found {
    /// What the checkpoint is called by: the file, or the folder.
    pub(super) root: PathBuf,
    /// Where the files lie.
    pub(super) folder: PathBuf,
    /// Their paths in the folder.
    pub(super) names: Vec<PathBuf>,
    /// The index that names them, and its path.
    pub(super) index: Option<(PathBuf, Index)>,
}

impl Found {
    pub(super) fn look(path: &Path) -> Result<Self, FormatError> {
        let metadata = std::fs::metadata(path).map_err(|cause| FormatError::io("look at", path, cause))?;
        if metadata.is_dir() {
            return Self::folder(path);
        }
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        if path.extension() == Some(OsStr::new("json")) {
            return Self::indexed(folder.clone(), folder, path.to_owned());
        }
        let names = path.file_name().map(PathBuf::from).into_iter().collect();
        Ok(Self { root: path.to_owned(), folder, names, index: None })
    }

    fn folder(path: &Path) -> Result<Self, FormatError> {
        let invalid = |fault| FormatError::Safetensors { path: path.to_owned(), fault };
        let (root, folder) = (path.to_owned(), path.to_owned());
        let names = visible_names(path)?;
        let is_there = |name: &str| names.iter().any(|known| known == Path::new(name));
        let is_index = |name: &&PathBuf| name.to_string_lossy().ends_with(INDEX_ENDING);
        let indexes: Vec<&PathBuf> = names.iter().filter(is_index).collect();
        if is_there(INDEX) {
            return Self::indexed(root, folder, path.join(INDEX));
        }
        if let [index] = indexes.as_slice() {
            return Self::indexed(root, folder, path.join(index));
        }
        if !indexes.is_empty() {
            let indexes = indexes.iter().map(|name| name.to_string_lossy().into_owned()).collect();
            return Err(invalid(SafetensorsFault::SeveralIndexes { indexes }));
        }
        let names = if is_there(SINGLE) { vec![PathBuf::from(SINGLE)] } else { tensor_files(path)? };
        Ok(Self { root, folder, names, index: None })
    }

    fn indexed(root: PathBuf, folder: PathBuf, path: PathBuf) -> Result<Self, FormatError> {
        let index = Index::read(&path)?;
        index.check_files(&folder).map_err(|fault| FormatError::Safetensors { path: path.clone(), fault })?;
        let names = index.file_names().into_iter().map(PathBuf::from).collect();
        Ok(Self { root, folder, names, index: Some((path, index)) })
    }
}

/// The `.safetensors` files of a folder, sorted by name.
pub(crate) fn tensor_files(folder: &Path) -> Result<Vec<PathBuf>, FormatError> {
    let mut names = visible_names(folder)?;
    names.retain(|name| name.to_string_lossy().ends_with(ENDING));
    if names.is_empty() {
        let fault = SafetensorsFault::NoFiles;
        return Err(FormatError::Safetensors { path: folder.to_owned(), fault });
    }
    Ok(names)
}

/// The names in a folder, sorted, without hidden ones: unfinished downloads and what other systems leave.
fn visible_names(folder: &Path) -> Result<Vec<PathBuf>, FormatError> {
    let failed = |cause| FormatError::io("list", folder, cause);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if !name.to_string_lossy().starts_with('.') {
            names.push(PathBuf::from(name));
        }
    }
    names.sort_unstable();
    Ok(names)
}

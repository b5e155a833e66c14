//! What lies in the folder of a Universal checkpoint, by names alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::fault::UniversalFault;
use crate::error::FormatError;
use crate::zero::files::{FileName, Position};
use crate::zero::write::OPTIMIZER_STATE;

/// Entries of one folder, at most.
const ENTRIES_MAX: usize = 1 << 20;
/// So many unknown entries are named.
const UNKNOWN_MAX: usize = 100;
/// The state that is no tensor of the parameter's shape.
pub(super) const STEP: &str = "step";

/// The entries of a Universal checkpoint.
#[derive(Debug, Default)]
pub(super) struct Folder {
    /// Files of model states of stages 1 and 2.
    pub(super) plain: BTreeMap<Position, PathBuf>,
    /// Files of model states of stage 3.
    pub(super) partitioned: BTreeMap<Position, PathBuf>,
    /// The file of every state of every parameter.
    pub(super) parameters: BTreeMap<String, BTreeMap<String, PathBuf>>,
    /// `optimizer_state.pt`.
    pub(super) optimizer: Option<PathBuf>,
    /// What is none of these.
    pub(super) unknown: Vec<String>,
}

impl Folder {
    /// Looks at the names in a folder and in its `zero`.
    pub(super) fn list(root: &Path) -> Result<Self, FormatError> {
        let zero = root.join("zero");
        if !zero.is_dir() {
            return Err(UniversalFault::NoParameters.at(root));
        }
        let mut folder = Self::default();
        for name in names(root)? {
            match FileName::parse(&name) {
                FileName::Model(position) => drop(folder.plain.insert(position, root.join(&name))),
                FileName::PartitionedModel(position) => {
                    folder.partitioned.insert(position, root.join(&name));
                }
                _ if name == "zero" => {}
                _ => folder.unknown.push(name),
            }
        }
        for name in names(&zero)? {
            let path = zero.join(&name);
            if path.is_dir() {
                folder.parameter(name, &path)?;
            } else if name == OPTIMIZER_STATE {
                folder.optimizer = Some(path);
            } else {
                folder.unknown.push(format!("zero/{name}"));
            }
        }
        folder.unknown.truncate(UNKNOWN_MAX);
        Ok(folder)
    }

    fn parameter(&mut self, parameter: String, path: &Path) -> Result<(), FormatError> {
        let mut states = BTreeMap::new();
        for name in names(path)? {
            match name.strip_suffix(".pt").filter(|state| !state.is_empty() && path.join(&name).is_file()) {
                Some(state) => drop(states.insert(state.to_owned(), path.join(&name))),
                None => self.unknown.push(format!("zero/{parameter}/{name}")),
            }
        }
        if states.is_empty() {
            self.unknown.push(format!("zero/{parameter}"));
        } else {
            self.parameters.insert(parameter, states);
        }
        Ok(())
    }
}

/// The names in a folder, sorted. Those that are no text become names that are unknown.
fn names(folder: &Path) -> Result<Vec<String>, FormatError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|cause| FormatError::io("list", folder, cause))? {
        let entry = entry.map_err(|cause| FormatError::io("list", folder, cause))?;
        if names.len() == ENTRIES_MAX {
            return Err(UniversalFault::TooMany { limit: ENTRIES_MAX }.at(folder));
        }
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

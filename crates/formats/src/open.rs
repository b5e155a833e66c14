//! Which format a path holds, by the names of its files.
//!
//! ```text
//!   *.safetensors, *.index.json          safetensors, or shards if their metadata says so
//!   latest_universal, zero/              Universal
//!   latest, *_model_states.pt            ZeRO
//!   .metadata                            DCP
//! ```

use std::path::Path;

use crate::checkpoint::{Checkpoint, Format};
use crate::error::FormatError;
use crate::{dcp, safetensors, shards, universal, zero};

/// File names of one folder that the formats are told apart by.
struct Names(Vec<String>);

impl Names {
    fn of(folder: &Path) -> Result<Self, FormatError> {
        let io = |cause| FormatError::io("list", folder, cause);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(io)? {
            names.push(entry.map_err(io)?.file_name().to_string_lossy().into_owned());
        }
        Ok(Self(names))
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|known| known == name)
    }

    fn any(&self, ends_in: &str) -> bool {
        self.0.iter().any(|name| name.ends_with(ends_in))
    }

    /// Every format that the names speak for.
    fn formats(&self, folder: &Path) -> Vec<Format> {
        let universal = self.has("latest_universal") || self.has("zero") && folder.join("zero").is_dir();
        let model_states = self.any("_model_states.pt") || self.any("_optim_states.pt");
        let zero = self.has("latest") || model_states && !universal;
        let candidates = [
            (universal, Format::Universal),
            (zero, Format::Zero),
            (self.has(dcp::METADATA), Format::Dcp),
            (self.any(".safetensors") || self.any(".safetensors.index.json"), Format::HuggingFace),
        ];
        candidates.into_iter().filter(|(is, _)| *is).map(|(_, format)| format).collect()
    }
}

impl Checkpoint {
    /// Opens a checkpoint of any format: headers and pickles are read, no tensor is.
    ///
    /// # Errors
    /// [`FormatError::NotACheckpoint`], [`FormatError::Ambiguous`], or what its format's reader finds.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        match format(path)? {
            Format::HuggingFace => safetensors::open(path),
            Format::Shards => shards::open(path),
            Format::Zero => zero::open(path),
            Format::Universal => universal::open(path),
            Format::Dcp => dcp::open(path),
        }
    }
}

/// The format of a file or folder.
fn format(path: &Path) -> Result<Format, FormatError> {
    let metadata = std::fs::metadata(path).map_err(|cause| FormatError::io("look at", path, cause))?;
    if !metadata.is_dir() {
        return format_of_file(path);
    }
    match Names::of(path)?.formats(path).as_slice() {
        [] => Err(FormatError::NotACheckpoint { path: path.to_owned() }),
        [Format::HuggingFace] => format_of_tensors(path),
        [format] => Ok(*format),
        several => Err(FormatError::Ambiguous { path: path.to_owned(), found: several.to_vec() }),
    }
}

fn format_of_file(path: &Path) -> Result<Format, FormatError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.ends_with(".safetensors") {
        return format_of_tensors(path);
    }
    if name.ends_with(".safetensors.index.json") {
        return Ok(Format::HuggingFace);
    }
    let unknown = || FormatError::NotACheckpoint { path: path.to_owned() };
    (name == dcp::METADATA).then_some(Format::Dcp).ok_or_else(unknown)
}

/// Files of one rank each are never read as whole tensors, also where one of them is named.
fn format_of_tensors(path: &Path) -> Result<Format, FormatError> {
    Ok(match () {
        () if shards::recognise(path)? => Format::Shards,
        () if dcp::recognise(path)? => Format::Dcp,
        () => Format::HuggingFace,
    })
}

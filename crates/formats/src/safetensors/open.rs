//! From files to a checkpoint: all tensors by name, and second names of tied weights.
//!
//! ```text
//!   model-1 | k |    index: k -> model-1, v -> model-2            parameters k v
//!   model-2 | v |    config: tied, no lm_head.weight in a file    lm_head.weight = model.embed_tokens.weight
//! ```

use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use reshard_layout::{Bytes, Elements, Geometry, LayoutBuilder, LayoutError, ParameterId, Rank};
use serde_json::Value;

use super::fault::{SafetensorsFault, shown};
use super::header::{Header, Tensor};
use super::index::{Index, read_text};
use super::look::Found;
use crate::checkpoint::{Checkpoint, Facts, Format, Part};
use crate::error::FormatError;
use crate::files::{FileId, Files};
use crate::kept::Kept;

const CONFIG: &str = "config.json";

/// The names of tied weights: of the embedding, and of the head (`_tied_weights_keys` of transformers 5.24).
const TIED: [(&str, &str); 2] = [
    ("model.embed_tokens.weight", "lm_head.weight"),
    ("model.language_model.embed_tokens.weight", "lm_head.weight"),
];

/// Opens a `.safetensors` file, an index, or a folder, reading headers only. The tensors are
/// [`Kept::Weights`], each whole on rank 0.
///
/// A tensor in a file of an index that the index does not name is read too, as the engines do; of two of one name
/// the index says which is meant. Both are in [`Facts::notes`], like a `total_size` that is not the sum: published
/// folders have such.
///
/// # Errors
/// [`FormatError::Safetensors`] naming file and reason; [`FormatError::Io`].
pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
    let Found { root, folder, names, index } = Found::look(path)?;
    let mut files = Files::default();
    let mut facts = Facts::default();
    let mut tensors = Tensors::default();
    for name in &names {
        let id = files.add(&folder.join(name))?;
        let header = Header::read(&files, id)?;
        for (key, value) in header.metadata {
            facts.metadata.entry(key).or_insert(value);
        }
        tensors
            .add(id, &name.to_string_lossy(), header.tensors, index.as_ref().map(|(_, index)| index))
            .map_err(|fault| FormatError::Safetensors { path: folder.clone(), fault })?;
    }
    if let Some((path, index)) = index {
        let invalid = |fault| FormatError::Safetensors { path, fault };
        facts.notes = tensors.check(&index).map_err(invalid)?;
    }
    for (name, (_, tensor)) in &tensors.found {
        if tensor.stored.dtype().is_none() {
            facts.packed.insert(name.clone(), (tensor.stored.name().to_owned(), tensor.shape.clone()));
        }
    }
    facts.config = config_beside(&folder);
    let tied = tied(facts.config.as_deref(), |name| tensors.found.contains_key(name))?;
    let part = part(tensors.found.into_values(), tied)
        .map_err(|error| FormatError::Layout { path: root.clone(), error })?;
    let parts = IndexMap::from([(Kept::Weights, part)]);
    Ok(Checkpoint { format: Format::HuggingFace, root, files, parts, facts })
}

/// A part in which every tensor lies whole on rank 0. `tied` gives the second of two names to the first.
pub(super) fn part(
    tensors: impl IntoIterator<Item = (FileId, Tensor)>,
    tied: Option<(&str, &str)>,
) -> Result<Part, LayoutError> {
    let mut builder = LayoutBuilder::new();
    let mut spans = Vec::new();
    for (file, tensor) in tensors {
        let parameter = place(&mut builder, &tensor);
        spans.push(tensor.span(file));
        if let Some((_, second)) = tied.filter(|(first, _)| *first == tensor.name) {
            builder.alias(second, parameter);
        }
    }
    Ok(Part { layout: builder.build()?, spans })
}

/// Adds a tensor whole: a parameter, and a storage that is its bytes.
fn place(builder: &mut LayoutBuilder, tensor: &Tensor) -> ParameterId {
    let (dtype, shape) = tensor.in_layout();
    let parameter = builder.parameter(&tensor.name, shape.iter().copied(), dtype);
    let storage = builder.storage(Rank(0), &tensor.name, tensor.length());
    let elements = Elements(tensor.length().0 / dtype.size());
    let buffer = builder.buffer(storage, Bytes(0), dtype, elements);
    let geometry = builder.geometry(Geometry::whole(&shape));
    builder.place(parameter, buffer, Elements(0), geometry);
    parameter
}

/// The tensors of all files, by name.
#[derive(Default)]
struct Tensors {
    found: IndexMap<String, (FileId, Tensor)>,
    file_names: Vec<String>,
    /// Tensors that the index does not name.
    unnamed: Vec<String>,
    /// Tensors in a file that the index does not mean.
    unmeant: Vec<String>,
}

impl Tensors {
    fn add(
        &mut self,
        id: FileId,
        file: &str,
        tensors: Vec<Tensor>,
        index: Option<&Index>,
    ) -> Result<(), SafetensorsFault> {
        self.file_names.push(file.to_owned());
        for tensor in tensors {
            match index.map(|index| index.files.get(&tensor.name)) {
                Some(Some(meant)) if meant != file => {
                    self.unmeant.push(format!("{} in {file}", tensor.name));
                    continue;
                }
                Some(None) => self.unnamed.push(tensor.name.clone()),
                _ => {}
            }
            if let Some((first, _)) = self.found.get(&tensor.name) {
                let (first, second) = (self.file_names[first.index()].clone(), file.to_owned());
                return Err(SafetensorsFault::TensorInTwoFiles { tensor: tensor.name, first, second });
            }
            self.found.insert(tensor.name.clone(), (id, tensor));
        }
        Ok(())
    }

    /// Proves that all that the index names was found, and says what is odd otherwise.
    fn check(&self, index: &Index) -> Result<Vec<String>, SafetensorsFault> {
        let tensors: Vec<String> =
            index.files.keys().filter(|name| !self.found.contains_key(*name)).cloned().collect();
        if !tensors.is_empty() {
            return Err(SafetensorsFault::TensorsAbsent { tensors });
        }
        let mut notes = Vec::new();
        if !self.unnamed.is_empty() {
            notes.push(format!("read, though the index does not name them: {}", shown(&self.unnamed)));
        }
        if !self.unmeant.is_empty() {
            notes.push(format!("left out, the index means another file: {}", shown(&self.unmeant)));
        }
        let named = index.files.keys().filter_map(|name| self.found.get(name));
        let bytes: u128 = named.map(|(_, tensor)| u128::from(tensor.length().0)).sum();
        if let Some(total) = index.total_size.filter(|total| u128::from(*total) != bytes) {
            notes.push(format!("total_size of the index is {total}, its tensors have {bytes} bytes"));
        }
        Ok(notes)
    }
}

/// The model's config, if it lies in the folder.
pub(crate) fn config_beside(folder: &Path) -> Option<PathBuf> {
    Some(folder.join(CONFIG)).filter(|config| config.is_file())
}

/// The name of the embedding and that of the head, where the config ties them and the head is not there itself.
pub(crate) fn tied(
    config: Option<&Path>,
    has: impl Fn(&str) -> bool,
) -> Result<Option<(&'static str, &'static str)>, FormatError> {
    let Some(config) = config else { return Ok(None) };
    let json: Value = serde_json::from_slice(&read_text(config)?).map_err(|cause| {
        FormatError::Safetensors { path: config.to_owned(), fault: SafetensorsFault::Json { cause } }
    })?;
    let of_text = || json.get("text_config").and_then(|text| text.get("tie_word_embeddings"));
    let is_tied = json.get("tie_word_embeddings").or_else(of_text).and_then(Value::as_bool);
    if is_tied != Some(true) {
        return Ok(None);
    }
    Ok(TIED.into_iter().find(|(embedding, head)| has(embedding) && !has(head)))
}

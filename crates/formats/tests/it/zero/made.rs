//! ZeRO checkpoints put together by hand: JSON stands for the pickle, `{"tensor": shape, "values": [..]}` in it for a
//! tensor of f32 with a storage of its own, `{"tensor": shape, "storage": n}` for one that is the n-th storage of the
//! file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reshard_formats::pickle::{NodeId, PickleBuilder};
use reshard_formats::torch::{Contents, torch_file};
use reshard_formats::{Checkpoint, FormatError, Kept, zero};
use reshard_layout::DType;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rebuilt::rebuilt;
use crate::support::scratch;
use crate::torch::render;

/// A tensor that holds these numbers.
pub(crate) fn numbers(shape: &[u64], values: &[u64]) -> Value {
    json!({"tensor": shape, "values": values})
}

/// A tensor that counts up.
pub(crate) fn counting(shape: &[u64], first: u64) -> Value {
    numbers(shape, &(first..first + shape.iter().product::<u64>()).collect::<Vec<_>>())
}

/// The files of a checkpoint, by name.
#[derive(Clone, Default)]
pub(crate) struct Made {
    pub(crate) files: BTreeMap<String, Value>,
}

impl Made {
    /// A model file of stage 0 to 2 for each tensor-parallel rank.
    pub(crate) fn models(models: impl IntoIterator<Item = Value>) -> Self {
        let name = |(rank, model)| (format!("mp_rank_{rank:02}_model_states.pt"), model);
        Self { files: (0..).zip(models).map(name).collect() }
    }

    pub(crate) fn file(&mut self, name: &str) -> &mut Value {
        self.files.get_mut(name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// The files, written.
    pub(crate) fn written(&self) -> TempDir {
        let folder = scratch();
        for (name, value) in &self.files {
            write(folder.path(), name, value);
        }
        folder
    }

    /// What is read of them, and the folder.
    pub(crate) fn opened(&self) -> (Result<Checkpoint, FormatError>, TempDir) {
        let folder = self.written();
        (zero::open(folder.path()), folder)
    }

    /// Why they are refused.
    pub(crate) fn refused(&self) -> FormatError {
        let (opened, folder) = self.opened();
        let error = opened.map(|checkpoint| checkpoint.facts).expect_err("it is refused");
        drop(folder);
        error
    }
}

/// Writes a value as torch would, in a file of its own.
pub(crate) fn write(folder: &Path, name: &str, value: &Value) -> PathBuf {
    let mut builder = PickleBuilder::new();
    let mut storages = Vec::new();
    let root = node(&mut builder, &mut storages, value);
    let (target, _) = torch_file(name.into(), "made", &builder.finish(root), storages).unwrap();
    render(&target, folder, &[])
}

fn node(builder: &mut PickleBuilder, storages: &mut Vec<(String, Contents)>, value: &Value) -> NodeId {
    match value {
        Value::Null => builder.none(),
        Value::Bool(value) => builder.bool(*value),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => builder.int(integer),
            None => builder.float(number.as_f64().unwrap()),
        },
        Value::String(text) => builder.str(text),
        Value::Array(items) => {
            let items: Vec<NodeId> = items.iter().map(|item| node(builder, storages, item)).collect();
            builder.list(items)
        }
        Value::Object(entries) if entries.contains_key("tensor") => {
            let shape: Vec<u64> = serde_json::from_value(entries["tensor"].clone()).unwrap();
            if let Some(known) = entries.get("storage").and_then(Value::as_u64) {
                let elements = shape.iter().product();
                return builder.tensor(&known.to_string(), DType::F32, elements, 0, &shape);
            }
            let values: Vec<u64> = serde_json::from_value(entries["values"].clone()).unwrap();
            let bytes: Vec<u8> = values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect();
            let key = storages.len().to_string();
            storages.push((key.clone(), Contents::Known(bytes)));
            builder.tensor(&key, DType::F32, values.len() as u64, 0, &shape)
        }
        Value::Object(entries) => {
            let entries: Vec<(NodeId, NodeId)> = entries
                .iter()
                .map(|(key, value)| (builder.str(key), node(builder, storages, value)))
                .collect();
            builder.dict(entries)
        }
    }
}

/// Each parameter's shape and numbers.
pub(crate) fn numbers_of(checkpoint: &Checkpoint, kept: &Kept) -> BTreeMap<String, (Vec<u64>, Vec<u64>)> {
    let number = |four: &[u8]| f32::from_le_bytes(four.try_into().unwrap()) as u64;
    rebuilt(checkpoint, kept)
        .into_iter()
        .map(|(name, whole)| (name, (whole.shape, whole.bytes.chunks_exact(4).map(number).collect())))
        .collect()
}

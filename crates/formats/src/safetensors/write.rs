//! A folder as `save_pretrained` leaves it: files up to a size limit, and an index of them.
//!
//! ```text
//!   q 3 GB, k 1 GB, v 2 GB, limit 5 GB   ──►  model-00001-of-00002.safetensors   q k
//!                                             model-00002-of-00002.safetensors   v
//!                                             model.safetensors.index.json       {"metadata": {"total_size": ...
//! ```
//!
//! Tensors are dealt to files in the order given. Inside a file they lie as the official writer lays them out: by
//! falling alignment of their type, then by name. So every tensor begins at a multiple of its element's size.

use std::collections::HashSet;
use std::path::PathBuf;

use indexmap::IndexMap;
use reshard_layout::{Bytes, DType};
use serde::Serialize;
use serde_json::json;

use super::fault::SafetensorsFault;
use super::header::{HEADER_BYTES_MAX, LENGTH_BYTES, RESERVED_NAME, Tensor};
use super::look::{INDEX, SINGLE};
use super::open::part;
use super::stored::StoredType;
use crate::checkpoint::Part;
use crate::error::FormatError;
use crate::files::FileId;
use crate::output::{Known, TargetFile};

/// A tensor that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Its shape in the layout.
    pub shape: Vec<u64>,
    /// Its type in the layout.
    pub dtype: DType,
    /// Type and shape in the file, where the type is below a byte: as in [`Facts::packed`](crate::Facts::packed).
    pub packed: Option<(String, Vec<u64>)>,
}

/// Lays out a folder of weights. `file_bytes_max` counts the bytes of tensors in a file; a tensor above it gets a
/// file of its own. The metadata `format` is `pt` unless it is given.
///
/// # Errors
/// [`FormatError::Safetensors`] for a name that is given twice or reserved, a type that the format has not, and a
/// header above the limit.
pub fn folder(
    tensors: &[TensorSpec],
    metadata: &IndexMap<String, String>,
    file_bytes_max: u64,
) -> Result<(Vec<TargetFile>, Part), FormatError> {
    let invalid = |fault| FormatError::Safetensors { path: PathBuf::from(INDEX), fault };
    let tensors = stored(tensors).map_err(invalid)?;
    let total: u64 = tensors.iter().map(|tensor| tensor.range.end).sum();
    let groups = dealt(tensors, file_bytes_max);
    let mut metadata = metadata.clone();
    metadata.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
    let mut files = Vec::with_capacity(groups.len() + 1);
    let mut placed = Vec::new();
    let mut index = IndexMap::new();
    let count = groups.len();
    for (at, mut group) in groups.into_iter().enumerate() {
        let name = match count {
            1 => SINGLE.to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
        };
        files.push(file(&name, &mut group, &metadata).map_err(invalid)?);
        for tensor in group {
            index.insert(tensor.name.clone(), name.clone());
            placed.push((FileId(at as u32), tensor));
        }
    }
    if count > 1 {
        files.push(index_file(total, index));
    }
    let part =
        part(placed, None).map_err(|error| FormatError::Layout { path: PathBuf::from(INDEX), error })?;
    Ok((files, part))
}

/// What the file calls each tensor, with ranges that begin at 0. The sum of their bytes fits in 64 bits.
fn stored(specs: &[TensorSpec]) -> Result<Vec<Tensor>, SafetensorsFault> {
    let mut names = HashSet::new();
    let mut total = 0u64;
    let mut tensors = Vec::with_capacity(specs.len());
    for spec in specs {
        if spec.name == RESERVED_NAME {
            return Err(SafetensorsFault::ReservedName);
        }
        if !names.insert(spec.name.as_str()) {
            return Err(SafetensorsFault::RepeatedName { name: spec.name.clone() });
        }
        let tensor = in_file(spec)?;
        total = total.checked_add(tensor.range.end).ok_or_else(|| SafetensorsFault::SizeOverflow {
            tensor: spec.name.clone(),
            dtype: tensor.stored.name(),
            shape: spec.shape.clone(),
        })?;
        tensors.push(tensor);
    }
    Ok(tensors)
}

fn in_file(spec: &TensorSpec) -> Result<Tensor, SafetensorsFault> {
    let name = spec.name.clone();
    let (type_name, shape) = match &spec.packed {
        Some((dtype, shape)) => (dtype.as_str(), shape),
        None => (StoredType::of(spec.dtype).map_or(spec.dtype.name(), StoredType::name), &spec.shape),
    };
    let Some(stored) = StoredType::parse(type_name) else {
        return Err(SafetensorsFault::UnknownType { tensor: name, dtype: type_name.to_owned() });
    };
    let length = stored.bytes(&name, shape)?;
    let tensor = Tensor { name, stored, shape: shape.clone(), range: 0..length };
    if tensor.in_layout() != (spec.dtype, spec.shape.clone()) {
        let bytes = StoredType::of(spec.dtype).map_or(Ok(0), |dtype| dtype.bytes(&spec.name, &spec.shape))?;
        return Err(SafetensorsFault::PackedDisagrees {
            tensor: tensor.name,
            bytes: Bytes(bytes),
            dtype: type_name.to_owned(),
            shape: tensor.shape,
        });
    }
    Ok(tensor)
}

/// The tensors of each file; one empty file where there are none.
fn dealt(tensors: Vec<Tensor>, file_bytes_max: u64) -> Vec<Vec<Tensor>> {
    let mut groups = vec![Vec::new()];
    let mut bytes = 0u64;
    for tensor in tensors {
        let length = tensor.range.end;
        let group = groups.last().map_or(0, Vec::len);
        if group > 0 && bytes + length > file_bytes_max {
            groups.push(Vec::new());
            bytes = 0;
        }
        bytes += length;
        if let Some(group) = groups.last_mut() {
            group.push(tensor);
        }
    }
    groups
}

#[derive(Serialize)]
struct Entry<'a> {
    dtype: &'static str,
    shape: &'a [u64],
    data_offsets: [u64; 2],
}

/// One file. Sorts its tensors and sets their ranges, counted from the start of the file.
pub(crate) fn file(
    name: &str,
    tensors: &mut [Tensor],
    metadata: &IndexMap<String, String>,
) -> Result<TargetFile, SafetensorsFault> {
    tensors.sort_by(|one, other| {
        (other.stored.alignment(), &one.name).cmp(&(one.stored.alignment(), &other.name))
    });
    let mut end = 0;
    let mut header = serde_json::Map::new();
    header.insert(RESERVED_NAME.to_owned(), json!(metadata));
    for tensor in tensors.iter_mut() {
        tensor.range = end..end + tensor.length().0;
        end = tensor.range.end;
        let (dtype, shape) = (tensor.stored.name(), tensor.shape.as_slice());
        let entry = Entry { dtype, shape, data_offsets: [tensor.range.start, end] };
        header.insert(tensor.name.clone(), json!(entry));
    }
    let mut text = serde_json::Value::Object(header).to_string().into_bytes();
    let length = (text.len() as u64).next_multiple_of(LENGTH_BYTES);
    if length > HEADER_BYTES_MAX {
        return Err(SafetensorsFault::HeaderTooLong {
            length: Bytes(length),
            limit: Bytes(HEADER_BYTES_MAX),
        });
    }
    text.resize(length as usize, b' ');
    let before = LENGTH_BYTES + length;
    for tensor in tensors.iter_mut() {
        tensor.range = tensor.range.start + before..tensor.range.end + before;
    }
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.append(&mut text);
    let known = vec![Known { offset: 0, bytes }];
    Ok(TargetFile { path: PathBuf::from(name), length: before + end, known, checksums: Vec::new() })
}

fn index_file(total: u64, mut files: IndexMap<String, String>) -> TargetFile {
    files.sort_keys();
    let index = json!({"metadata": {"total_size": total}, "weight_map": files});
    let bytes = format!("{index:#}\n").into_bytes();
    let (path, length) = (PathBuf::from(INDEX), bytes.len() as u64);
    TargetFile { path, length, known: vec![Known { offset: 0, bytes }], checksums: Vec::new() }
}

//! The variant with safetensors files, as torch's writer for the Hugging Face hub leaves them when ranks save apart.
//!
//! ```text
//!   shard-00002-model-00001-of-00001.safetensors
//!     __metadata__  DCP_SHARDING_INFO  {"w": {"saved_offsets": [3, 0]}}
//!     w             F32 [3, 3]                                             = the box (3, 0)+(3, 3) of w
//! ```
//!
//! No file says how large the whole is: as torch's own reader does it, it ends where its last shard ends.
//! Source: torch 2.15, `torch/distributed/checkpoint/filesystem.py`, `hf_storage.py`, `_hf_utils.py`.

use std::path::Path;

use indexmap::IndexMap;
use reshard_layout::{DType, Elements, row_major, volume};
use serde::Deserialize;

use super::fault::DcpFault;
use super::parts::{Parts, Placed};
use crate::checkpoint::{Checkpoint, Facts, Format};
use crate::error::FormatError;
use crate::files::{FileId, Files, Span};
use crate::kept::Kept;
use crate::safetensors::{Header, config_beside, json::Entries, tensor_files};

/// The key of a file's metadata under which the places of its shards stand.
const PLACES: &str = "DCP_SHARDING_INFO";
/// How the names of such files begin.
const SHARD: &str = "shard-";

#[derive(Deserialize)]
struct Place {
    saved_offsets: Vec<u64>,
}

struct Shard {
    offsets: Vec<u64>,
    sizes: Vec<u64>,
    span: Span,
}

struct Whole {
    dtype: DType,
    shape: Vec<u64>,
    shards: Vec<Shard>,
}

/// Whether a folder holds such files, by its first one, or a path is such a file. Whole tensors with an index are a
/// folder of the hub like any other, also if torch wrote it.
pub(crate) fn recognise(path: &Path) -> Result<bool, FormatError> {
    let names = if path.is_dir() { tensor_files(path).unwrap_or_default() } else { Vec::new() };
    let first = names.first().map_or_else(|| path.to_owned(), |name| path.join(name));
    if !first.file_name().unwrap_or_default().to_string_lossy().starts_with(SHARD) {
        return Ok(false);
    }
    let mut files = Files::default();
    let file = files.add(&first)?;
    Ok(Header::read(&files, file)?.metadata.contains_key(PLACES))
}

/// Opens a folder of such files.
pub(super) fn open(folder: &Path) -> Result<Checkpoint, FormatError> {
    let mut files = Files::default();
    let mut wholes: IndexMap<String, Whole> = IndexMap::new();
    for name in tensor_files(folder)? {
        let path = folder.join(name);
        let file = files.add(&path)?;
        let header = Header::read(&files, file)?;
        collect(file, &header, &mut wholes).map_err(|fault| FormatError::Dcp { path, fault })?;
    }
    let mut parts = Parts::default();
    for (name, whole) in &wholes {
        let id = parts.parameter(&Kept::Weights, name, &whole.shape, whole.dtype);
        for Shard { offsets, sizes, span } in whole.shards.iter().filter(|shard| !shard.sizes.contains(&0)) {
            let strides = row_major(sizes);
            let placed = Placed { offsets, sizes, span: *span, first: Elements(0), strides: &strides };
            parts.place(&files, (&Kept::Weights, id), (&whole.shape, whole.dtype), &placed);
        }
    }
    let parts = parts.finish(folder)?;
    let facts = Facts { config: config_beside(folder), ..Facts::default() };
    Ok(Checkpoint { format: Format::Dcp, root: folder.to_owned(), files, parts, facts })
}

fn collect(file: FileId, header: &Header, wholes: &mut IndexMap<String, Whole>) -> Result<(), DcpFault> {
    let wrong = |name: &str| DcpFault::Metadata { what: PLACES, name: name.to_owned() };
    let text = header.metadata.get(PLACES).ok_or(DcpFault::NoMetadata)?;
    let places: Entries<Place> = serde_json::from_str(text).map_err(|_| wrong("__metadata__"))?;
    let places = places.unique().map_err(|name| wrong(&name))?;
    for tensor in &header.tensors {
        let name = &tensor.name;
        let Some(dtype) = tensor.stored.dtype() else {
            return Err(DcpFault::Packed { name: name.clone(), dtype: tensor.stored.name() });
        };
        let offsets = places.get(name).ok_or_else(|| wrong(name))?.saved_offsets.clone();
        let sizes = tensor.shape.clone();
        let ends: Option<Vec<u64>> =
            offsets.iter().zip(&sizes).map(|(offset, size)| offset.checked_add(*size)).collect();
        let ends = ends.filter(|ends| offsets.len() == sizes.len() && volume(ends).is_some());
        let ends = ends.ok_or_else(|| wrong(name))?;
        let whole = wholes.entry(name.clone()).or_insert_with(|| Whole {
            dtype,
            shape: vec![0; ends.len()],
            shards: Vec::new(),
        });
        if whole.dtype != dtype || whole.shape.len() != ends.len() {
            let (found, expected) =
                (format!("{dtype} {ends:?}"), format!("{} {:?}", whole.dtype, whole.shape));
            return Err(DcpFault::Disagree { name: name.clone(), found, expected });
        }
        for (extent, end) in whole.shape.iter_mut().zip(ends) {
            *extent = end.max(*extent);
        }
        if volume(&whole.shape).is_none() {
            return Err(wrong(name));
        }
        whole.shards.push(Shard { offsets, sizes, span: tensor.span(file) });
    }
    Ok(())
}

//! The files of all ranks as one layout: each rank's tensors are its storages.
//!
//! ```text
//!   rank 0  up (3, 4) at [0, 0]    ┐
//!   rank 1  up (3, 4) at [3, 0]    ┴─►  parameter up (6, 4), held half by rank 0 and half by rank 1
//! ```
//!
//! Reader and writer both come through here, so that what is written is checked like what is read.

use std::collections::HashSet;

use indexmap::IndexMap;
use indexmap::map::Entry as Slot;
use reshard_layout::{Bytes, DType, Elements, LayoutBuilder, ParameterId, Rank};

use super::fault::ShardsFault;
use super::metadata::{Entry, RankLayout};
use crate::files::{FileId, Span};
use crate::safetensors::{StoredType, Tensor};

/// What lies in the file of one rank.
pub(super) struct RankFile {
    pub(super) file: FileId,
    pub(super) layout: RankLayout,
    pub(super) tensors: Vec<Tensor>,
}

/// What the first rank that holds a parameter says of it.
struct First {
    rank: u32,
    id: ParameterId,
    dtype: DType,
    entry: Entry,
}

/// Collects the ranks of a checkpoint.
#[derive(Default)]
pub(super) struct Ranks {
    pub(super) builder: LayoutBuilder,
    pub(super) spans: Vec<Span>,
    parameters: IndexMap<String, First>,
}

impl Ranks {
    /// Adds the tensors of one rank.
    pub(super) fn add(&mut self, file: &RankFile) -> Result<(), ShardsFault> {
        let entries = &file.layout.entries;
        for tensor in &file.tensors {
            let Some(entry) = entries.get(&tensor.name) else {
                return Err(ShardsFault::NoEntry { tensor: tensor.name.clone() });
            };
            self.place(file, tensor, entry)?;
        }
        if entries.len() > file.tensors.len() {
            let held: HashSet<&str> = file.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            if let Some(parameter) = entries.keys().find(|name| !held.contains(name.as_str())).cloned() {
                return Err(ShardsFault::NoTensor { parameter });
            }
        }
        Ok(())
    }

    fn place(&mut self, file: &RankFile, tensor: &Tensor, entry: &Entry) -> Result<(), ShardsFault> {
        let rank = file.layout.rank;
        let Some(dtype) = tensor.stored.dtype() else {
            let (tensor, dtype) = (tensor.name.clone(), tensor.stored.name());
            return Err(ShardsFault::Packed { tensor, dtype });
        };
        check_packed(&tensor.name, entry)?;
        let parameter = self.parameter(rank, &tensor.name, dtype, entry)?;
        let geometry = self.builder.geometry(entry.geometry(&tensor.name, &tensor.shape)?);
        let storage = self.builder.storage(Rank(rank), &tensor.name, tensor.length());
        let elements = Elements(tensor.length().0 / dtype.size());
        let buffer = self.builder.buffer(storage, Bytes(0), dtype, elements);
        self.builder.place(parameter, buffer, Elements(0), geometry);
        self.spans.push(tensor.span(file.file));
        Ok(())
    }

    fn parameter(
        &mut self,
        rank: u32,
        name: &str,
        dtype: DType,
        entry: &Entry,
    ) -> Result<ParameterId, ShardsFault> {
        match self.parameters.entry(name.to_owned()) {
            Slot::Vacant(slot) => {
                let id = self.builder.parameter(name, entry.shape.iter().copied(), dtype);
                slot.insert(First { rank, id, dtype, entry: entry.clone() });
                Ok(id)
            }
            Slot::Occupied(slot) => {
                let first = slot.get();
                let agrees = first.dtype == dtype
                    && first.entry.shape == entry.shape
                    && first.entry.packed == entry.packed;
                if agrees {
                    return Ok(first.id);
                }
                Err(ShardsFault::ParameterDisagrees {
                    parameter: name.to_owned(),
                    first: first.rank,
                    expected: described(first.dtype, &first.entry),
                    rank,
                    found: described(dtype, entry),
                })
            }
        }
    }

    /// Whether a parameter of this name was found.
    pub(super) fn has(&self, name: &str) -> bool {
        self.parameters.contains_key(name)
    }

    /// Gives a parameter a second name.
    pub(super) fn alias(&mut self, first: &str, second: &str) {
        if let Some(parameter) = self.parameters.get(first) {
            self.builder.alias(second, parameter.id);
        }
    }

    /// Stored type and shape of the parameters of types below a byte.
    pub(super) fn packed(&self) -> IndexMap<String, (String, Vec<u64>)> {
        let packed = |(name, first): (&String, &First)| Some((name.clone(), first.entry.packed.clone()?));
        self.parameters.iter().filter_map(packed).collect()
    }
}

/// A parameter of a type below a byte is held whole: a cut of its bytes may lie inside a group of elements.
fn check_packed(parameter: &str, entry: &Entry) -> Result<(), ShardsFault> {
    let Some((dtype, shape)) = &entry.packed else { return Ok(()) };
    let bytes = StoredType::parse(dtype).and_then(|stored| stored.bytes(parameter, shape).ok());
    let is_whole = entry.origin.is_none() && entry.boxes.is_none();
    if is_whole && bytes.is_some_and(|bytes| entry.shape == [bytes]) {
        return Ok(());
    }
    let (parameter, dtype, shape) = (parameter.to_owned(), dtype.clone(), shape.clone());
    Err(ShardsFault::PackedNotWhole { parameter, dtype, shape, found: entry.shape.clone() })
}

fn described(dtype: DType, entry: &Entry) -> String {
    match &entry.packed {
        Some((packed, shape)) => {
            format!("{dtype} of shape {:?} for {packed} of shape {shape:?}", entry.shape)
        }
        None => format!("{dtype} of shape {:?}", entry.shape),
    }
}

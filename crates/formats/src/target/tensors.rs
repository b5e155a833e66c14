//! The tensors that are taken of a source: names, shapes, and the type in which they are written.
//!
//! ```text
//!   source weights: w f32 (a master; the model computes in bf16), step i64     --dtype    written
//!                                                                              -          w bf16, step i64
//!                                                                              f16        w f16,  step i64
//! ```

use std::collections::HashMap;

use reshard_layout::{DType, ParameterId, Shard};

use super::{Selection, Tied};
use crate::checkpoint::{Checkpoint, Part};
use crate::error::FormatError;
use crate::kept::Kept;
use crate::safetensors::TensorSpec;
use crate::shards::ShardSpec;

/// The types that are cast on request.
const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::Bf16];

/// One tensor to write.
#[derive(Clone, Debug)]
pub(super) struct Selected {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
    pub(super) dtype: DType,
    /// The stored dtype and shape, where elements are smaller than a byte.
    packed: Option<(String, Vec<u64>)>,
}

impl Selected {
    pub(super) fn to_tensor(&self) -> TensorSpec {
        let Self { name, shape, dtype, packed } = self.clone();
        TensorSpec { name, shape, dtype, packed }
    }

    pub(super) fn to_shard(&self, shard: Shard) -> ShardSpec {
        let Self { name: parameter, shape, dtype, packed } = self.clone();
        ShardSpec { parameter, shape, dtype, shard, packed }
    }

    pub(super) fn other_shape(&self, source: &Checkpoint, expected: &[u64]) -> FormatError {
        FormatError::ShapesDiffer {
            path: source.root.clone(),
            parameter: self.name.clone(),
            expected: expected.to_vec(),
            found: self.shape.clone(),
        }
    }

    pub(super) fn unknown(&self, source: &Checkpoint) -> FormatError {
        FormatError::ParameterUnknown { path: source.root.clone(), parameter: self.name.clone() }
    }
}

/// What is taken of one part, in the source's order.
pub(super) fn selected(
    source: &Checkpoint,
    kept: &Kept,
    selection: &Selection,
) -> Result<Vec<Selected>, FormatError> {
    let part = part(source, kept)?;
    let mut second_names: HashMap<ParameterId, Vec<&str>> = HashMap::new();
    for (name, of) in part.layout.aliases().filter(|_| selection.tied == Tied::Duplicate) {
        second_names.entry(of).or_default().push(name);
    }
    let mut tensors = Vec::new();
    for (id, parameter) in part.layout.parameters() {
        let packed = source.facts.packed.get(&parameter.name).cloned();
        let mut dtype = source.dtype(kept, parameter);
        if let Some(wanted) = selection.dtype.filter(|_| FLOATS.contains(&dtype) && packed.is_none()) {
            dtype = wanted;
        }
        let second_names = second_names.remove(&id).unwrap_or_default();
        for name in std::iter::once(parameter.name.as_str()).chain(second_names) {
            let (name, shape) = (name.to_owned(), parameter.shape.to_vec());
            tensors.push(Selected { name, shape, dtype, packed: packed.clone() });
        }
    }
    Ok(tensors)
}

/// A part that the source must have.
fn part<'a>(source: &'a Checkpoint, kept: &Kept) -> Result<&'a Part, FormatError> {
    source.parts.get(kept).ok_or_else(|| FormatError::NotKept {
        path: source.root.clone(),
        wanted: kept.clone(),
        kept: source.parts.keys().cloned().collect(),
    })
}

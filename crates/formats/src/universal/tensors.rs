//! The tensor of a file of a Universal checkpoint, and layouts of many of them.

use std::collections::HashMap;

use reshard_layout::{
    Block, Bytes, DType, Elements, Geometry, LayoutBuilder, LayoutError, ParameterId, Rank, Region,
    row_major, volume,
};

use super::fault::UniversalFault;
use crate::checkpoint::Part;
use crate::error::FormatError;
use crate::files::{FileId, Files, Span};
use crate::torch::{Tensor, TorchFile};

/// Under which key a file has its tensor.
pub(super) const PARAM: &str = "param";

/// The tensor of a file, which is all of the file or its entry `param`. A flat one gets the shape that others say.
pub(super) fn read(
    files: &Files,
    file: FileId,
    parameter: &str,
    shape: Option<&[u64]>,
) -> Result<Tensor, FormatError> {
    let torch = TorchFile::open(files, file)?;
    let root = torch.pickle.root();
    let fault = |fault: UniversalFault| fault.at(files.path(file));
    let Some(mut bare) = torch.tensor(root)? else {
        let param = root.get(PARAM).ok_or_else(|| fault(UniversalFault::NotATensor { key: PARAM }))?;
        let tensor = torch.tensor(param)?.ok_or_else(|| fault(UniversalFault::NotATensor { key: PARAM }))?;
        return match shape {
            Some(shape) if tensor.shape != shape => Err(fault(UniversalFault::Shape {
                parameter: parameter.to_owned(),
                expected: shape.to_vec(),
                found: tensor.shape,
            })),
            _ => Ok(tensor),
        };
    };
    let elements = bare.elements().0;
    let Some(shape) = shape else {
        return Err(fault(UniversalFault::NoShape { parameter: parameter.to_owned(), elements }));
    };
    if bare.shape == shape {
        return Ok(bare);
    }
    if bare.shape.len() != 1 || bare.strides != [1] || volume(shape) != Some(elements) {
        let (parameter, expected) = (parameter.to_owned(), shape.to_vec());
        return Err(fault(UniversalFault::Shape { parameter, expected, found: bare.shape }));
    }
    bare.strides = row_major(shape).to_vec();
    bare.shape = shape.to_vec();
    Ok(bare)
}

/// Collects whole tensors, a storage each.
#[derive(Default)]
pub(super) struct TensorsDraft {
    builder: LayoutBuilder,
    names: HashMap<String, ParameterId>,
    spans: Vec<Span>,
}

impl TensorsDraft {
    /// Adds a tensor that lies in a storage of a file.
    pub(super) fn add(&mut self, name: &str, tensor: &Tensor) {
        let strided = Block::new(Region::whole(&tensor.shape), Elements(0), tensor.strides.iter().copied());
        let geometry = Geometry::new(tensor.shape.iter().copied(), [strided]);
        self.place(name, &tensor.shape, tensor.dtype, tensor.storage, tensor.offset, geometry);
    }

    /// Adds a row-major tensor that fills a storage.
    pub(super) fn add_whole(&mut self, name: &str, shape: &[u64], dtype: DType, file: FileId, offset: u64) {
        let length = Elements(volume(shape).unwrap_or(u64::MAX)).bytes(dtype);
        let span = Span { file, offset: Bytes(offset), length };
        self.place(name, shape, dtype, span, Elements(0), Geometry::whole(shape));
    }

    /// Gives a tensor a second name, if it is there.
    pub(super) fn alias(&mut self, alias: &str, name: &str) {
        if let Some(parameter) = self.names.get(name) {
            self.builder.alias(alias, *parameter);
        }
    }

    fn place(
        &mut self,
        name: &str,
        shape: &[u64],
        dtype: DType,
        span: Span,
        base: Elements,
        geometry: Geometry,
    ) {
        let parameter = self.builder.parameter(name, shape.iter().copied(), dtype);
        self.names.insert(name.to_owned(), parameter);
        self.spans.push(span);
        let storage = self.builder.storage(Rank(0), name, span.length);
        let buffer = self.builder.buffer(storage, Bytes(0), dtype, Elements(span.length.0 / dtype.size()));
        if !geometry.blocks().is_empty() {
            let geometry = self.builder.geometry(geometry);
            self.builder.place(parameter, buffer, base, geometry);
        }
    }

    pub(super) fn build(self) -> Result<Part, LayoutError> {
        Ok(Part { layout: self.builder.build()?, spans: self.spans })
    }
}

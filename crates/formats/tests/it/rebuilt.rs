//! Whole parameters put together from a layout element by element: slow, plain, and of another author than the planner.

use std::collections::BTreeMap;

use reshard_formats::{Checkpoint, Kept, Part};
use reshard_layout::{Bytes, DType, ParameterId, Piece, StorageId};
use reshard_transport::ReadAt;
use sha2::{Digest, Sha256};

/// A whole tensor, row-major and little-endian.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Whole {
    pub(crate) shape: Vec<u64>,
    pub(crate) dtype: DType,
    pub(crate) bytes: Vec<u8>,
}

impl Whole {
    pub(crate) fn sha256(&self) -> String {
        Sha256::digest(&self.bytes).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Rounded to another float type, to nearest and ties to even.
    pub(crate) fn rounded(&self, dtype: DType) -> Self {
        let round = |four: &[u8]| {
            let value = f32::from_le_bytes(four.try_into().unwrap());
            match dtype {
                DType::Bf16 => half::bf16::from_f32(value).to_le_bytes(),
                DType::F16 => half::f16::from_f32(value).to_le_bytes(),
                other => panic!("{other}"),
            }
        };
        match (self.dtype, dtype) {
            (from, to) if from == to => self.clone(),
            (DType::F32, _) => {
                Self { dtype, bytes: self.bytes.chunks_exact(4).flat_map(round).collect(), ..self.clone() }
            }
            (from, to) => panic!("{from} to {to}"),
        }
    }
}

/// Every parameter of a part, by name. Each element must be there, and equal wherever it is held.
pub(crate) fn rebuilt(checkpoint: &Checkpoint, kept: &Kept) -> BTreeMap<String, Whole> {
    let part = checkpoint.parts.get(kept).unwrap_or_else(|| panic!("no {kept}"));
    let storages = storages(checkpoint, part);
    let whole = |(id, parameter): (ParameterId, &reshard_layout::Parameter)| {
        let size = parameter.dtype.size() as usize;
        let elements: u64 = parameter.shape.iter().product();
        let mut found: Vec<Option<&[u8]>> = vec![None; usize::try_from(elements).unwrap()];
        for piece in part.layout.pieces_of(id) {
            let buffer = part.layout.places().buffer(piece.buffer);
            let bytes = &storages[buffer.storage.index()];
            for (element, address) in addresses(&piece, &parameter.shape) {
                let at = buffer.offset.0 as usize + address as usize * size;
                let value = &bytes[at..at + size];
                let known = found[element as usize].get_or_insert(value);
                let (name, rank) = (&parameter.name, piece.rank);
                assert_eq!(*known, value, "{kept} of {name}: element {element} differs on rank {rank}");
            }
        }
        let missing = || panic!("{kept} of {}: an element is nowhere", parameter.name);
        let bytes = found.into_iter().flat_map(|value| value.unwrap_or_else(missing)).copied().collect();
        let whole = Whole { shape: parameter.shape.to_vec(), dtype: parameter.dtype, bytes };
        (parameter.name.clone(), whole)
    };
    part.layout.parameters().map(whole).collect()
}

fn storages(checkpoint: &Checkpoint, part: &Part) -> Vec<Vec<u8>> {
    let reader = checkpoint.reader(part);
    let read = |(index, span): (u32, &reshard_formats::Span)| {
        // Poison: what is not read shows.
        let mut bytes = vec![0xA5; usize::try_from(span.length.0).unwrap()];
        reader.read_at(StorageId(index), Bytes(0), &mut bytes).unwrap();
        bytes
    };
    (0u32..).zip(&part.spans).map(read).collect()
}

/// For every element of a piece: its flat index in the parameter, and its address in the buffer.
fn addresses(piece: &Piece<'_>, shape: &[u64]) -> Vec<(u64, u64)> {
    let extent = piece.region.extent();
    let mut list = Vec::new();
    for mut index in 0..piece.region.volume() {
        let mut inside = vec![0; extent.len()];
        for axis in (0..extent.len()).rev() {
            inside[axis] = index % extent[axis];
            index /= extent[axis];
        }
        let (mut element, mut address) = (0, piece.offset.0);
        for axis in 0..extent.len() {
            element = element * shape[axis] + piece.region.origin()[axis] + inside[axis];
            address += inside[axis] * piece.strides[axis];
        }
        list.push((element, address));
    }
    list
}

//! Writing an output and reading a tensor the slow way, element by element: shares no code with planning and moving.
//!
//! ```text
//!   source part --tensor--> row-major bytes --cast--> each piece of the target part, element by element
//!   storages of the target start as 0xEE bytes, so that what nobody wrote is seen
//! ```

use std::path::Path;

use half::{bf16, f16};
use reshard_formats::{Checkpoint, FileId, Output, Part};
use reshard_layout::{DType, Layout, ParameterId, Piece, address, volume};

const POISON: u8 = 0xEE;

/// Every coordinate of a box, row-major.
fn coordinates(extent: &[u64]) -> impl Iterator<Item = Vec<u64>> + '_ {
    (0..volume(extent).unwrap()).map(|mut index| {
        let mut coordinate = vec![0; extent.len()];
        for axis in (0..extent.len()).rev() {
            coordinate[axis] = index % extent[axis];
            index /= extent[axis];
        }
        coordinate
    })
}

/// Where each element of a piece lies: its row-major index in the parameter, and its element in the buffer.
fn elements<'a>(shape: &'a [u64], piece: &'a Piece<'a>) -> impl Iterator<Item = (u64, u64)> + 'a {
    let rows = reshard_layout::row_major(shape);
    coordinates(piece.region.extent()).map(move |at| {
        let whole: Vec<u64> = at.iter().zip(piece.region.origin()).map(|(one, other)| one + other).collect();
        (address(&whole, &rows), piece.offset.0 + address(&at, piece.strides))
    })
}

/// The row-major bytes of a parameter, of whichever ranks hold it; ranks that hold the same must agree.
pub(crate) fn tensor(checkpoint: &Checkpoint, part: &Part, id: ParameterId) -> Vec<u8> {
    let parameter = part.layout.parameter(id);
    let size = usize::try_from(parameter.dtype.size()).unwrap();
    let mut bytes = vec![POISON; usize::try_from(volume(&parameter.shape).unwrap()).unwrap() * size];
    let mut known = vec![false; bytes.len() / size.max(1)];
    for piece in part.layout.pieces_of(id) {
        let buffer = part.layout.places().buffer(piece.buffer);
        let span = part.spans[buffer.storage.index()];
        let mut storage = vec![0; usize::try_from(span.length.0).unwrap()];
        checkpoint.files.read_at(span.file, span.offset, &mut storage).unwrap();
        for (index, element) in elements(&parameter.shape, &piece) {
            let from = usize::try_from(buffer.offset.0).unwrap() + usize::try_from(element).unwrap() * size;
            let index = usize::try_from(index).unwrap();
            let value = &storage[from..from + size];
            assert!(
                !known[index] || bytes[index * size..][..size] == *value,
                "holders of {} differ",
                parameter.name
            );
            bytes[index * size..][..size].copy_from_slice(value);
            known[index] = true;
        }
    }
    assert!(known.iter().all(|known| *known), "{} has holes", parameter.name);
    bytes
}

/// A tensor by name.
pub(crate) fn named(checkpoint: &Checkpoint, kept: &reshard_formats::Kept, name: &str) -> Vec<u8> {
    let part = &checkpoint.parts[kept];
    tensor(checkpoint, part, part.layout.find(name).unwrap_or_else(|| panic!("no {name} in {kept}")))
}

/// Elements of one type as another.
pub(crate) fn cast(bytes: &[u8], from: DType, to: DType) -> Vec<u8> {
    if from == to {
        return bytes.to_vec();
    }
    let size = usize::try_from(from.size()).unwrap();
    let number = |element: &[u8]| match from {
        DType::F32 => f32::from_le_bytes(element.try_into().unwrap()),
        DType::Bf16 => bf16::from_le_bytes(element.try_into().unwrap()).to_f32(),
        DType::F16 => f16::from_le_bytes(element.try_into().unwrap()).to_f32(),
        other => panic!("no cast from {other}"),
    };
    let numbers = bytes.chunks(size).map(number);
    match to {
        DType::F32 => numbers.flat_map(f32::to_le_bytes).collect(),
        DType::Bf16 => numbers.flat_map(|number| bf16::from_f32(number).to_le_bytes()).collect(),
        DType::F16 => numbers.flat_map(|number| f16::from_f32(number).to_le_bytes()).collect(),
        other => panic!("no cast to {other}"),
    }
}

/// Writes an output of which `value` gives the row-major bytes of each parameter, by what is kept and the target's
/// parameter.
pub(crate) fn write(
    output: &Output,
    folder: &Path,
    value: impl Fn(&reshard_formats::Kept, &Layout, ParameterId) -> Vec<u8>,
) {
    let mut files: Vec<Vec<u8>> =
        output.files.iter().map(|file| vec![0; usize::try_from(file.length).unwrap()]).collect();
    for (file, bytes) in output.files.iter().zip(&mut files) {
        for known in &file.known {
            let at = usize::try_from(known.offset).unwrap();
            bytes[at..at + known.bytes.len()].copy_from_slice(&known.bytes);
        }
    }
    for (kept, part) in &output.parts {
        fill_part(part, &mut files, |id| value(kept, &part.layout, id));
    }
    for (file, bytes) in output.files.iter().zip(&mut files) {
        for checksum in &file.checksums {
            let data =
                usize::try_from(checksum.data.start).unwrap()..usize::try_from(checksum.data.end).unwrap();
            let crc = crc32fast::hash(&bytes[data]).to_le_bytes();
            for at in &checksum.at {
                let at = usize::try_from(*at).unwrap();
                bytes[at..at + 4].copy_from_slice(&crc);
            }
        }
        let path = folder.join(&file.path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    for (from, to) in &output.copied {
        std::fs::create_dir_all(folder.join(to).parent().unwrap()).unwrap();
        std::fs::copy(from, folder.join(to)).unwrap();
    }
}

/// Writes an output from the checkpoint that it is an output of.
pub(crate) fn convert(source: &Checkpoint, output: &Output, folder: &Path) {
    write(output, folder, |kept, layout, id| {
        let target = layout.parameter(id);
        let part = &source.parts[kept];
        let from = part.layout.find(&target.name).unwrap_or_else(|| panic!("no {} in {kept}", target.name));
        assert_eq!(part.layout.parameter(from).shape, target.shape, "{}", target.name);
        cast(&tensor(source, part, from), part.layout.parameter(from).dtype, target.dtype)
    });
}

fn fill_part(part: &Part, files: &mut [Vec<u8>], value: impl Fn(ParameterId) -> Vec<u8>) {
    let places = part.layout.places();
    let usize = |number: u64| usize::try_from(number).unwrap();
    for span in &part.spans {
        files[span.file.index()][usize(span.offset.0)..][..usize(span.length.0)].fill(POISON);
    }
    let mut written: Vec<Vec<bool>> =
        part.spans.iter().map(|span| vec![false; usize(span.length.0)]).collect();
    let mut put = |buffer: reshard_layout::BufferId, element: u64, bytes: &[u8]| {
        let buffer = places.buffer(buffer);
        let at = usize(buffer.offset.0) + usize(element) * bytes.len();
        let span = part.spans[buffer.storage.index()];
        files[FileId::index(span.file)][usize(span.offset.0) + at..][..bytes.len()].copy_from_slice(bytes);
        written[buffer.storage.index()][at..at + bytes.len()].fill(true);
    };
    for (id, parameter) in part.layout.parameters() {
        let (bytes, size) = (value(id), usize(parameter.dtype.size()));
        for piece in part.layout.pieces_of(id) {
            for (index, element) in elements(&parameter.shape, &piece) {
                put(piece.buffer, element, &bytes[usize(index) * size..][..size]);
            }
        }
    }
    for fill in part.layout.fills() {
        for at in coordinates(&fill.shape) {
            put(fill.buffer, fill.offset.0 + address(&at, &fill.strides), &fill.value);
        }
    }
    assert!(written.iter().flatten().all(|written| *written), "a byte of a storage that nobody fills");
}

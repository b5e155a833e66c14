//! Conversions and comparisons of raw files: any layout, each element saying what it is of.

mod compare;
mod convert;
mod folder;
mod kill;
mod refusals;
mod replicas;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use reshard_formats::{
    Checkpoint, Checksum, Facts, FileId, Files, Format, Kept, Known, Output, Part, Span, TargetFile,
};
use reshard_layout::{
    Block, Bytes, DType, Elements, Geometry, Layout, LayoutBuilder, Rank, Region, address, coordinate,
    row_major,
};

/// What lies in source files outside of every storage, and in storages outside of every element.
const POISON: u8 = 0xaa;

/// The bytes of an element: pseudo-random, of the kept tensor, the parameter and the place in it.
fn element(kept: &Kept, parameter: &str, flat: u64, dtype: DType) -> Vec<u8> {
    let text = kept.name().bytes().chain(parameter.bytes());
    let name = text.fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let mut bits = (flat + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits ^ (bits >> 32)).to_le_bytes()[..dtype.size() as usize].to_vec()
}

/// Every element of a layout: storage, byte in it, name of the parameter, flat index in the parameter.
fn elements(layout: &Layout) -> impl Iterator<Item = (usize, usize, &str, u64)> {
    layout.pieces().flat_map(move |piece| {
        let parameter = layout.parameter(piece.parameter);
        let buffer = *layout.places().buffer(piece.buffer);
        let strides = row_major(&parameter.shape);
        (0..piece.region.volume()).map(move |local| {
            let at = coordinate(local, piece.region.extent());
            let byte = buffer.offset.0 + (piece.offset.0 + address(&at, piece.strides)) * buffer.dtype.size();
            let global: Vec<u64> = at.iter().zip(piece.region.origin()).map(|(at, from)| at + from).collect();
            (buffer.storage.index(), byte as usize, parameter.name.as_str(), address(&global, &strides))
        })
    })
}

/// The storages of a layout with all their elements.
fn storages(kept: &Kept, layout: &Layout, between: u8) -> Vec<Vec<u8>> {
    let all = &layout.places().storages;
    let mut memory: Vec<Vec<u8>> =
        all.iter().map(|storage| vec![between; storage.length.0 as usize]).collect();
    for (storage, byte, parameter, flat) in elements(layout) {
        let dtype = layout.parameter(layout.find(parameter).unwrap()).dtype;
        let bytes = element(kept, parameter, flat, dtype);
        memory[storage][byte..byte + bytes.len()].copy_from_slice(&bytes);
    }
    memory
}

/// The same layout with elements of another type.
fn retyped(layout: &Layout, dtype: DType) -> Layout {
    let mut builder = LayoutBuilder::new();
    for storage in &layout.places().storages {
        builder.storage(storage.rank, &storage.name, Elements(storage.length.0 / 4).bytes(dtype));
    }
    let places = &layout.places().buffers;
    let buffers: Vec<_> =
        places.iter().map(|buffer| builder.buffer(buffer.storage, Bytes(0), dtype, buffer.length)).collect();
    for (id, parameter) in layout.parameters() {
        let new = builder.parameter(&parameter.name, parameter.shape.iter().copied(), dtype);
        for instance in layout.instances(id) {
            let geometry = builder.geometry(layout.geometry(instance.geometry).clone());
            builder.place(new, buffers[instance.buffer.index()], instance.base, geometry);
        }
    }
    builder.build().unwrap()
}

/// A matrix, cut along an axis over `parts` ranks, each of which is there `copies` times.
fn matrix(name: &str, shape: [u64; 2], dtype: DType, axis: usize, parts: u64, copies: u32) -> Layout {
    let mut builder = LayoutBuilder::new();
    let w = builder.parameter(name, shape, dtype);
    for part in 0..parts {
        let (mut origin, mut extent) = ([0, 0], shape);
        extent[axis] = shape[axis] / parts;
        origin[axis] = part * extent[axis];
        let region = Region::new(origin, extent);
        let elements = Elements(region.volume());
        let geometry = builder.geometry(Geometry::new(shape, [Block::dense(region, Elements(0))]));
        for copy in 0..copies {
            let rank = Rank(part as u32 * copies + copy);
            let storage = builder.storage(rank, name, elements.bytes(dtype));
            let buffer = builder.buffer(storage, Bytes(0), dtype, elements);
            builder.place(w, buffer, Elements(0), geometry);
        }
    }
    builder.build().unwrap()
}

type Parts = [(Kept, Layout)];

/// Where each storage of a layout lies in the file of its rank.
fn places(layout: &Layout) -> Vec<(Rank, usize)> {
    let mut ends: BTreeMap<Rank, usize> = BTreeMap::new();
    let place = |storage: &reshard_layout::Storage| {
        let end = ends.entry(storage.rank).or_insert(5);
        let at = *end;
        *end += storage.length.0 as usize + 3;
        (storage.rank, at)
    };
    layout.places().storages.iter().map(place).collect()
}

fn source_path(folder: &Path, kept: &Kept, rank: Rank) -> PathBuf {
    folder.join(format!("{kept}-{rank}.bin"))
}

/// Writes a file a rank and kept tensor: its storages, with poison around each.
fn write_sources(folder: &Path, parts: &Parts) {
    std::fs::create_dir_all(folder).unwrap();
    for (kept, layout) in parts {
        let mut ranks: BTreeMap<Rank, Vec<u8>> = BTreeMap::new();
        for ((rank, at), bytes) in places(layout).into_iter().zip(storages(kept, layout, POISON)) {
            let file = ranks.entry(rank).or_default();
            file.resize(at, POISON);
            file.extend(bytes);
            file.extend([POISON; 3]);
        }
        for (rank, bytes) in ranks {
            std::fs::write(source_path(folder, kept, rank), bytes).unwrap();
        }
    }
}

/// Opens what [`write_sources`] has written as a checkpoint.
fn opened(folder: &Path, parts: &Parts) -> Checkpoint {
    let mut files = Files::default();
    let mut all = indexmap::IndexMap::new();
    for (kept, layout) in parts {
        let mut ids = BTreeMap::new();
        let mut spans = Vec::new();
        for ((rank, at), storage) in places(layout).into_iter().zip(&layout.places().storages) {
            let add = || files.add(&source_path(folder, kept, rank)).unwrap();
            let file = *ids.entry(rank).or_insert_with(add);
            spans.push(Span { file, offset: Bytes(at as u64), length: storage.length });
        }
        all.insert(kept.clone(), Part { layout: layout.clone(), spans });
    }
    let (format, root) = (Format::HuggingFace, folder.to_owned());
    Checkpoint { format, root, files, parts: all, facts: Facts::default() }
}

/// Both.
fn checkpoint(folder: &Path, parts: &Parts) -> Checkpoint {
    write_sources(folder, parts);
    opened(folder, parts)
}

/// A file a rank and kept tensor, in folders: known bytes, storages with gaps, known bytes, a checksum of what lies
/// before them.
fn output(parts: &Parts) -> Output {
    let mut output = Output::default();
    for (kept, layout) in parts {
        let mut ids: BTreeMap<Rank, usize> = BTreeMap::new();
        let mut spans = Vec::new();
        for storage in &layout.places().storages {
            let file = *ids.entry(storage.rank).or_insert_with(|| {
                let path = PathBuf::from(format!("{kept}/rank {}/data.bin", storage.rank));
                let known = vec![Known { offset: 0, bytes: b"begin".to_vec() }];
                output.files.push(TargetFile { path, length: 11, known, checksums: Vec::new() });
                output.files.len() - 1
            });
            let length = &mut output.files[file].length;
            spans.push(Span { file: FileId(file as u32), offset: Bytes(*length), length: storage.length });
            *length += storage.length.0 + 5;
        }
        for file in ids.into_values() {
            let file = &mut output.files[file];
            file.checksums.push(Checksum { data: 0..file.length, at: vec![file.length + 3] });
            file.known.push(Known { offset: file.length, bytes: b"endCRC32.".to_vec() });
            file.length += 9;
        }
        output.parts.insert(kept.clone(), Part { layout: layout.clone(), spans });
    }
    output
}

/// What the files of an output must be, put together in memory, given the storages of each part.
fn expected(output: &Output, memory: &[Vec<Vec<u8>>]) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files: Vec<Vec<u8>> = output.files.iter().map(|file| vec![0; file.length as usize]).collect();
    let put = |file: &mut Vec<u8>, at: u64, bytes: &[u8]| {
        file[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    };
    for (part, storages) in output.parts.values().zip(memory) {
        for (span, bytes) in part.spans.iter().zip(storages) {
            put(&mut files[span.file.index()], span.offset.0, bytes);
        }
    }
    for (target, file) in output.files.iter().zip(&mut files) {
        target.known.iter().for_each(|known| put(file, known.offset, &known.bytes));
        for checksum in &target.checksums {
            let Range { start, end } = checksum.data.clone();
            let crc = slow_crc32(&file[start as usize..end as usize]).to_le_bytes();
            checksum.at.iter().for_each(|at| put(file, *at, &crc));
        }
    }
    output.files.iter().map(|file| file.path.clone()).zip(files).collect()
}

/// CRC-32 bit by bit, from its polynomial.
fn slow_crc32(data: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    };
    !data.iter().fold(u32::MAX, step)
}

/// Every file below a folder, by its path in it.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// The names in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Compares trees without printing megabytes.
fn assert_same(found: &BTreeMap<PathBuf, Vec<u8>>, expected: &BTreeMap<PathBuf, Vec<u8>>) {
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (path, bytes) in expected {
        let other = &found[path];
        assert_eq!(other.len(), bytes.len(), "{}", path.display());
        let differs = bytes.iter().zip(other).position(|(one, other)| one != other);
        assert_eq!(differs, None, "{}", path.display());
    }
}

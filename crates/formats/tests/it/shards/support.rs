//! Shards whose elements are the flat indices of the parameter, by enumeration.

use reshard_formats::shards::{ShardSpec, ShardsFault, folder, open};
use reshard_formats::{Checkpoint, FormatError};
use reshard_layout::{Block, DType, Elements, Geometry, Region, Shard, coordinate, row_major};
use tempfile::TempDir;

use crate::safetensors::support::{folder_with, poisoned, weights};

pub(crate) const TOPOLOGY: &str = "autotp:tp=2";

/// A rank's part of a matrix of `columns` columns: `rows`, each a stretch of the parameter's rows, one after another.
pub(crate) fn rows_of(name: &str, shape: [u64; 2], rows: &[(u64, u64)], transposed: bool) -> ShardSpec {
    let height = rows.iter().map(|(first, end)| end - first).sum();
    let (tensor, strides) =
        if transposed { ([shape[1], height], [1, height]) } else { ([height, shape[1]], [shape[1], 1]) };
    let mut at = 0;
    let blocks = rows.iter().map(|(first, end)| {
        let region = Region::new([*first, 0], [end - first, shape[1]]);
        let block = Block::new(region, Elements(at * strides[0]), strides);
        at += end - first;
        block
    });
    let shard = Shard::new(tensor, Geometry::new(shape, blocks));
    ShardSpec { parameter: name.to_owned(), shape: shape.to_vec(), dtype: DType::U32, shard, packed: None }
}

/// The whole of a parameter.
pub(crate) fn whole(name: &str, shape: &[u64]) -> ShardSpec {
    let shard = Shard::of_box(shape, Region::whole(shape));
    ShardSpec { parameter: name.to_owned(), shape: shape.to_vec(), dtype: DType::U32, shard, packed: None }
}

/// The elements of a rank's tensor in its own order, listed from the rows and not from the geometry.
pub(crate) fn listed(columns: u64, rows: &[(u64, u64)], transposed: bool) -> Vec<u32> {
    let rows: Vec<u64> = rows.iter().flat_map(|(first, end)| *first..*end).collect();
    let element = |row: &u64, column: u64| (row * columns + column) as u32;
    match transposed {
        false => rows.iter().flat_map(|row| (0..columns).map(move |column| element(row, column))).collect(),
        true => (0..columns).flat_map(|column| rows.iter().map(move |row| element(row, column))).collect(),
    }
}

pub(crate) fn bytes(elements: &[u32]) -> Vec<u8> {
    elements.iter().flat_map(|element| element.to_le_bytes()).collect()
}

/// Every element that any rank holds of a parameter, with where the layout says it lies: (rank, flat index, value).
pub(crate) fn gathered(checkpoint: &Checkpoint, name: &str) -> Vec<(u32, u64, u32)> {
    let part = weights(checkpoint);
    let id = part.layout.find(name).unwrap();
    let shape = &part.layout.parameter(id).shape;
    let mut elements = Vec::new();
    for piece in part.layout.pieces_of(id) {
        let span = part.spans[part.layout.places().buffer(piece.buffer).storage.index()];
        for local in 0..piece.region.volume() {
            let at = coordinate(local, piece.region.extent());
            let axes = at.iter().zip(piece.region.origin()).zip(row_major(shape));
            let flat = axes.map(|((at, origin), stride)| (at + origin) * stride).sum();
            let stored: u64 = at.iter().zip(piece.strides).map(|(at, stride)| at * stride).sum();
            let mut value = [0; 4];
            let offset = span.offset.0 + 4 * (piece.offset.0 + stored);
            checkpoint.files.read_at(span.file, reshard_layout::Bytes(offset), &mut value).unwrap();
            elements.push((piece.rank.0, flat, u32::from_le_bytes(value)));
        }
    }
    elements.sort_unstable();
    elements
}

/// Files of two ranks: `up` (6, 4) by rows, `norm` (3) on both.
pub(crate) fn two_ranks() -> Vec<Vec<ShardSpec>> {
    let of_rank =
        |rank: u64| vec![rows_of("up", [6, 4], &[(3 * rank, 3 * rank + 3)], false), whole("norm", &[3])];
    vec![of_rank(0), of_rank(1)]
}

/// The files of `two_ranks`, every element its flat index.
pub(crate) fn two_files() -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let (files, part) = folder(&two_ranks(), TOPOLOGY, &indexmap::IndexMap::new()).unwrap();
    let mut written = poisoned(&files);
    for (storage, span) in part.layout.places().storages.iter().zip(&part.spans) {
        let first = 3 * u64::from(storage.rank.0);
        let elements =
            if storage.name == "up" { listed(4, &[(first, first + 3)], false) } else { vec![0, 1, 2] };
        let at = span.offset.0 as usize;
        written[span.file.index()].1[at..at + span.length.0 as usize].copy_from_slice(&bytes(&elements));
    }
    written
}

/// A folder of files of these layouts, one a rank, each with tensor `w` of this shape.
pub(crate) fn folder_of_layouts(ranks: &[(&str, &[u64])]) -> TempDir {
    let file = |(at, (layout, shape)): (usize, &(&str, &[u64]))| {
        let length = 4 * shape.iter().product::<u64>();
        let header = serde_json::json!({
            "__metadata__": {"reshard": layout},
            "w": {"dtype": "U32", "shape": shape, "data_offsets": [0, length]},
        });
        let name = std::path::PathBuf::from(format!("{at}.safetensors"));
        (name, crate::safetensors::support::file_of(&header.to_string(), length as usize))
    };
    folder_with(&ranks.iter().enumerate().map(file).collect::<Vec<_>>())
}

pub(crate) fn fault_of(opened: Result<Checkpoint, FormatError>) -> ShardsFault {
    match opened {
        Err(FormatError::Shards { fault, .. }) => fault,
        other => panic!("a fault of the shards was expected: {other:?}"),
    }
}

/// What is said of files of these layouts.
pub(crate) fn refusal(ranks: &[(&str, &[u64])]) -> String {
    let folder = folder_of_layouts(ranks);
    open(folder.path()).unwrap_err().to_string().replace(&format!("{}/", folder.path().display()), "")
}

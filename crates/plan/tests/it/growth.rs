//! The planner's growth: one piece per stored row, as layouts were before runs became boxes.

use reshard_layout::{Block, Bytes, DType, Elements, Geometry, Layout, LayoutBuilder, Rank, Region};
use reshard_plan::{Policy, plan, verify};

/// Qwen3-8B's cuts: (name, rows, columns, axis; 2 is whole on every tensor-parallel rank).
fn parameters() -> Vec<(String, u64, u64, usize)> {
    let mut all = vec![("embed".to_owned(), 151_936, 4096, 2)];
    for layer in 0..36 {
        let of_layer = [
            ("q", 4096, 4096, 0),
            ("k", 1024, 4096, 0),
            ("v", 1024, 4096, 0),
            ("o", 4096, 4096, 1),
            ("q_norm", 128, 1, 2),
            ("k_norm", 128, 1, 2),
            ("gate", 12_288, 4096, 0),
            ("up", 12_288, 4096, 0),
            ("down", 4096, 12_288, 1),
            ("norm1", 4096, 1, 2),
            ("norm2", 4096, 1, 2),
        ];
        all.extend(
            of_layer.map(|(name, rows, columns, axis)| (format!("{layer}.{name}"), rows, columns, axis)),
        );
    }
    all.extend([("norm".to_owned(), 4096, 1, 2), ("head".to_owned(), 151_936, 4096, 0)]);
    all
}

/// Row-cut shards are one piece; column-cut ones, and their quarters, are one piece a stored row.
fn rows(tp: u64, parts: u64) -> Layout {
    let mut builder = LayoutBuilder::new();
    let all = parameters();
    for (name, row_count, columns, _) in &all {
        builder.parameter(name, [*row_count, *columns], DType::Bf16);
    }
    for rank in 0..8u64 {
        let (t, part) = (rank % tp, rank / tp % parts);
        let owner = Rank(u32::try_from(rank).unwrap());
        let mut at = 0;
        let mut placed = Vec::new();
        for (index, &(_, row_count, columns, axis)) in all.iter().enumerate() {
            let height = if axis == 0 { row_count / tp } else { row_count };
            let width = if axis == 1 { columns / tp } else { columns };
            let first = height / parts * part;
            let count = height / parts;
            let corner =
                [if axis == 0 { t * height + first } else { first }, if axis == 1 { t * width } else { 0 }];
            let block = |row: u64, rows: u64| {
                let region = Region::new([corner[0] + row, corner[1]], [rows, width]);
                Block::dense(region, Elements(row * width))
            };
            let blocks: Vec<Block> =
                if axis == 1 { (0..count).map(|row| block(row, 1)).collect() } else { vec![block(0, count)] };
            placed.push((index, at, builder.geometry(Geometry::new([row_count, columns], blocks))));
            at += count * width;
        }
        let storage = builder.storage(owner, "flat", Bytes(2 * at));
        let buffer = builder.buffer(storage, Bytes(0), DType::Bf16, Elements(at));
        for (index, at, geometry) in placed {
            let id = reshard_layout::ParameterId(u32::try_from(index).unwrap());
            builder.place(id, buffer, Elements(at), geometry);
        }
    }
    builder.build().unwrap()
}

#[test]
fn a_piece_per_stored_row_is_planned_and_folded() {
    let (source, target) = (rows(2, 4), rows(4, 1));
    assert_eq!((source.piece_count(), target.piece_count()), (592_440, 2_361_912));
    let made = plan(&source, &target, Policy::Balanced).unwrap();
    assert_eq!(verify(&made, &source, &target).unwrap().elements.0, 20_117_299_200);
    // As from boxes: no copy is left that continues another.
    assert!(made.copies.len() < 20_000, "{} copies", made.copies.len());
    assert_eq!(made.statistics.bytes_sent, Bytes(33_959_997_440));
    assert_eq!(made.statistics.bytes_local, Bytes(6_274_600_960));
}

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

/// How a column-cut shard is described: as one box, or as one piece a stored row.
#[derive(Clone, Copy, PartialEq)]
enum Pieces {
    Boxes,
    Rows,
}

/// Eight ranks that each keep one part of the rows of their tensor-parallel shards.
fn cut(tp: u64, parts: u64, pieces: Pieces) -> Layout {
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
            let blocks: Vec<Block> = if axis == 1 && pieces == Pieces::Rows {
                (0..count).map(|row| block(row, 1)).collect()
            } else {
                vec![block(0, count)]
            };
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
    let (source, target) = (cut(2, 4, Pieces::Rows), cut(4, 1, Pieces::Rows));
    assert_eq!((source.piece_count(), target.piece_count()), (592_440, 2_361_912));
    let made = plan(&source, &target, Policy::Balanced).unwrap();
    assert_eq!(verify(&made, &source, &target).unwrap().elements.0, 20_117_299_200);
    // Rows fold to the very copies that boxes give.
    let boxes = plan(&cut(2, 4, Pieces::Boxes), &cut(4, 1, Pieces::Boxes), Policy::Balanced).unwrap();
    assert_eq!((boxes.statistics.source_pieces, boxes.statistics.target_pieces), (3_192, 3_192));
    assert_eq!(made.copies, boxes.copies);
    assert_eq!(made.statistics.bytes_sent, Bytes(33_959_997_440));
    assert_eq!(made.statistics.bytes_local, Bytes(6_274_600_960));
}

/// `ranks` ranks hold one row each of a matrix; all of them want one of its `parts` column blocks.
fn rows_to_columns(ranks: u32, parts: u32) -> (Layout, Layout) {
    let (height, width) = (u64::from(ranks), 64);
    let side = |holders: u32, block: &dyn Fn(u64) -> Block| {
        let mut builder = LayoutBuilder::new();
        let w = builder.parameter("w", [height, width], DType::Bf16);
        for rank in 0..holders {
            let block = block(u64::from(rank));
            let length = Elements(block.region.volume());
            let storage = builder.storage(Rank(rank), "w", length.bytes(DType::Bf16));
            let buffer = builder.buffer(storage, Bytes(0), DType::Bf16, length);
            let geometry = builder.geometry(Geometry::new([height, width], [block]));
            builder.place(w, buffer, Elements(0), geometry);
        }
        builder.build().unwrap()
    };
    let share = width / u64::from(parts);
    let source = side(ranks, &|rank| Block::dense(Region::new([rank, 0], [1, width]), Elements(0)));
    let target = side(ranks, &|rank| {
        Block::dense(Region::new([0, rank % u64::from(parts) * share], [height, share]), Elements(0))
    });
    (source, target)
}

#[test]
fn four_thousand_ranks_are_planned_and_proved() {
    let (source, target) = rows_to_columns(4_096, 4);
    // Every target rank takes one row of 16 columns from every source rank: 16.8 M boxes would be too many to
    // ask for here, so a part of the targets is asked for: those below 64.
    let mut builder = LayoutBuilder::new();
    let w = builder.parameter("w", [4_096, 64], DType::Bf16);
    for piece in target.pieces().filter(|piece| piece.rank.0 < 64) {
        let length = Elements(piece.region.volume());
        let storage = builder.storage(piece.rank, "w", length.bytes(DType::Bf16));
        let buffer = builder.buffer(storage, Bytes(0), DType::Bf16, length);
        let block = Block::dense(piece.region.clone(), Elements(0));
        let geometry = builder.geometry(Geometry::new([4_096, 64], [block]));
        builder.place(w, buffer, Elements(0), geometry);
    }
    let target = builder.build().unwrap();
    let made = plan(&source, &target, Policy::Balanced).unwrap();
    assert_eq!(made.copies.len(), 64 * 4_096);
    assert_eq!(verify(&made, &source, &target).unwrap().elements, Elements(64 * 4_096 * 16));
    assert_eq!(made.statistics.bytes_local, Bytes(64 * 16 * 2));
}

/// 4,096 replicas of 512 holders a shard: every rank keeps what it has, and none is asked to look at all.
#[test]
fn thousands_of_replicas_stay_where_they_are() {
    let mut builder = LayoutBuilder::new();
    for layer in 0..8 {
        builder.parameter(&format!("w{layer}"), [64, 64], DType::Bf16);
    }
    for rank in 0..4_096u32 {
        let storage = builder.storage(Rank(rank), "flat", Bytes(8 * 8 * 64 * 2));
        let buffer = builder.buffer(storage, Bytes(0), DType::Bf16, Elements(8 * 8 * 64));
        let region = Region::new([u64::from(rank % 8) * 8, 0], [8, 64]);
        let geometry = builder.geometry(Geometry::new([64, 64], [Block::dense(region, Elements(0))]));
        for layer in 0..8 {
            builder.place(
                reshard_layout::ParameterId(layer),
                buffer,
                Elements(u64::from(layer) * 512),
                geometry,
            );
        }
    }
    let layout = builder.build().unwrap();
    let made = plan(&layout, &layout, Policy::Balanced).unwrap();
    assert_eq!(made.statistics.bytes_sent, Bytes(0));
    assert_eq!(verify(&made, &layout, &layout).unwrap().elements, Elements(4_096 * 8 * 512));
}

/// A parameter on rank 0 as the given boxes, packed one after another, onto rank 1 as one box.
fn gathered(shape: [u64; 2], boxes: &[Region]) -> (Layout, Layout) {
    let side = |rank: u32, boxes: &[Region]| {
        let mut builder = LayoutBuilder::new();
        let w = builder.parameter("w", shape, DType::Bf16);
        let length = Elements(boxes.iter().map(Region::volume).sum());
        let storage = builder.storage(Rank(rank), "w", length.bytes(DType::Bf16));
        let buffer = builder.buffer(storage, Bytes(0), DType::Bf16, length);
        let mut at = 0;
        let blocks = boxes.iter().map(|region| {
            let block = Block::dense(region.clone(), Elements(at));
            at += region.volume();
            block
        });
        let geometry = builder.geometry(Geometry::new(shape, blocks.collect::<Vec<_>>()));
        builder.place(w, buffer, Elements(0), geometry);
        builder.build().unwrap()
    };
    (side(0, boxes), side(1, &[Region::whole(&shape)]))
}

/// Forms on which a planner or its proof that looks at all pairs would not end in time.
#[test]
fn long_and_short_boxes_side_by_side_are_planned_and_proved() {
    let rows = 40_000u64;
    let mut boxes = vec![Region::new([0, 0], [rows, 1])];
    boxes.extend((0..rows).map(|row| Region::new([row, 1], [1, 3])));
    let mut peeled = Vec::new();
    for at in 0..2_000u64 {
        let left = 4_000 - 2 * at;
        peeled.push(Region::new([2 * at, 2 * at], [2, left]));
        peeled.push(Region::new([2 * at + 2, 2 * at], [left - 2, 2]));
    }
    for (shape, boxes) in [([rows, 4], boxes), ([4_000, 4_000], peeled)] {
        let (source, target) = gathered(shape, &boxes);
        let made = plan(&source, &target, Policy::Balanced).unwrap();
        assert_eq!(verify(&made, &source, &target).unwrap().elements, Elements(shape[0] * shape[1]));
    }
}

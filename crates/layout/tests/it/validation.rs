//! Every broken invariant is found and named; what is sound is not refused.

use proptest::collection::vec;
use proptest::prelude::*;
use reshard_layout::{
    Block, Bytes, DType, Elements, Fill, Finding, Geometry, Kind, LayoutBuilder, LayoutError, Rank, Region,
};

fn region(origin: [u64; 2], extent: [u64; 2]) -> Region {
    Region::new(origin, extent)
}

/// One parameter "w" of shape (4, 6), f32, held by rank 0 as the given blocks in a buffer of 48 elements.
fn build(blocks: Vec<Block>) -> Result<(), Vec<Finding>> {
    let mut builder = LayoutBuilder::new();
    let w = builder.parameter("w", [4, 6], DType::F32);
    let storage = builder.storage(Rank(0), "flat", Bytes(192));
    let buffer = builder.buffer(storage, Bytes(0), DType::F32, Elements(48));
    let geometry = builder.geometry(Geometry::new([4, 6], blocks));
    builder.place(w, buffer, Elements(0), geometry);
    findings(builder)
}

fn findings(builder: LayoutBuilder) -> Result<(), Vec<Finding>> {
    match builder.build() {
        Ok(_) => Ok(()),
        Err(LayoutError::Findings { findings }) => Err(findings),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn names_what_is_wrong() {
    let whole = Block::dense(region([0, 0], [4, 6]), Elements(0));
    assert_eq!(build(vec![whole.clone()]), Ok(()));
    let text =
        |blocks| build(blocks).unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    assert_eq!(
        text(vec![Block::dense(region([0, 0], [4, 6]), Elements(25))]),
        "w: rank 0 holds box [0, 0]+[4, 6] up to element 49 of buffer 0, which has 48"
    );
    assert_eq!(
        text(vec![Block::dense(region([2, 0], [3, 6]), Elements(0))]),
        "w: rank 0 holds box [2, 0]+[3, 6], which leaves the parameter's shape [4, 6]"
    );
    assert_eq!(
        text(vec![Block::dense(region([0, 0], [3, 6]), Elements(0))]),
        "w: no rank holds box [3, 0]+[1, 6], 6 of 24 elements are missing"
    );
    let halves = |second: Region, at: u64| {
        vec![Block::dense(region([0, 0], [2, 6]), Elements(0)), Block::dense(second, Elements(at))]
    };
    assert_eq!(
        text(halves(region([1, 0], [3, 6]), 20)),
        "w: rank 0 holds both box [0, 0]+[2, 6] and box [1, 0]+[3, 6]"
    );
    assert_eq!(text(halves(region([2, 0], [2, 6]), 11)), "storage 0 (flat, rank 0): w and w share a byte");
    assert_eq!(
        text(vec![Block::new(region([0, 0], [4, 6]), Elements(0), [6, 0])]),
        "w: rank 0 holds box [0, 0]+[4, 6] with strides [6, 0], which address an element twice"
    );
    let zero = Block { scale: 0.0, ..whole };
    assert_eq!(text(vec![zero]), "w: rank 0 stores box [0, 0]+[4, 6] with scale 0, which cannot be undone");
}

#[test]
fn finds_faults_of_places_names_and_fills() {
    let mut builder = LayoutBuilder::new();
    let w = builder.parameter("w", [2], DType::F32);
    builder.alias("w", w);
    let storage = builder.storage(Rank(3), "flat", Bytes(8));
    builder.storage(Rank(3), "flat", Bytes(8));
    let buffer = builder.buffer(storage, Bytes(2), DType::Bf16, Elements(4));
    let geometry = builder.geometry(Geometry::whole(&[2, 1]));
    builder.place(w, buffer, Elements(0), geometry);
    builder.fill(Fill {
        buffer,
        offset: Elements(0),
        shape: [1].into_iter().collect(),
        strides: [1].into_iter().collect(),
        value: vec![0],
    });
    let found = findings(builder).unwrap_err();
    let text: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "the name w is given twice",
            "rank 3 has two storages named flat",
            "buffer 0 ends at byte 10 of storage 0 (flat, rank 3), which has 8",
            "a fill of buffer 0 has a value of 1 bytes, an element has 2",
            "w: rank 3 holds boxes of shape [2, 1], the parameter has shape [2]",
            "w: rank 3 holds bf16 in buffer 0, the parameter is f32",
        ]
    );
    assert!(found.iter().all(|finding| finding.kind() == Kind::Invalid));
}

#[test]
fn a_fill_lies_in_its_buffer_and_on_no_piece() {
    // On the piece, behind it, past the buffer, past 2^64.
    for (offset, sound) in [(23, false), (24, true), (41, false), (u64::MAX, false)] {
        let mut builder = LayoutBuilder::new();
        let w = builder.parameter("w", [4, 6], DType::F32);
        let storage = builder.storage(Rank(0), "flat", Bytes(200));
        let buffer = builder.buffer(storage, Bytes(0), DType::F32, Elements(48));
        let geometry = builder.geometry(Geometry::whole(&[4, 6]));
        builder.place(w, buffer, Elements(0), geometry);
        let dims = |value| [value].into_iter().collect();
        builder.fill(Fill {
            buffer,
            offset: Elements(offset),
            shape: dims(8),
            strides: dims(1),
            value: vec![0; 4],
        });
        assert_eq!(findings(builder).is_ok(), sound);
    }
}

#[test]
fn interleaved_columns_of_two_parameters_share_no_byte() {
    let mut builder = LayoutBuilder::new();
    let storage = builder.storage(Rank(0), "fused", Bytes(4 * 6 * 4));
    let buffer = builder.buffer(storage, Bytes(0), DType::F32, Elements(24));
    for (name, base, width) in [("gate", 0, 4), ("up", 4, 2)] {
        let parameter = builder.parameter(name, [4, width], DType::F32);
        let block = Block::new(region([0, 0], [4, width]), Elements(0), [6, 1]);
        let geometry = builder.geometry(Geometry::new([4, width], [block]));
        builder.place(parameter, buffer, Elements(base), geometry);
    }
    assert_eq!(findings(builder), Ok(()));
}

/// A square parameter on one rank as the given boxes, each where it lies in the row-major whole.
fn in_place(side: u64, boxes: &[Region]) -> Result<(), Vec<Finding>> {
    let mut builder = LayoutBuilder::new();
    let w = builder.parameter("w", [side, side], DType::Bf16);
    let storage = builder.storage(Rank(0), "flat", Bytes(side * side * 2));
    let buffer = builder.buffer(storage, Bytes(0), DType::Bf16, Elements(side * side));
    let blocks = boxes.iter().map(|region| {
        let offset = Elements(region.origin()[0] * side + region.origin()[1]);
        Block::new(region.clone(), offset, [side, 1])
    });
    let geometry = builder.geometry(Geometry::new([side, side], blocks));
    builder.place(w, buffer, Elements(0), geometry);
    findings(builder)
}

/// Alternately the top row and the left column of what is left.
fn peeled(side: u64) -> Vec<Region> {
    let strips = |at: u64| {
        let left = side - at;
        [region([at, at], [1, left]), region([at + 1, at], [left - 1, 1])]
    };
    (0..side).flat_map(strips).collect()
}

/// Halves of halves, cut where a fixed sequence of numbers says.
fn halves(whole: Region, pieces: usize) -> Vec<Region> {
    let mut seed = 7u64;
    let mut boxes = vec![whole];
    while boxes.len() < pieces {
        let largest = (0..boxes.len()).max_by_key(|&at| boxes[at].volume()).unwrap();
        let cut = boxes.swap_remove(largest);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let axis = usize::from(cut.extent()[1] > cut.extent()[0]);
        let (low, high) = cut.split(axis, cut.origin()[axis] + 1 + (seed >> 33) % (cut.extent()[axis] - 1));
        boxes.extend([low, high]);
    }
    boxes
}

#[test]
fn irregular_boxes_in_their_place_are_no_contradiction() {
    assert_eq!(in_place(3_000, &peeled(3_000)), Ok(()));
    let mut boxes = halves(Region::whole(&[512, 512]), 3_000);
    assert_eq!(in_place(512, &boxes), Ok(()));
    boxes.pop();
    assert!(in_place(512, &boxes).is_err());
}

/// Thousands of interleaved columns, and one column that lies apart.
#[test]
fn one_odd_piece_among_many_is_compared_with_each_once() {
    let (rows, columns) = (8u64, 20_000);
    for (apart, sound) in [(rows * columns, true), (rows * columns - 1, false)] {
        let mut builder = LayoutBuilder::new();
        let w = builder.parameter("w", [rows, columns + 1], DType::U8);
        let length = apart + rows;
        let storage = builder.storage(Rank(0), "flat", Bytes(length));
        let buffer = builder.buffer(storage, Bytes(0), DType::U8, Elements(length));
        let mut blocks: Vec<Block> = (0..columns)
            .map(|at| Block::new(region([0, at], [rows, 1]), Elements(at), [columns, 1]))
            .collect();
        blocks.push(Block::new(region([0, columns], [rows, 1]), Elements(apart), [1, 1]));
        let geometry = builder.geometry(Geometry::new([rows, columns + 1], blocks));
        builder.place(w, buffer, Elements(0), geometry);
        assert_eq!(findings(builder).is_ok(), sound);
    }
}

#[test]
fn ranks_above_the_limit_are_refused() {
    let mut builder = LayoutBuilder::new();
    builder.storage(Rank(u32::MAX), "flat", Bytes(0));
    let text: Vec<String> = findings(builder).unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(text, ["rank 4294967295 is above the largest number 1048575"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// Two parameters with random strides in one storage: refused exactly if an enumeration of all
    /// addresses finds one twice.
    #[test]
    fn overlap_in_storage_is_found_exactly(
        pieces in vec((vec((1u64..4, 0u64..9), 1..4), 0u64..40), 1..4)
    ) {
        let mut builder = LayoutBuilder::new();
        let storage = builder.storage(Rank(0), "flat", Bytes(1 << 12));
        let buffer = builder.buffer(storage, Bytes(0), DType::F32, Elements(1 << 10));
        let mut addresses = Vec::new();
        for (index, (axes, base)) in pieces.iter().enumerate() {
            let shape: Vec<u64> = axes.iter().map(|axis| axis.0).collect();
            let strides = axes.iter().map(|axis| axis.1);
            let parameter = builder.parameter(&format!("p{index}"), shape.iter().copied(), DType::F32);
            let block = Block::new(Region::whole(&shape), Elements(0), strides);
            let geometry = builder.geometry(Geometry::new(shape.iter().copied(), [block]));
            builder.place(parameter, buffer, Elements(*base), geometry);
            let mut own = vec![*base];
            for (extent, stride) in axes {
                own = own.iter().flat_map(|at| (0..*extent).map(move |i| at + i * stride)).collect();
            }
            addresses.extend(own);
        }
        let total = addresses.len();
        addresses.sort_unstable();
        addresses.dedup();
        prop_assert_eq!(findings(builder).is_ok(), addresses.len() == total);
    }
}

//! Runs of shards, maps in a view of a parameter, and layouts written and read, against every element.

use std::collections::BTreeMap;

use proptest::prelude::*;
use reshard_layout::affine::{AffineMap, AffinePiece, AffineShard};
use reshard_layout::strategies::layout_pairs;
use reshard_layout::{
    Bytes, DType, Elements, Finding, Geometry, Layout, LayoutBuilder, LayoutError, Rank, Region, Shard,
};

/// Flat logical index -> address, of all that one rank holds.
fn held(layout: &Layout, rank: Rank) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    for piece in layout.pieces().filter(|piece| piece.rank == rank) {
        let shape = &layout.parameter(piece.parameter).shape;
        for flat in 0..piece.region.volume() {
            let mut rest = flat;
            let (mut logical, mut address, mut stride) = (0, piece.offset.0, 1);
            for axis in (0..shape.len()).rev() {
                let index = rest % piece.region.extent()[axis];
                rest /= piece.region.extent()[axis];
                logical += (piece.region.origin()[axis] + index) * stride;
                stride *= shape[axis];
                address += index * piece.strides[axis];
            }
            assert!(found.insert(logical, address).is_none(), "held twice");
        }
    }
    found
}

/// A map over two ranks that cuts axis 1 of a view (a, b, c) after `first` coordinates.
fn cut_view([a, b, c]: [u64; 3], first: u64) -> AffineMap {
    let strides = |b: u64| vec![(b * c) as i64, c as i64, 1];
    let shard = |rank: u32, origin: u64, width: u64| {
        let piece = AffinePiece {
            shape: vec![a as i64, width as i64, c as i64],
            source: ((origin * c) as i64, strides(b)),
            dest: (0, strides(width)),
            locations: vec![rank],
            scale: None,
        };
        (rank.to_string(), AffineShard { shard_shape: vec![a, width, c], pieces: vec![piece] })
    };
    let ranks = [shard(0, 0, first), shard(1, first, b - first)].into_iter().collect();
    AffineMap { logical_shape: vec![a, b, c], ranks }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// A fused parameter that its layer cuts in a view: each shard's elements lie in the order of the view.
    #[test]
    fn maps_in_a_view_cut_the_parameter(
        view in prop::array::uniform3(1u64..5), cut in 0u64..5, joins_last in any::<bool>(),
        run in (0u64..60, 0u64..60),
    ) {
        let [a, b, c] = view;
        let first = cut.min(b);
        let shape = if joins_last { vec![a, b * c] } else { vec![a * b, c] };
        let mut builder = LayoutBuilder::new();
        let w = builder.parameter("w", shape.iter().copied(), DType::F32);
        let mut stored = Vec::new();
        for (rank, shard) in cut_view(view, first).shards("w", &shape).unwrap() {
            let elements: u64 = shard.shape().iter().product();
            // A run and what is left of it, each in a place of its own.
            let (low, high) = (run.0.min(run.1).min(elements), run.0.max(run.1).min(elements));
            let storage = builder.storage(Rank(rank), "w", Bytes(4 * (elements + 1)));
            let buffer = builder.buffer(storage, Bytes(0), DType::F32, Elements(elements + 1));
            let id = builder.shard(shard);
            builder.place_run(w, buffer, Elements(0), id, low..high);
            builder.place_run(w, buffer, Elements(high - low + 1), id, high..elements);
            builder.place_run(w, buffer, Elements(high - low + 1 + elements - high), id, 0..low);
            stored.push((low, high, elements));
        }
        let layout = builder.build().unwrap();
        for (rank, origin, width) in [(0, 0, first), (1, first, b - first)] {
            let (low, high, elements) = stored[rank as usize];
            let mut expected = BTreeMap::new();
            for flat in 0..a * width * c {
                let (i, j, k) = (flat / (width * c), flat / c % width, flat % c);
                let address = match flat {
                    _ if flat < low => high - low + 1 + elements - high + flat,
                    _ if flat < high => flat - low,
                    _ => high - low + 1 + flat - high,
                };
                expected.insert((i * b + origin + j) * c + k, address);
            }
            prop_assert_eq!(held(&layout, Rank(rank)), expected);
        }
    }

    #[test]
    fn layouts_are_read_as_they_were_written((source, target) in layout_pairs()) {
        for layout in [source, target] {
            let text = serde_json::to_string(&layout).unwrap();
            let read: Layout = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(read.fingerprint(), layout.fingerprint());
            prop_assert!(read == layout);
        }
    }
}

#[test]
fn a_layout_with_an_id_that_does_not_exist_is_refused() {
    let mut builder = LayoutBuilder::new();
    let w = builder.parameter("w", [4], DType::F32);
    let storage = builder.storage(Rank(0), "w", Bytes(16));
    let buffer = builder.buffer(storage, Bytes(0), DType::F32, Elements(4));
    let whole = builder.geometry(Geometry::whole(&[4]));
    builder.place(w, buffer, Elements(0), whole);
    let text = serde_json::to_string(&builder.build().unwrap()).unwrap();
    for (from, to, says) in [
        ("\"geometry\":0", "\"geometry\":7", "geometry 7 of 1"),
        ("\"buffer\":0", "\"buffer\":7", "buffer 7 of 1"),
        ("\"storage\":0", "\"storage\":7", "storage 7 of 1"),
        ("\"parameter\":0", "\"parameter\":7", "parameter 7 of 1"),
    ] {
        assert!(text.contains(from), "{text}");
        let error = serde_json::from_str::<Layout>(&text.replace(from, to)).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    let holed = text.replace("\"extent\":[4]", "\"extent\":[3]");
    assert!(serde_json::from_str::<Layout>(&holed).unwrap_err().to_string().contains('w'));
}

#[test]
fn a_run_past_its_shard_and_a_shard_that_is_not_row_major_are_findings() {
    let mut builder = LayoutBuilder::new();
    let w = builder.parameter("w", [2, 3], DType::F32);
    let storage = builder.storage(Rank(3), "w", Bytes(64));
    let buffer = builder.buffer(storage, Bytes(0), DType::F32, Elements(16));
    let whole = builder.shard(Shard::of_box(&[2, 3], Region::whole(&[2, 3])));
    let transposed = reshard_layout::Block::new(Region::whole(&[2, 3]), Elements(0), [1, 2]);
    let transposed = builder.shard(Shard::new([2, 3], Geometry::new([2, 3], [transposed])));
    builder.place_run(w, buffer, Elements(0), whole, 4..9);
    builder.place_run(w, buffer, Elements(8), transposed, 0..6);
    let Err(LayoutError::Findings { findings }) = builder.build() else { panic!("it is sound") };
    assert!(matches!(&findings[0], Finding::RunOutOfShard { rank: Rank(3), first: 4, end: 9, .. }));
    assert!(matches!(&findings[1], Finding::ShardNotRowMajor { rank: Rank(3), .. }));
}

#[test]
fn a_hostile_map_is_an_error() {
    let mut map = cut_view([2, 4, 3], 2);
    for shard in map.ranks.values_mut() {
        shard.pieces[0].source.1[0] = i64::MAX;
        shard.pieces[0].source.0 = i64::MAX;
    }
    assert!(map.shards("w", &[8, 3]).is_err());
    let mut map = cut_view([2, 4, 3], 2);
    map.ranks[0].shard_shape = vec![u64::MAX, u64::MAX, 2];
    assert!(map.shards("w", &[8, 3]).is_err());
    assert!(cut_view([2, 4, 3], 2).shards("w", &[6, 4]).is_err());
}

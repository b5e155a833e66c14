//! Runs, joins, refinement and nesting against the dumb way.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use reshard_layout::strategies::shapes;
use reshard_layout::{
    Block, Dims, Elements, Geometry, Region, boxes_of_run, coordinate, nest, overlapping_pairs, refine,
    row_major, stored_run,
};

/// Every coordinate of a box, in row-major order.
fn coordinates(region: &Region) -> Vec<Vec<u64>> {
    let mut all = vec![Vec::new()];
    for axis in 0..region.axes() {
        all = all
            .into_iter()
            .flat_map(|prefix: Vec<u64>| {
                (region.origin()[axis]..region.end(axis))
                    .map(move |at| prefix.iter().copied().chain([at]).collect())
            })
            .collect();
    }
    all
}

fn flat(at: &[u64], shape: &[u64]) -> u64 {
    at.iter().zip(shape).fold(0, |sum, (index, extent)| sum * extent + index)
}

/// Address of each logical coordinate that a geometry holds.
fn addresses(geometry: &Geometry) -> BTreeMap<Vec<u64>, u64> {
    let mut all = BTreeMap::new();
    for block in geometry.blocks() {
        for at in coordinates(&block.region) {
            let within = at.iter().zip(block.region.origin()).zip(&block.strides);
            let address =
                block.offset.0 + within.map(|((at, from), stride)| (at - from) * stride).sum::<u64>();
            assert!(all.insert(at, address).is_none(), "held twice");
        }
    }
    all
}

fn region(origin: &[u64], extent: &[u64]) -> Region {
    Region::new(origin.iter().copied(), extent.iter().copied())
}

#[test]
fn runs_cut_into_the_boxes_of_the_reference() {
    let cases: [(&[u64], std::ops::Range<u64>, Vec<Region>); 5] = [
        (&[9], 2..7, vec![region(&[2], &[5])]),
        (&[5, 7], 3..24, vec![region(&[0, 3], &[1, 4]), region(&[1, 0], &[2, 7]), region(&[3, 0], &[1, 3])]),
        (&[5, 7], 5..9, vec![region(&[0, 5], &[1, 2]), region(&[1, 0], &[1, 2])]),
        (&[5, 7], 7..28, vec![region(&[1, 0], &[3, 7])]),
        (
            &[3, 4, 5],
            7..53,
            vec![
                region(&[0, 1, 2], &[1, 1, 3]),
                region(&[0, 2, 0], &[1, 2, 5]),
                region(&[1, 0, 0], &[1, 4, 5]),
                region(&[2, 0, 0], &[1, 2, 5]),
                region(&[2, 2, 0], &[1, 1, 3]),
            ],
        ),
    ];
    for (shape, run, expected) in cases {
        assert_eq!(boxes_of_run(shape, run.clone()), expected, "{shape:?} {run:?}");
    }
    assert_eq!(boxes_of_run(&[], 0..1), [Region::whole(&[])]);
    assert_eq!(boxes_of_run(&[3, 0], 0..0), []);
}

#[test]
fn nesting_gives_the_worked_example_of_the_reference() {
    // W (3, 6), row-parallel over 2 -> shards (3, 3); ZeRO-3 over 2: slots of ceil(9 / 2) = 5 elements.
    // rank: (logical flat offset, buffer offset, shape)
    type Lines<'a> = [(u64, u64, &'a [u64]); 2];
    let expected: [(u64, std::ops::Range<u64>, Lines<'_>); 4] = [
        (0, 0..5, [(0, 0, &[1, 3]), (6, 3, &[1, 2])]),
        (3, 0..5, [(3, 0, &[1, 3]), (9, 3, &[1, 2])]),
        (0, 5..9, [(8, 0, &[1, 1]), (12, 1, &[1, 3])]),
        (3, 5..9, [(11, 0, &[1, 1]), (15, 1, &[1, 3])]),
    ];
    for (column, run, lines) in expected {
        let shard = Geometry::new([3, 6], [Block::dense(region(&[0, column], &[3, 3]), Elements(0))]);
        let nested = nest(&shard, &stored_run(&[3, 3], run)).unwrap();
        let found: Vec<(u64, u64, Vec<u64>)> = nested
            .blocks()
            .iter()
            .map(|block| {
                (flat(block.region.origin(), &[3, 6]), block.offset.0, block.region.extent().to_vec())
            })
            .collect();
        let wanted: Vec<_> = lines.iter().map(|&(from, to, shape)| (from, to, shape.to_vec())).collect();
        assert_eq!(found, wanted);
    }
}

fn boxes(axes: usize, count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Region>> {
    let one = vec((0u64..12, 0u64..6), axes)
        .prop_map(|sides| Region::new(sides.iter().map(|side| side.0), sides.iter().map(|side| side.1)));
    vec(one, count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_run_is_exactly_its_boxes(shape in shapes(), ends in (0.0..1.0f64, 0.0..1.0f64)) {
        let total: u64 = shape.iter().product();
        let at = |part: f64| (total as f64 * part).round() as u64;
        let run = at(ends.0.min(ends.1))..at(ends.0.max(ends.1));
        let found = boxes_of_run(&shape, run.clone());
        prop_assert!(found.len() <= (2 * shape.len()).saturating_sub(1).max(1));
        let elements: Vec<u64> =
            found.iter().flat_map(coordinates).map(|at| flat(&at, &shape)).collect();
        prop_assert_eq!(elements, run.collect::<Vec<_>>());
    }

    #[test]
    fn coordinates_and_addresses_undo_each_other(shape in shapes(), part in 0.0..1.0f64) {
        let total: u64 = shape.iter().product();
        let index = ((total as f64 * part) as u64).min(total - 1);
        let at = coordinate(index, &shape);
        prop_assert_eq!(flat(&at, &shape), index);
        prop_assert_eq!(reshard_layout::address(&at, &row_major(&shape)), index);
    }

    #[test]
    fn the_join_finds_what_all_pairs_find((left, right) in (1usize..4).prop_flat_map(|axes| (boxes(axes, 0..60), boxes(axes, 0..60)))) {
        let (left_refs, right_refs): (Vec<_>, Vec<_>) = (left.iter().collect(), right.iter().collect());
        let mut found = Vec::new();
        overlapping_pairs(&left_refs, &right_refs, &mut |i, j| found.push((i, j)));
        found.sort_unstable();
        let mut expected = Vec::new();
        for (i, one) in left.iter().enumerate() {
            let held: BTreeSet<_> = coordinates(one).into_iter().collect();
            for (j, other) in right.iter().enumerate() {
                if coordinates(other).iter().any(|at| held.contains(at)) {
                    expected.push((i, j));
                }
            }
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn refinement_is_a_partition_with_the_true_holders(boxes in boxes(2, 0..8)) {
        let whole = Region::whole(&[12, 12]);
        let references: Vec<_> = boxes.iter().collect();
        let mut seen = BTreeMap::new();
        refine(&whole, &references, &mut |cell, holders| {
            for at in coordinates(cell) {
                assert!(seen.insert(at, holders.to_vec()).is_none(), "in two cells");
            }
        });
        prop_assert_eq!(seen.len(), 144);
        for (at, holders) in seen {
            let element = Region::new(at, [1, 1]);
            let expected: Vec<usize> = (0..boxes.len()).filter(|&i| boxes[i].overlaps(&element)).collect();
            prop_assert_eq!(holders, expected);
        }
    }

    #[test]
    fn nesting_composes_addresses(
        shape in vec(1u64..6, 1..4),
        axis in 0usize..3,
        cut in 0.0..1.0f64,
        ends in (0.0..1.0f64, 0.0..1.0f64),
    ) {
        // Two sub-parameters, each cut along an axis: the shard is the two slices concatenated.
        let axis = axis % shape.len();
        let first = (shape[axis] as f64 * cut) as u64;
        let slice = |from: u64, width: u64| {
            let (mut origin, mut extent) = (vec![0; shape.len()], shape.clone());
            (origin[axis], extent[axis]) = (from, width);
            Region::new(origin, extent)
        };
        let widths = [first / 2, (shape[axis] - first).div_ceil(2)];
        let mut shard = Dims::from_slice(&shape);
        shard[axis] = widths[0] + widths[1];
        let strides = row_major(&shard);
        let outer = Geometry::new(shape.iter().copied(), [
            Block::new(slice(0, widths[0]), Elements(0), strides.clone()),
            Block::new(slice(first, widths[1]), Elements(widths[0] * strides[axis]), strides.clone()),
        ]);
        let total: u64 = shard.iter().product();
        let at = |part: f64| (total as f64 * part).round() as u64;
        let run = at(ends.0.min(ends.1))..at(ends.0.max(ends.1));
        let nested = addresses(&nest(&outer, &stored_run(&shard, run.clone())).unwrap());
        let expected: BTreeMap<_, _> = addresses(&outer)
            .into_iter()
            .filter(|(_, address)| run.contains(address))
            .map(|(at, address)| (at, address - run.start))
            .collect();
        prop_assert_eq!(nested, expected);
    }
}

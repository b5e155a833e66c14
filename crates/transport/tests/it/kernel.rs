//! The copy kernel against a loop over every element.

use proptest::prelude::*;
use reshard_layout::{Bytes, address, coordinate, volume};
use reshard_transport::{Axis, BoxCopy};

#[derive(Clone, Debug)]
struct Case {
    element: usize,
    axes: Vec<Axis>,
    source_offset: usize,
    target_offset: usize,
}

/// Strides that do not overlap: axes laid out one inside the other, in any order, with gaps.
fn strides(extents: &[u64], order: &[usize], gaps: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; extents.len()];
    let mut next = 1 + gaps.first().copied().unwrap_or(0) / 2;
    for &axis in order {
        strides[axis] = next;
        next = next * extents[axis].max(1) + gaps[axis];
    }
    strides
}

fn cases() -> impl Strategy<Value = Case> {
    let axes = 0..=4usize;
    axes.prop_flat_map(|axes| {
        let order = || Just((0..axes).collect::<Vec<_>>()).prop_shuffle();
        let gaps = || prop::collection::vec(prop_oneof![3 => Just(0u64), 1 => 0..4u64], axes);
        let extents = prop::collection::vec(prop_oneof![8 => 1..5u64, 1 => Just(0)], axes);
        let element = prop::sample::select(vec![1usize, 2, 4, 8]);
        (extents, (order(), gaps()), (order(), gaps()), element, 0..20usize, 0..20usize).prop_map(
            |(extents, source, target, element, source_offset, target_offset)| {
                let source = strides(&extents, &source.0, &source.1);
                let target = strides(&extents, &target.0, &target.1);
                let axes = (0..extents.len())
                    .map(|axis| Axis {
                        extent: extents[axis],
                        source_stride: source[axis],
                        target_stride: target[axis],
                    })
                    .collect();
                Case { element, axes, source_offset, target_offset }
            },
        )
    })
}

/// The pairs of byte positions that a case moves, one element at a time.
fn pairs(case: &Case) -> Vec<(usize, usize)> {
    let shape: Vec<u64> = case.axes.iter().map(|axis| axis.extent).collect();
    let source: Vec<u64> = case.axes.iter().map(|axis| axis.source_stride).collect();
    let target: Vec<u64> = case.axes.iter().map(|axis| axis.target_stride).collect();
    let mut pairs = Vec::new();
    for flat in 0..volume(&shape).unwrap() {
        let at = coordinate(flat, &shape);
        for part in 0..case.element {
            let read = case.source_offset + case.element * address(&at, &source) as usize + part;
            let written = case.target_offset + case.element * address(&at, &target) as usize + part;
            pairs.push((read, written));
        }
    }
    pairs
}

/// Runs the kernel and the loop, and compares ends, counts and every byte of the target.
fn assert_moves(case: &Case) {
    let (from, to) = (Bytes(case.source_offset as u64), Bytes(case.target_offset as u64));
    let copy = BoxCopy::new(from, to, &case.axes, Bytes(case.element as u64)).unwrap();
    let pairs = pairs(case);
    let source_end = pairs.iter().map(|pair| pair.0 + 1).max().unwrap_or(0);
    let target_end = pairs.iter().map(|pair| pair.1 + 1).max().unwrap_or(0);
    assert_eq!((copy.source_end().0 as usize, copy.target_end().0 as usize), (source_end, target_end));
    assert_eq!(copy.bytes().0 as usize, pairs.len());

    let source: Vec<u8> = (0..source_end).map(|at| ((at * 7 + at / 251) % 251) as u8).collect();
    let mut expected = vec![0xFF; target_end + 3];
    for (read, written) in pairs {
        expected[written] = source[read];
    }
    let mut target = vec![0xFF; target_end + 3];
    copy.run(source.as_slice().into(), &mut target.as_mut_slice().into());
    assert_eq!(target, expected);
}

proptest! {
    #[test]
    fn every_byte_goes_where_the_loop_puts_it(case in cases()) {
        assert_moves(&case);
    }
}

#[test]
fn a_transpose_past_its_tiles_is_a_transpose() {
    // 64 steps a tile: less than one, one and a bit, several.
    for (rows, columns) in [(3, 200), (65, 64), (130, 191)] {
        let case = Case {
            element: 2,
            axes: vec![
                Axis { extent: 2, source_stride: rows * columns, target_stride: rows * columns + 1 },
                Axis { extent: rows, source_stride: 1, target_stride: columns },
                Axis { extent: columns, source_stride: rows, target_stride: 1 },
            ],
            source_offset: 0,
            target_offset: 4,
        };
        assert_moves(&case);
    }
}

#[test]
#[should_panic(expected = "a copy writes inside its target")]
fn a_short_target_is_not_written() {
    let axis = Axis { extent: 4, source_stride: 1, target_stride: 1 };
    let copy = BoxCopy::new(Bytes(0), Bytes(1), &[axis], Bytes(2)).unwrap();
    copy.run([0; 8].as_slice().into(), &mut [0; 8].as_mut_slice().into());
}

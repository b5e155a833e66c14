//! Comparisons of raw files in other layouts: equal bits are equal, and each difference is named.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use proptest::prelude::*;
use reshard_formats::{
    Checkpoint, CompareOptions, Comparison, Difference, FormatError, Held, Kept, Replicas, Silent,
    comparable_bytes, compare,
};
use reshard_layout::strategies::layout_pairs;
use reshard_layout::{Bytes, DType, Dims, Layout, LayoutBuilder, coordinate};

use super::{checkpoint, elements, matrix, opened, places, retyped, source_path};

fn compared(first: &Checkpoint, second: &Checkpoint, exact: bool) -> Comparison {
    let threads = NonZeroUsize::new(2).unwrap();
    // Only the copy that is read is changed here.
    let replicas = Replicas::First;
    let options = CompareOptions { exact, memory: Bytes(256 << 10), threads, replicas };
    compare(first, second, &options, &Silent).unwrap()
}

/// Changes bytes of an element in the file that holds it.
fn change(checkpoint: &Checkpoint, kept: &Kept, parameter: &str, flat: u64, bytes: &[u8]) -> Vec<u8> {
    let part = &checkpoint.parts[kept];
    let mut all = elements(&part.layout);
    let (storage, byte, ..) = all.find(|(_, _, name, at)| (*name, *at) == (parameter, flat)).unwrap();
    let span = part.spans[storage];
    let path = checkpoint.files.path(span.file);
    let mut file = fs::read(path).unwrap();
    let at = span.offset.0 as usize + byte;
    let old = file[at..at + bytes.len()].to_vec();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(path, file).unwrap();
    old
}

fn weights(folder: &Path, layout: &Layout) -> Checkpoint {
    checkpoint(folder, &[(Kept::Weights, layout.clone())])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn one_element_is_named(
        (one, other) in layout_pairs(),
        dtype in prop::sample::select(vec![DType::F64, DType::F32, DType::F16, DType::U8]),
        place in 0.0..1.0f64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let first = weights(&folder.path().join("a"), &retyped(&one, dtype));
        let second = weights(&folder.path().join("b"), &retyped(&other, dtype));
        let result = compared(&first, &second, true);
        prop_assert_eq!(&result.differences, &[]);
        prop_assert_eq!((result.parameters, result.is_exact), (one.parameters().len(), true));
        // Of what several files hold the first counts, which is the one of the lowest rank.
        let layout = &second.parts[&Kept::Weights].layout;
        let all: Vec<_> = elements(layout).collect();
        let (_, _, parameter, flat) = all[(all.len() as f64 * place) as usize];
        let size = dtype.size() as usize;
        let new = vec![0x5b; size];
        let old = change(&second, &Kept::Weights, parameter, flat, &new);
        let shape = &layout.parameter(layout.find(parameter).unwrap()).shape;
        let expected = Difference::Bits {
            kept: Kept::Weights,
            parameter: parameter.to_owned(),
            elements: 1,
            coordinate: coordinate(flat, shape).to_vec(),
            bytes: Held { first: old.clone(), second: new.clone() },
        };
        let expected = if old == new { vec![] } else { vec![expected] };
        prop_assert_eq!(compared(&first, &second, true).differences, expected);
    }
}

#[test]
fn names_shapes_types_and_tensors_are_compared_first() {
    let folder = tempfile::tempdir().unwrap();
    let build = |parameters: &[(&str, [u64; 2], DType)], alias: Option<(&str, usize)>| {
        let mut builder = LayoutBuilder::new();
        for (index, (name, shape, dtype)) in (0u32..).zip(parameters) {
            let parameter = builder.parameter(name, *shape, *dtype);
            let length = reshard_layout::Elements(shape[0] * shape[1]);
            let storage = builder.storage(reshard_layout::Rank(index), name, length.bytes(*dtype));
            let buffer = builder.buffer(storage, Bytes(0), *dtype, length);
            let geometry = builder.geometry(reshard_layout::Geometry::whole(shape));
            builder.place(parameter, buffer, reshard_layout::Elements(0), geometry);
            if let Some((alias, _)) = alias.filter(|(_, of)| *of == index as usize) {
                builder.alias(alias, parameter);
            }
        }
        builder.build().unwrap()
    };
    let (f32, bf16) = (DType::F32, DType::Bf16);
    let one = [("same", [2, 3], f32), ("a", [2, 2], f32), ("shape", [2, 3], f32), ("type", [2, 2], f32)];
    let two = [("same", [2, 3], f32), ("shape", [3, 2], f32), ("type", [2, 2], bf16), ("b", [1, 1], f32)];
    let state = Kept::State("exp_avg".into());
    let first = checkpoint(
        &folder.path().join("a"),
        &[(Kept::Weights, build(&one, None)), (state.clone(), build(&one, None))],
    );
    let second = checkpoint(
        &folder.path().join("b"),
        &[(Kept::Master, build(&two, None)), (Kept::Weights, build(&two, None))],
    );
    let result = compared(&first, &second, false);
    let (kept, is) = (Kept::Weights, |first, second| Held { first, second });
    let missing =
        |parameter: &str, held| Difference::Missing { kept: kept.clone(), parameter: parameter.into(), held };
    let shapes = Held { first: Dims::from_slice(&[2, 3]), second: Dims::from_slice(&[3, 2]) };
    let dtypes = Held { first: f32, second: bf16 };
    let expected = [
        missing("a", is(true, false)),
        Difference::Shape { kept: kept.clone(), parameter: "shape".into(), shapes },
        Difference::Type { kept: kept.clone(), parameter: "type".into(), dtypes },
        missing("b", is(false, true)),
    ];
    assert_eq!(result.differences, expected);
    assert_eq!((result.compared, result.parameters), (vec![Kept::Weights], 1));
    assert_eq!(result.alone, [(state, is(true, false)), (Kept::Master, is(false, true))]);

    // A second name is looked through, in both directions.
    let tied = weights(&folder.path().join("c"), &build(&[("embed", [2, 3], f32)], Some(("head", 0))));
    let untied =
        weights(&folder.path().join("d"), &build(&[("embed", [2, 3], f32), ("head", [2, 3], f32)], None));
    for (one, other) in [(&tied, &untied), (&untied, &tied)] {
        let result = compared(one, other, false);
        assert_eq!(result.parameters, 2);
        match &result.differences[..] {
            [Difference::Bits { parameter, elements: 6, coordinate, .. }] => {
                assert_eq!((parameter.as_str(), &coordinate[..]), ("head", &[0, 0][..]));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn zeros_have_signs_and_nans_have_payloads() {
    let folder = tempfile::tempdir().unwrap();
    let layout = matrix("w", [4, 4], DType::F32, 0, 2, 1);
    let first = weights(&folder.path().join("a"), &layout);
    let second = weights(&folder.path().join("b"), &layout);
    let values = [(3, 0.0f32.to_bits(), (-0.0f32).to_bits()), (9, 0x7fc0_0001, 0x7fc0_0002)];
    for (flat, one, other) in values {
        change(&first, &Kept::Weights, "w", flat, &one.to_le_bytes());
        change(&second, &Kept::Weights, "w", flat, &other.to_le_bytes());
    }
    let result = compared(&first, &second, false);
    assert_eq!(
        result.differences.iter().map(Difference::to_string).collect::<Vec<_>>(),
        ["weights of w: 2 elements differ, the first at [0, 3]: 0x00000000 and 0x80000000"]
    );
    assert_eq!(compared(&first, &first, false).differences, []);
    for flat in [3, 9] {
        change(&second, &Kept::Weights, "w", flat, &[1, 2, 3, 4]);
        change(&first, &Kept::Weights, "w", flat, &[1, 2, 3, 4]);
    }
    assert_eq!(compared(&first, &second, true).differences, []);
}

#[test]
fn large_files_are_compared_by_sums_and_read_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [4000, 2100];
    let bytes = 4000 * 2100 * 4;
    let first = weights(&folder.path().join("a"), &matrix("w", shape, DType::F32, 1, 3, 1));
    let second = weights(&folder.path().join("b"), &matrix("w", shape, DType::F32, 0, 8, 1));
    assert_eq!(comparable_bytes(&first, &second), Bytes(2 * bytes));
    let result = compared(&first, &second, false);
    assert_eq!((result.is_exact, result.differences, result.parameters), (false, vec![], 1));
    // Nothing is read twice, however the two are cut.
    assert_eq!(result.bytes_read, Bytes(2 * bytes));
    assert!(compared(&first, &second, true).is_exact);

    // Two elements of one row change places: the same numbers, elsewhere.
    let (one, other) = (1234 * 2100 + 7, 1234 * 2100 + 1900);
    let moved = change(&second, &Kept::Weights, "w", one, &[0; 4]);
    let old = change(&second, &Kept::Weights, "w", other, &moved);
    change(&second, &Kept::Weights, "w", one, &old);
    for exact in [false, true] {
        let expected = Difference::Bits {
            kept: Kept::Weights,
            parameter: "w".into(),
            elements: 2,
            coordinate: vec![1234, 7],
            bytes: Held { first: moved.clone(), second: old.clone() },
        };
        assert_eq!(compared(&first, &second, exact).differences, [expected]);
    }
}

#[test]
fn copies_of_one_side_that_differ_are_named_unless_one_is_trusted() {
    let around = tempfile::tempdir().unwrap();
    let layout = matrix("w", [4, 6], DType::F32, 0, 2, 2);
    let good = weights(&around.path().join("good"), &layout);
    let bad = around.path().join("bad");
    drop(weights(&bad, &layout));
    // The second copy of the second half: element [2, 1] is its second one.
    let (rank, at) = places(&layout)[3];
    let file = source_path(&bad, &Kept::Weights, rank);
    let mut bytes = fs::read(&file).unwrap();
    bytes[at + 4] ^= 1;
    fs::write(&file, bytes).unwrap();
    let bad = opened(&bad, &[(Kept::Weights, layout)]);
    for (first, second) in [(&good, &bad), (&bad, &good)] {
        match compare(first, second, &CompareOptions::default(), &Silent) {
            Err(FormatError::Replicas { path, fault }) => {
                assert_eq!((path, fault.coordinate), (bad.root.clone(), vec![2, 1]));
                assert_eq!(fault.second, file);
            }
            found => panic!("{found:?}"),
        }
        let trusting = CompareOptions { replicas: Replicas::First, ..CompareOptions::default() };
        assert_eq!(compare(first, second, &trusting, &Silent).unwrap().differences, []);
    }
}

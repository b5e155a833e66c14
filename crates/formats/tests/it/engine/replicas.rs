//! Files that hold the same elements must agree, wherever they are cut.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use reshard_formats::{Conversion, FormatError, Kept, Replicas, Silent, WriteOptions};
use reshard_layout::strategies::layout_pairs;
use reshard_layout::{DType, Layout};

use super::{checkpoint, elements, matrix, names, opened, output, places, source_path};

/// Flips one bit of a source file, at a byte of a storage.
fn flip(folder: &Path, layout: &Layout, storage: usize, byte: usize) {
    let (rank, at) = places(layout)[storage];
    let path = source_path(folder, &Kept::Weights, rank);
    let mut bytes = fs::read(&path).unwrap();
    bytes[at + byte] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// Converts and tells what was found to differ: parameter, coordinate as a flat index, and the two ranks.
fn differs(folder: &Path, layout: &Layout, replicas: Replicas) -> Option<(String, Vec<u64>, [String; 2])> {
    let source = opened(folder, &[(Kept::Weights, layout.clone())]);
    let target = output(&[(Kept::Weights, layout.clone())]);
    let conversion = Conversion::new(source, target).unwrap();
    let options = WriteOptions { replicas, sync: false, ..WriteOptions::default() };
    let place = folder.with_file_name("out");
    let found = conversion.run(&place, &options, &Silent);
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    match found {
        Ok(_) => {
            fs::remove_dir_all(place).unwrap();
            None
        }
        Err(FormatError::Replicas { path, fault }) => {
            assert_eq!((path.as_path(), &fault.kept), (folder, &Kept::Weights));
            assert_eq!(names(folder.parent().unwrap()), ["in"]);
            Some((fault.parameter, fault.coordinate, [name(&fault.first), name(&fault.second)]))
        }
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn a_bit_that_differs_is_found_exactly_where_others_hold_it((layout, _) in layout_pairs(), place in 0.0..1.0f64) {
        let around = tempfile::tempdir().unwrap();
        let folder = around.path().join("in");
        checkpoint(&folder, &[(Kept::Weights, layout.clone())]);
        prop_assert_eq!(differs(&folder, &layout, Replicas::Compare), None);
        let all: Vec<_> = elements(&layout).collect();
        let (storage, byte, parameter, flat) = all[(all.len() as f64 * place) as usize];
        flip(&folder, &layout, storage, byte);
        let holders = all.iter().filter(|(_, _, name, at)| (*name, *at) == (parameter, flat)).count();
        let found = differs(&folder, &layout, Replicas::Compare);
        prop_assert_eq!(found.is_some(), holders > 1, "{} holders", holders);
        if let Some((name, coordinate, files)) = found {
            let shape = &layout.parameter(layout.find(&name).unwrap()).shape;
            prop_assert_eq!(name, parameter);
            prop_assert_eq!(coordinate, reshard_layout::coordinate(flat, shape).to_vec());
            let rank = layout.places().storages[storage].rank;
            prop_assert!(files[0] != files[1] && files.contains(&format!("weights-{rank}.bin")), "{:?}", files);
        }
        prop_assert_eq!(differs(&folder, &layout, Replicas::First), None);
    }
}

#[test]
fn the_third_of_three_is_compared_and_before_a_cast() {
    let around = tempfile::tempdir().unwrap();
    let folder = around.path().join("in");
    let layout = matrix("w", [700, 300], DType::F32, 0, 1, 3);
    let source = checkpoint(&folder, &[(Kept::Weights, layout.clone())]);
    let target = output(&[(Kept::Weights, matrix("w", [700, 300], DType::Bf16, 1, 2, 1))]);
    let conversion = Conversion::new(source, target).unwrap();
    // The lowest byte of a float is lost when it becomes bf16.
    flip(&folder, &layout, 2, 4 * (650 * 300 + 17));
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    let error = conversion.run(&around.path().join("out"), &options, &Silent).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("weights of w differs at [650, 17]"), "{text}");
    assert!(text.contains("weights-0.bin") && text.contains("weights-2.bin"), "{text}");
    assert_eq!(error.kind(), Some(reshard_layout::Kind::Invalid));
}

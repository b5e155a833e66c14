//! Truncated at every length, damaged at every byte of the header: an error or a valid reading, and no panic.

use reshard_formats::shards::{RankLayout, open};
use reshard_formats::{Checkpoint, FormatError};

use super::support::{folder_of_layouts, two_files};
use crate::safetensors::support::{folder_with, weights};
use crate::support::fuzz_time;

fn assert_sound(opened: Result<Checkpoint, FormatError>) {
    match opened {
        Ok(checkpoint) => {
            for span in &weights(&checkpoint).spans {
                let end = span.offset.0.checked_add(span.length.0).unwrap();
                assert!(end <= checkpoint.files.length(span.file).0);
            }
        }
        Err(FormatError::Shards { .. } | FormatError::Safetensors { .. } | FormatError::Layout { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn every_truncation_is_an_error() {
    let files = two_files();
    let folder = folder_with(&files);
    let (name, whole) = &files[1];
    for length in 0..whole.len() {
        std::fs::write(folder.path().join(name), &whole[..length]).unwrap();
        let error = open(folder.path()).unwrap_err();
        assert!(matches!(&error, FormatError::Safetensors { path, .. } if path.ends_with(name)), "{error}");
    }
}

#[test]
fn every_flipped_bit_of_the_header_is_an_error_or_valid() {
    let files = two_files();
    let folder = folder_with(&files);
    let (name, whole) = &files[1];
    for at in 0..whole.len() - 60 {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            std::fs::write(folder.path().join(name), &damaged).unwrap();
            assert_sound(open(folder.path()));
        }
    }
}

/// Bytes of a layout are replaced, or its numbers: the rest of the folder is right.
#[test]
fn fuzz_shards_metadata() {
    const NUMBERS: [&str; 8] =
        ["0", "1", "2", "3", "4294967296", "9223372036854775807", "18446744073709551615", "1e3"];
    let whole = concat!(
        r#"{"version":1,"rank":0,"world":1,"topology":"t","parameters":{"w":{"shape":[2,3],"boxes":["#,
        r#"{"origin":[0,0],"extent":[1,3],"offset":3,"strides":[3,1]},"#,
        r#"{"origin":[1,0],"extent":[1,3],"offset":0,"strides":[3,1]}]}}}"#
    );
    assert!(open(folder_of_layouts(&[(whole, &[2, 3])]).path()).is_ok());
    let digits: Vec<usize> = whole.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect();
    bolero::check!().with_test_time(fuzz_time()).for_each(|input: &[u8]| {
        let mut numbers: Vec<String> = whole.chars().map(String::from).collect();
        let mut bytes = whole.as_bytes().to_vec();
        for edit in input.chunks_exact(2).take(4) {
            let number = NUMBERS[usize::from(edit[1]) % NUMBERS.len()];
            numbers[digits[usize::from(edit[0]) % digits.len()]] = number.to_owned();
            let length = bytes.len();
            bytes[usize::from(edit[0]) % length] = edit[1];
        }
        let numbers = numbers.concat();
        assert_sound(open(folder_of_layouts(&[(&numbers, &[2, 3])]).path()));
        let text = String::from_utf8_lossy(&bytes);
        assert_sound(open(folder_of_layouts(&[(&text, &[2, 3])]).path()));
        if let Ok(layout) = RankLayout::parse(&String::from_utf8_lossy(input)) {
            assert!(layout.rank < layout.world);
        }
    });
}

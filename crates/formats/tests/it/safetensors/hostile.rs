//! Truncated at every length, damaged at every byte: an error or an equally valid reading, and no panic.

use reshard_formats::safetensors::{HEADER_BYTES_MAX, SafetensorsFault, open};
use reshard_formats::{Checkpoint, FormatError};

use super::oracle::assert_agree;
use super::support::{fault_of, file_of, folder_of, open_bytes, refusal, weights};

fn small() -> Vec<u8> {
    let header = concat!(
        r#"{"__metadata__":{"format":"pt"},"k":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"#,
        r#""q":{"dtype":"F4","shape":[3,2],"data_offsets":[12,15]},"s":{"dtype":"F32","shape":[],"data_offsets":[15,19]},"#,
        r#""e":{"dtype":"I64","shape":[0,7],"data_offsets":[19,19]}}  "#
    );
    file_of(header, 19)
}

/// What was read lies inside the file.
fn assert_inside(checkpoint: &Checkpoint, length: usize) {
    for span in &weights(checkpoint).spans {
        assert!(span.offset.0.checked_add(span.length.0).unwrap() <= length as u64);
    }
}

#[test]
fn the_whole_file_is_right() {
    let checkpoint = open_bytes(&small()).unwrap();
    assert_eq!(weights(&checkpoint).layout.parameters().len(), 4);
    assert_eq!(checkpoint.facts.packed["q"], ("F4".to_owned(), vec![3, 2]));
    assert_agree(&small());
}

#[test]
fn every_truncation_is_an_error() {
    let whole = small();
    for length in 0..whole.len() {
        let fault = fault_of(open_bytes(&whole[..length]));
        let header_end = whole.len() - 19;
        match fault {
            SafetensorsFault::LengthAbsent { .. } => assert!(length < 8),
            SafetensorsFault::HeaderTruncated { .. } => assert!((8..header_end).contains(&length)),
            SafetensorsFault::Truncated { .. } => assert!(length >= header_end),
            other => panic!("{length}: {other}"),
        }
    }
}

#[test]
fn every_flipped_bit_of_the_header_is_an_error_or_valid() {
    let whole = small();
    for at in 0..whole.len() - 19 {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            match open_bytes(&damaged) {
                Ok(checkpoint) => assert_inside(&checkpoint, damaged.len()),
                Err(FormatError::Safetensors { .. }) => {}
                Err(other) => panic!("byte {at} bit {bit}: {other}"),
            }
            assert_agree(&damaged);
        }
    }
}

#[test]
fn absurd_lengths_cost_nothing() {
    for length in [HEADER_BYTES_MAX + 1, u64::MAX, u64::MAX - 7, 1 << 63] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(b"{}");
        assert!(matches!(fault_of(open_bytes(&bytes)), SafetensorsFault::HeaderTooLong { .. }));
    }
    let mut bytes = HEADER_BYTES_MAX.to_le_bytes().to_vec();
    bytes.extend(b"{}");
    assert!(matches!(fault_of(open_bytes(&bytes)), SafetensorsFault::HeaderTruncated { .. }));
}

#[test]
fn an_unknown_type_and_too_many_axes_are_refused_by_name() {
    let header = r#"{"w":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}}"#;
    assert_eq!(refusal(header, 16), "w: unknown dtype F128");
    let axes = vec!["1"; 65].join(",");
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{axes}],"data_offsets":[0,1]}}}}"#);
    assert_eq!(refusal(&header, 1), "w: 65 axes, at most 64 are allowed");
    assert!(open_bytes(&file_of(&header.replacen("1,", "", 1), 1)).is_ok());
}

#[test]
fn holes_and_bytes_behind_the_last_tensor_are_refused_with_numbers() {
    let hole = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}}"#;
    assert_eq!(refusal(hole, 6), "bytes 2 to 5 of the data, before b, belong to no tensor");
    let behind = r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#;
    assert_eq!(refusal(behind, 6), "the tensors end at byte 2 of the data, of which the file has 6");
    assert_eq!(refusal("{}", 6), "the tensors end at byte 0 of the data, of which the file has 6");
}

#[test]
fn what_is_no_file_or_no_checkpoint_is_an_error_with_its_path() {
    let folder = folder_of(&[("model.bin", b"x")]);
    let absent = folder.path().join("absent.safetensors");
    assert!(matches!(open(&absent), Err(FormatError::Io { path, .. }) if path == absent));
    assert!(matches!(fault_of(open(folder.path())), SafetensorsFault::NoFiles));
    std::fs::create_dir(folder.path().join("x.safetensors")).unwrap();
    let error = open(folder.path()).unwrap_err();
    assert!(matches!(&error, FormatError::Io { path, .. } if path.ends_with("x.safetensors")), "{error}");
}

#[test]
fn a_config_that_is_no_json_is_an_error_that_names_it() {
    let file = super::index::letters(&["x"]);
    let folder = folder_of(&[("model.safetensors", &file), ("config.json", b"{")]);
    let error = open(folder.path()).unwrap_err();
    assert!(
        matches!(&error, FormatError::Safetensors { path, .. } if path.ends_with("config.json")),
        "{error}"
    );
}

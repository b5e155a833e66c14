//! Fuzz targets: plain tests on a stable compiler, driven further by `cargo bolero test`.

use reshard_formats::safetensors::{Index, SafetensorsFault};

use super::oracle::assert_agree;
use super::support::file_of;
use crate::support::fuzz_time;

/// Words of which a header is made, so that random bytes get past the parser of JSON.
const WORDS: [&str; 32] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"a\"",
    "\"b\"",
    "\"__metadata__\"",
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
    "\"F32\"",
    "\"F4\"",
    "\"U8\"",
    "0",
    "1",
    "2",
    "4",
    "8",
    "16",
    "18446744073709551615",
    "4611686018427387904",
    "null",
    " ",
    "\"a\":{\"dtype\":\"U8\",\"shape\":[",
    "],\"data_offsets\":[0,",
    "]}",
    "\"b\":{\"dtype\":\"F4\",\"shape\":[2,",
    "\"__metadata__\":{",
    "\"\\u0061\"",
    "\u{e9}",
];

fn text_of(words: &[u8]) -> String {
    words.iter().map(|word| WORDS[*word as usize % WORDS.len()]).collect()
}

/// Random words, and after them as many bytes of data as the first byte says.
#[test]
fn fuzz_header() {
    bolero::check!().with_test_time(fuzz_time()).for_each(|input: &[u8]| {
        let (data, words) = input.split_first().map_or((0, input), |(data, words)| (*data, words));
        assert_agree(&file_of(&text_of(words), usize::from(data % 20)));
        let whole = r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
        let mut damaged = file_of(whole, 20);
        for edit in input.chunks_exact(2) {
            let at = usize::from(edit[0]) % (8 + whole.len());
            damaged[at] = edit[1];
        }
        assert_agree(&damaged);
    });
}

#[test]
fn fuzz_index() {
    bolero::check!().with_test_time(fuzz_time()).for_each(|input: &[u8]| {
        let entries = text_of(input).replace("\"F32\"", "\"../x\"").replace("\"U8\"", "\"x/y\"");
        for json in [
            input.to_vec(),
            entries.clone().into_bytes(),
            format!(r#"{{"weight_map":{{{entries}}}}}"#).into(),
        ] {
            match Index::parse(&json) {
                Ok(index) => {
                    assert!(index.files.values().all(|file| !file.is_empty() && !file.contains("..")))
                }
                Err(fault) => assert!(matches!(
                    fault,
                    SafetensorsFault::Json { .. }
                        | SafetensorsFault::RepeatedName { .. }
                        | SafetensorsFault::PathEscapes { .. }
                )),
            }
        }
    });
}

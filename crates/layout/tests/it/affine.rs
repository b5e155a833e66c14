//! The public affine-map form, read and written.

use std::collections::BTreeMap;

use proptest::prelude::*;
use reshard_layout::affine::AffineFile;
use reshard_layout::strategies::layout_pairs;
use reshard_layout::{Kind, Layout, LayoutError, address, coordinate, row_major};

const EXAMPLE: &str = r#"{"version":1,"dtype":"bf16","parameters":{"up":{"logical_shape":[18,4],"ranks":{
    "0":{"shard_shape":[5,4],"pieces":[{"shape":[5,4],"source":[0,[4,1]],"dest":[0,[4,1]],"locations":[0]}]},
    "1":{"shard_shape":[5,4],"pieces":[{"shape":[5,4],"source":[20,[4,1]],"dest":[0,[4,1]],"locations":[1]}]},
    "2":{"shard_shape":[4,4],"pieces":[{"shape":[4,4],"source":[40,[4,1]],"dest":[0,[4,1]],"locations":[2]}]},
    "3":{"shard_shape":[4,4],"pieces":[{"shape":[4,4],"source":[56,[4,1]],"dest":[0,[4,1]],"locations":[3]}]}}}}}"#;

fn read(text: &str) -> Result<Layout, LayoutError> {
    AffineFile::from_json(text)?.to_layout()
}

#[test]
fn the_form_of_the_reference_is_read_and_written_to_the_byte() {
    let layout = read(EXAMPLE).unwrap();
    assert_eq!(layout.piece_count(), 4);
    let written = serde_json::to_string(&AffineFile::from_layout(&layout).unwrap()).unwrap();
    assert_eq!(written, EXAMPLE.split_whitespace().collect::<String>());
}

#[test]
fn says_what_is_wrong_with_a_file() {
    let cases = [
        ("[]", "not a layout file: "),
        (&EXAMPLE.replace("\"version\":1", "\"version\":2"), "not a layout file: version 2 is not 1"),
        (&EXAMPLE.replace("\"3\":", "\"three\":"), "up: the rank \"three\" is not a number"),
        (&EXAMPLE.replace("\"locations\":[2]", "\"locations\":[]"), "up: rank 2: a piece names no holder"),
        (
            &EXAMPLE.replace("\"locations\":[2]", "\"locations\":[2,3]"),
            "up: rank 2: a piece declares the holders [2, 3], held by [2]",
        ),
        (
            &EXAMPLE.replace("[56,[4,1]]", "[57,[4,1]]"),
            "up: rank 3: a piece at offset 57 with extents [4, 4] leaves the parameter of shape [18, 4]",
        ),
        (
            &EXAMPLE.replace(
                "[4,4],\"pieces\":[{\"shape\":[4,4],\"source\":[40",
                "[5,4],\"pieces\":[{\"shape\":[4,4],\"source\":[40",
            ),
            "up: rank 2: pieces account for 16 of the shard's 20 elements",
        ),
    ];
    for (text, expected) in cases {
        let error = read(text).unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        assert_eq!(error.kind(), Kind::Invalid);
    }
}

/// Where each element lies on each rank, counted from the rank's first: (parameter, rank, flat) -> address.
fn elements(layout: &Layout) -> BTreeMap<(String, u32, u64), u64> {
    let mut all = BTreeMap::new();
    for piece in layout.pieces() {
        let parameter = layout.parameter(piece.parameter);
        let strides = row_major(&parameter.shape);
        for index in 0..piece.region.volume() {
            let within = coordinate(index, piece.region.extent());
            let at: Vec<u64> = within.iter().zip(piece.region.origin()).map(|(at, from)| at + from).collect();
            let key = (parameter.name.clone(), piece.rank.0, address(&at, &strides));
            all.insert(key, piece.offset.0 + address(&within, piece.strides));
        }
    }
    let mut firsts: BTreeMap<(String, u32), u64> = BTreeMap::new();
    for ((name, rank, _), at) in &all {
        let first = firsts.entry((name.clone(), *rank)).or_insert(*at);
        *first = (*first).min(*at);
    }
    for ((name, rank, _), at) in &mut all {
        *at -= firsts[&(name.clone(), *rank)];
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// Written maps are valid and say of each element what the layout says.
    #[test]
    fn layouts_survive_the_form((layout, _) in layout_pairs()) {
        if let Some(file) = AffineFile::from_layout(&layout) {
            prop_assert_eq!(elements(&file.to_layout().unwrap()), elements(&layout));
        }
    }
}

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
        (&EXAMPLE.replace("\"3\":", "\"2\":"), "not a layout file: the key \"2\" is given twice"),
        (
            &EXAMPLE.replace("\"locations\":[0]", "\"locations\":[0],\"scal\":2"),
            "not a layout file: unknown field `scal`",
        ),
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

/// One piece of one rank, written out as JSON.
fn one_piece(rank: &str, shape: &str, shard: &str, extents: &str, source: &str, dest: &str) -> String {
    format!(
        r#"{{"version":1,"dtype":"bfloat16","parameters":{{"w":{{"logical_shape":{shape},"ranks":{{"{rank}":
        {{"shard_shape":{shard},"pieces":[{{"shape":{extents},"source":{source},"dest":{dest},"locations":[{rank}]}}]
        }}}}}}}}}}"#
    )
}

#[test]
fn numbers_that_do_not_fit_are_refused_and_not_computed_with() {
    let big = "9223372036854775807";
    let cases = [
        one_piece("4294967295", "[4]", "[4]", "[4]", "[0,[1]]", "[0,[1]]"),
        one_piece("4294967296", "[4]", "[4]", "[4]", "[0,[1]]", "[0,[1]]"),
        one_piece("1048576", "[4]", "[4]", "[4]", "[0,[1]]", "[0,[1]]"),
        one_piece("-1", "[4]", "[4]", "[4]", "[0,[1]]", "[0,[1]]"),
        one_piece("0", "[1099511627776,1099511627776]", "[8]", "[8]", "[0,[1]]", "[0,[1]]"),
        one_piece(
            "0",
            "[1099511627776,1099511627776]",
            "[4,2]",
            "[4,2]",
            "[0,[1099511627776,1]]",
            "[0,[2,1]]",
        ),
        one_piece("0", &format!("[{big},2]"), "[4]", "[4]", "[0,[1]]", "[0,[1]]"),
        one_piece("0", "[4]", "[4]", "[4]", "[0,[1]]", &format!("[0,[{big}]]")),
        one_piece("0", "[4]", "[4]", "[4]", &format!("[0,[{big}]]"), "[0,[1]]"),
        one_piece("0", "[8,2]", "[8]", "[4,2]", "[0,[4,1]]", &format!("[0,[{big},1]]")),
        one_piece("0", "[4]", &format!("[{big}]"), &format!("[{big}]"), "[0,[1]]", "[0,[1]]"),
        one_piece("0", "[4]", "[4]", "[4]", &format!("[{big},[1]]"), &format!("[{big},[1]]")),
        one_piece("0", "[4]", "[4]", "[-4]", "[0,[1]]", "[0,[1]]"),
        one_piece("0", "[4]", "[4]", "[4]", "[0,[0]]", "[0,[1]]"),
        one_piece("0", "[4]", "[4]", "[4]", "[0,[1]]", "[0,[0]]"),
    ];
    for text in &cases {
        read(text).expect_err(text);
    }
    // Five times the whole parameter on one rank: more elements than 64 bits count, like its shard's shape.
    let half = 1u64 << 62;
    let piece = format!(r#"{{"shape":[{half}],"source":[0,[1]],"dest":[0,[1]],"locations":[0]}}"#);
    for shard in ["[1099511627776,1099511627776]", "[18446744073709551615]"] {
        let text = format!(
            r#"{{"version":1,"dtype":"u8","parameters":{{"w":{{"logical_shape":[{half}],"ranks":{{"0":
            {{"shard_shape":{shard},"pieces":[{}]}}}}}}}}}}"#,
            [piece.as_str(); 5].join(",")
        );
        read(&text).expect_err(&text);
    }
    read(&one_piece("1048575", "[4]", "[4]", "[4]", "[0,[1]]", "[0,[1]]")).unwrap();
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
        // A rank that keeps gaps between the pieces of one parameter cannot be said in this form.
        let gaps = layout.parameters().any(|(id, _)| {
            let mut ranks: BTreeMap<u32, (u64, u64, u64)> = BTreeMap::new();
            for piece in layout.pieces_of(id) {
                let last: u64 = piece.region.extent().iter().zip(piece.strides).map(|(n, s)| (n - 1) * s).sum();
                let (first, end, held) = ranks.entry(piece.rank.0).or_insert((u64::MAX, 0, 0));
                *first = (*first).min(piece.offset.0);
                *end = (*end).max(piece.offset.0 + last + 1);
                *held += piece.region.volume();
            }
            ranks.values().any(|(first, end, held)| end - first != *held)
        });
        let file = AffineFile::from_layout(&layout);
        prop_assert_eq!(file.is_none(), gaps);
        if let Some(file) = file {
            prop_assert_eq!(elements(&file.to_layout().unwrap()), elements(&layout));
        }
    }
}

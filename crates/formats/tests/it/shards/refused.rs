//! Files of ranks that contradict each other or themselves, and shards that cannot be written.

use indexmap::IndexMap;
use reshard_formats::FormatError;
use reshard_formats::shards::{BOXES_MAX, ShardSpec, ShardsFault, folder, open};
use reshard_layout::{Block, Elements, Geometry, Kind, Region, Shard};

use super::support::{TOPOLOGY, fault_of, refusal, rows_of, two_ranks, whole};
use crate::safetensors::support::{file_of, folder_with};

fn layout(rank: u32, world: u32, topology: &str, entry: &str) -> String {
    format!(
        r#"{{"version":1,"rank":{rank},"world":{world},"topology":"{topology}","parameters":{{"w":{entry}}}}}"#
    )
}

/// Two ranks with these entries, each a tensor of two elements.
fn two(first: &str, second: &str) -> String {
    refusal(&[(&layout(0, 2, "t", first), &[2]), (&layout(1, 2, "t", second), &[2])])
}

#[test]
fn ranks_that_disagree_are_named() {
    let low = r#"{"shape":[4],"origin":[0]}"#;
    let high = r#"{"shape":[4],"origin":[2]}"#;
    let of = |first: &str, second: &str| refusal(&[(first, &[2]), (second, &[2])]);
    assert_eq!(
        of(&layout(0, 2, "t", low), &layout(1, 3, "t", high)),
        "1.safetensors: 3 ranks, 0.safetensors says 2"
    );
    assert_eq!(
        of(&layout(0, 2, "t", low), &layout(1, 2, "u", high)),
        "1.safetensors: topology u, 0.safetensors says t"
    );
    assert_eq!(
        of(&layout(1, 2, "t", low), &layout(1, 2, "t", high)),
        "1.safetensors: rank 1, which 0.safetensors is too"
    );
    assert_eq!(
        two(low, r#"{"shape":[5],"origin":[2]}"#),
        "1.safetensors: w: rank 1 says u32 of shape [5], rank 0 says u32 of shape [4]"
    );
    assert!(of(&layout(0, 2, "t", low), &layout(2, 2, "t", high)).ends_with("rank 2 of 2 ranks"));
    let many = layout(0, u32::MAX, "t", low);
    assert!(refusal(&[(&many, &[2])]).ends_with("4294967295 ranks, at most 1048576 are allowed"));
    let alone = layout(3, 1 << 20, "t", low);
    let text = refusal(&[(&alone, &[2])]);
    assert!(
        text.ends_with(
            "1048575 of 1048576 ranks have no file: 0, 1, 2, 4, 5, 6, 7, 8, 9, 10 and 1048565 more"
        )
    );
}

#[test]
fn holes_and_overlaps_are_found() {
    let low = r#"{"shape":[5],"origin":[0]}"#;
    let hole = two(low, r#"{"shape":[5],"origin":[3]}"#);
    assert!(hole.ends_with("w: no rank holds box [2]+[1], 1 of 5 elements are missing"), "{hole}");
    let twice = r#"{"shape":[2],"boxes":[
        {"origin":[0],"extent":[1],"offset":0,"strides":[1]},
        {"origin":[0],"extent":[2],"offset":0,"strides":[1]}]}"#;
    assert!(two(twice, r#"{"shape":[2]}"#).contains("rank 0 holds both box"));
    let shared = r#"{"shape":[2],"boxes":[
        {"origin":[0],"extent":[1],"offset":0,"strides":[1]},
        {"origin":[1],"extent":[1],"offset":0,"strides":[1]}]}"#;
    assert!(two(shared, r#"{"shape":[2]}"#).contains("share a byte"));
    let outside = r#"{"shape":[2],"boxes":[{"origin":[0],"extent":[2],"offset":1,"strides":[1]}]}"#;
    assert!(two(outside, r#"{"shape":[2]}"#).contains("up to element 3 of buffer 0, which has 2"));
    let far = r#"{"shape":[2],"boxes":[{"origin":[0],"extent":[2],"offset":18446744073709551615,"strides":[18446744073709551615]}]}"#;
    assert!(two(far, r#"{"shape":[2]}"#).contains("which has 2"));
}

#[test]
fn entries_that_are_no_boxes_are_refused() {
    let good = r#"{"shape":[2]}"#;
    let of = |entry: &str| two(entry, good);
    let no_box = "0.safetensors: w: no box of a parameter of shape [2]";
    assert_eq!(of(r#"{"shape":[2],"origin":[1]}"#), no_box);
    assert_eq!(of(r#"{"shape":[2],"origin":[0,0]}"#), no_box);
    assert_eq!(of(r#"{"shape":[2],"origin":[18446744073709551615]}"#), no_box);
    assert_eq!(of(r#"{"shape":[2],"boxes":[{"origin":[0],"extent":[2],"offset":0,"strides":[]}]}"#), no_box);
    assert!(of(r#"{"shape":[2],"origin":[0],"boxes":[]}"#).contains("an origin and boxes"));
    assert!(of(r#"{"shape":[2],"orgin":[0]}"#).contains("w: unknown field `orgin`"));
    let one = r#"{"origin":[0],"extent":[1],"offset":0,"strides":[1]}"#;
    let many = format!(r#"{{"shape":[2],"boxes":[{}]}}"#, vec![one; BOXES_MAX + 1].join(","));
    assert!(of(&many).ends_with("w: a shard of 4097 boxes, at most 4096 are allowed"));
    let large = r#"{"shape":[18446744073709551615,18446744073709551615],"boxes":[]}"#;
    assert!(two(large, large).contains("does not fit in 64 bits"));
}

#[test]
fn tensors_and_entries_belong_together() {
    let mut without = layout(0, 1, "t", r#"{"shape":[2]}"#).replace("\"w\"", "\"v\"");
    assert_eq!(
        refusal(&[(&without, &[2])]),
        "0.safetensors: w: the layout does not say which part of the parameter it is"
    );
    without = layout(0, 1, "t", r#"{"shape":[2]},"v":{"shape":[2]}"#);
    assert_eq!(refusal(&[(&without, &[2])]), "0.safetensors: v: in the layout, and no tensor of the file");
    let twice = layout(0, 1, "t", r#"{"shape":[2]},"w":{"shape":[2]}"#);
    assert_eq!(refusal(&[(&twice, &[2])]), "0.safetensors: duplicate name w in the layout");
}

#[test]
fn files_that_are_no_shards_are_refused() {
    let header = r#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let folder = folder_with(&[("x.safetensors".into(), file_of(header, 1))]);
    let fault = fault_of(open(folder.path()));
    assert!(matches!(fault, ShardsFault::NoLayout), "{fault}");
    assert!(fault.to_string().contains("no key reshard"));
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(open(empty.path()), Err(FormatError::Safetensors { .. })));
    let layout = layout(0, 1, "t", r#"{"shape":[2]}"#);
    let header = serde_json::json!({
        "__metadata__": {"reshard": layout},
        "w": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]},
    });
    let folder = folder_with(&[("x.safetensors".into(), file_of(&header.to_string(), 1))]);
    assert_eq!(fault_of(open(folder.path())).kind(), Kind::Unsupported);
}

fn written(ranks: &[Vec<ShardSpec>]) -> FormatError {
    folder(ranks, TOPOLOGY, &IndexMap::new()).unwrap_err()
}

#[test]
fn what_cannot_be_written_is_refused() {
    let mut twice = two_ranks();
    let again = twice[0][0].clone();
    twice[0].push(again);
    assert!(written(&twice).to_string().ends_with("duplicate name up"));
    let hole = written(&two_ranks()[..1]).to_string();
    assert!(hole.contains("up: no rank holds box [3, 0]+[3, 4]"), "{hole}");
    let reserved = written(&[vec![whole("__metadata__", &[1])]]);
    assert!(reserved.to_string().contains("cannot be called __metadata__"));
    let padded = Shard::new([4], Geometry::new([3], [Block::dense(Region::whole(&[3]), Elements(0))]));
    let padded = written(&[vec![ShardSpec { shard: padded, ..whole("w", &[3]) }]]).to_string();
    assert!(padded.ends_with("w: rank 0 has a shard of 4 elements, its boxes have 3"), "{padded}");
    let mut block = Block::dense(Region::whole(&[3]), Elements(0));
    block.scale = 0.5;
    let scaled = Shard::new([3], Geometry::new([3], [block]));
    let scaled = written(&[vec![ShardSpec { shard: scaled, ..whole("w", &[3]) }]]);
    assert_eq!(scaled.kind(), Some(Kind::Unsupported));
    let other = ShardSpec { shape: vec![7, 4], ..rows_of("w", [6, 4], &[(0, 6)], false) };
    assert!(written(&[vec![other]]).to_string().ends_with("w: no box of a parameter of shape [7, 4]"));
}

//! Public bug reports: checkpoint files, dtypes, names and tied weights.

use indexmap::IndexMap;
use reshard_formats::safetensors::{Header, SafetensorsFault, TensorSpec, folder, open};
use reshard_formats::{Checkpoint, FileId, FormatError};
use reshard_layout::{Bytes, DType};

use super::index::{index_of, letters};
use super::support::{
    bytes_of, fault_at, file_of, filled, folder_of, folder_with, json, names, open_bytes, refusal, weights,
};
use super::write::spec;

#[test]
fn c01_absent_files_are_listed_with_the_tensors_they_take_along() {
    let index = index_of(
        &[
            ("a", "model-1.safetensors"),
            ("b", "sub/model-2.safetensors"),
            ("c", "sub/model-2.safetensors"),
            ("d", "model-3.safetensors"),
        ],
        "{}",
    );
    let broken = b"not even a header";
    let folder = folder_of(&[
        ("model.safetensors.index.json", &index),
        ("model-1.safetensors", broken),
        ("model-3.safetensors", broken),
    ]);
    let fault = fault_at(folder.path());
    let expected = "1 of 3 files of the index are absent, and with them 2 tensors: sub/model-2.safetensors";
    assert_eq!(fault.to_string(), expected, "found before a file is read: the others are broken");
}

#[test]
fn c05_a_range_has_one_owner() {
    let header = |first: &str, second: &str| {
        format!(
            r#"{{"k":{{"dtype":"F32","shape":[4],"data_offsets":{first}}},"v":{{"dtype":"F32","shape":[4],"data_offsets":{second}}}}}"#
        )
    };
    let same = "k and v overlap: v begins at byte 0, k ends at 16";
    assert_eq!(refusal(&header("[0,16]", "[0,16]"), 16), same);
    let part = "k and v overlap: v begins at byte 8, k ends at 16";
    assert_eq!(refusal(&header("[0,16]", "[8,24]"), 24), part);
    assert!(open_bytes(&file_of(&header("[0,16]", "[16,32]"), 32)).is_ok());
}

#[test]
fn c07_shape_type_range_header_and_file_agree() {
    let header = r#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
    let half = refusal(header, 8);
    assert_eq!(half, "w ends at byte 16 of the data, of which the file has 8");
    let reversed = header.replace("[0,16]", "[16,0]");
    assert_eq!(refusal(&reversed, 16), "w: its bytes begin at 16 and end at 0");
    let large = header.replace("[4]", "[1024,1024]").replace("[0,16]", "[0,4]");
    assert_eq!(refusal(&large, 4), "w: F32 of shape [1024, 1024] takes 4194304 bytes, its range has 4");
    let overflow = header.replace("[4]", "[1099511627776,1099511627776]");
    let expected = "w: the size of F32 of shape [1099511627776, 1099511627776] does not fit in 64 bits";
    assert_eq!(refusal(&overflow, 16), expected);
    let mut longer = file_of(header, 0);
    longer[0] += 1;
    let Err(FormatError::Safetensors { fault, .. }) = open_bytes(&longer) else { panic!() };
    assert_eq!(
        fault.to_string(),
        format!("a header of {} bytes in a file of {}", header.len() + 1, longer.len())
    );
}

#[test]
fn c08_a_name_twice_is_said_so() {
    let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    assert_eq!(refusal(header, 2), "duplicate name a");
    assert_eq!(refusal(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), "duplicate name __metadata__");
    assert_eq!(refusal(r#"{"__metadata__":{"x":"1","x":"2"}}"#, 0), "duplicate key x in the metadata");
}

#[test]
fn c09_the_name_of_the_metadata_is_reserved_and_lonely_or_empty_metadata_is_read() {
    let refused = folder(&[spec("__metadata__", &[1], DType::U8)], &IndexMap::new(), 10);
    let Err(FormatError::Safetensors { fault: SafetensorsFault::ReservedName, .. }) = refused else {
        panic!("{refused:?}")
    };
    let lonely = open_bytes(&file_of(r#"{"__metadata__":{"step":"3"}}"#, 0)).unwrap();
    assert_eq!(names(&lonely).len(), 0);
    assert_eq!(lonely.facts.metadata["step"], "3");
    for metadata in ["{}", "null"] {
        let header =
            format!(r#"{{"__metadata__":{metadata},"w":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        let checkpoint = open_bytes(&file_of(&header, 1)).unwrap();
        assert_eq!((names(&checkpoint), checkpoint.facts.metadata.len()), (vec!["w"], 0));
    }
}

/// Two files and their index, moved as a folder, are all that a reader needs.
#[test]
fn c11_a_written_folder_is_whole_on_its_own() {
    let specs = [spec("a", &[4], DType::F32), spec("b", &[4], DType::F32)];
    let (files, part) = folder(&specs, &IndexMap::new(), 16).unwrap();
    let bytes = |name: &str| name.repeat(16).into_bytes();
    let written = folder_with(&filled(&files, &part, bytes));
    let moved = tempfile::tempdir().unwrap();
    let moved = moved.path().join("elsewhere");
    std::fs::rename(written.path(), &moved).unwrap();
    let checkpoint = open(&moved).unwrap();
    assert_eq!((bytes_of(&checkpoint, "a"), bytes_of(&checkpoint, "b")), (bytes("a"), bytes("b")));
    let index = json(&std::fs::read(moved.join("model.safetensors.index.json")).unwrap());
    assert_eq!(index["metadata"]["total_size"], 32);
    std::fs::create_dir(written.path()).unwrap();
}

/// A block scale is a tensor like any other: float8 weights of 576 rows have 5 rows of scales.
#[test]
fn d01_block_scales_are_read_as_the_tensors_they_are() {
    let specs = [spec("w", &[576, 256], DType::F8E4m3), spec("w_scale_inv", &[5, 2], DType::F32)];
    let (files, part) = folder(&specs, &IndexMap::new(), u64::MAX).unwrap();
    let scale: Vec<u8> = (0..10u8).flat_map(|at| f32::from(at).to_le_bytes()).collect();
    let bytes = |name: &str| if name == "w" { vec![3; 576 * 256] } else { scale.clone() };
    let folder = folder_with(&filled(&files, &part, bytes));
    let checkpoint = open(folder.path()).unwrap();
    let layout = &weights(&checkpoint).layout;
    let parameter = |name: &str| layout.parameter(layout.find(name).unwrap());
    assert_eq!(parameter("w").dtype, DType::F8E4m3);
    assert_eq!(parameter("w_scale_inv").shape.as_slice(), [5, 2]);
    assert_eq!(bytes_of(&checkpoint, "w_scale_inv"), scale);
}

/// The type in the header is the type in the layout, and the bits are the file's: 1 + 2^-10 is no bf16 value.
#[test]
fn d05_types_and_bits_are_kept() {
    let value = (1.0 + 2f32.powi(-10)).to_le_bytes();
    let specs = [spec("router.weight", &[1], DType::F32), spec("w", &[1], DType::Bf16)];
    let (files, part) = folder(&specs, &IndexMap::new(), u64::MAX).unwrap();
    let bytes = |name: &str| if name == "w" { vec![0x80, 0x3f] } else { value.to_vec() };
    let folder = folder_with(&filled(&files, &part, bytes));
    let checkpoint = open(folder.path()).unwrap();
    let layout = &weights(&checkpoint).layout;
    assert_eq!(layout.parameter(layout.find("router.weight").unwrap()).dtype, DType::F32);
    assert_eq!(bytes_of(&checkpoint, "router.weight"), value);
}

/// Packed types lie in the layout as bytes on one axis, so that no plan can cut a row inside a byte or a group.
#[test]
fn d10_packed_types_are_bytes_and_keep_their_shape_beside() {
    let packed = Some(("F4".to_owned(), vec![107, 128]));
    let specs = [TensorSpec { packed: packed.clone(), ..spec("w", &[6848], DType::U8) }];
    let (files, part) = folder(&specs, &IndexMap::new(), u64::MAX).unwrap();
    let folder = folder_with(&filled(&files, &part, |_| vec![0x21; 6848]));
    let checkpoint = open(folder.path()).unwrap();
    let layout = &weights(&checkpoint).layout;
    let parameter = layout.parameter(layout.find("w").unwrap());
    assert_eq!((parameter.dtype, parameter.shape.as_slice()), (DType::U8, [6848].as_slice()));
    assert_eq!(checkpoint.facts.packed.get("w"), packed.as_ref());
    let odd = r#"{"w":{"dtype":"F6_E2M3","shape":[3],"data_offsets":[0,2]}}"#;
    assert_eq!(refusal(odd, 2), "w: F6_E2M3 of shape [3] takes 18 bits, which are no whole bytes");
}

const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

fn with_config(tensors: &[&str], config: &str) -> Checkpoint {
    let folder = folder_of(&[("model.safetensors", &letters(tensors)), ("config.json", config.as_bytes())]);
    open(folder.path()).unwrap()
}

/// A reader that wants both names finds both, whether the writer dropped the second or wrote it out.
#[test]
fn n02_tied_weights_are_read_from_either_policy() {
    let tied = r#"{"tie_word_embeddings": true}"#;
    let dropped = with_config(&[EMBEDDING, "other"], tied);
    let layout = &weights(&dropped).layout;
    assert_eq!(layout.find(HEAD), layout.find(EMBEDDING));
    assert!(layout.find(HEAD).is_some());
    assert_eq!(layout.parameters().len(), 2);
    let duplicated = with_config(&[EMBEDDING, HEAD], tied);
    let layout = &weights(&duplicated).layout;
    assert_ne!(layout.find(HEAD).unwrap(), layout.find(EMBEDDING).unwrap());
    let nested = with_config(
        &["model.language_model.embed_tokens.weight"],
        r#"{"text_config": {"tie_word_embeddings": true}}"#,
    );
    assert!(weights(&nested).layout.find(HEAD).is_some());
    for untied in [r#"{"tie_word_embeddings": false}"#, "{}", r#"{"tie_word_embeddings": "true"}"#] {
        assert!(weights(&with_config(&[EMBEDDING], untied)).layout.find(HEAD).is_none(), "{untied}");
    }
}

/// Names are taken as they are: nothing is renamed, and both spellings can stand in one list.
#[test]
fn n06_names_are_read_unchanged() {
    let both = ["model.language_model.layers.0.w", "language_model.model.layers.0.w"];
    let checkpoint = open_bytes(&letters(&both)).unwrap();
    assert_eq!(names(&checkpoint), both);
    assert_eq!((bytes_of(&checkpoint, both[0]), bytes_of(&checkpoint, both[1])), (vec![0], vec![1]));
}

/// Stacked experts in one block, single ones in the next, and a shared one: each as the file has it.
#[test]
fn n08_stacked_and_single_experts_stand_side_by_side() {
    let specs = [
        spec("layers.0.experts.w", &[4, 2, 3], DType::F32),
        spec("layers.1.experts.0.w", &[2, 3], DType::F32),
        spec("layers.1.experts.3.w", &[2, 3], DType::F32),
        spec("layers.1.shared_expert.w", &[2, 3], DType::F32),
    ];
    let (files, part) = folder(&specs, &IndexMap::new(), u64::MAX).unwrap();
    let folder = folder_with(&filled(&files, &part, |name| {
        vec![0; if name.contains("0.experts.w") { 96 } else { 24 }]
    }));
    let checkpoint = open(folder.path()).unwrap();
    let layout = &weights(&checkpoint).layout;
    for spec in &specs {
        assert_eq!(layout.parameter(layout.find(&spec.name).unwrap()).shape.as_slice(), spec.shape);
    }
}

#[test]
fn a_header_says_where_its_tensors_lie_in_the_file() {
    let json = r#"{"w":{"dtype":"F32","shape":[],"data_offsets":[0,4]}} "#;
    let header = Header::parse(json.as_bytes(), Bytes(8 + json.len() as u64 + 4)).unwrap();
    let before = 8 + json.len() as u64;
    assert_eq!(header.tensors[0].range, before..before + 4);
    assert_eq!(header.tensors[0].span(FileId(3)).offset, Bytes(before));
}

//! Folders: with an index, with one file, with several; published indexes.

use reshard_formats::safetensors::{Index, SafetensorsFault, open};

use super::support::{bytes_of, fault_at, file_of, folder_of, ground_truth, names, weights};

/// A file of one-byte tensors; each byte is its place in the file.
pub(crate) fn letters(names: &[&str]) -> Vec<u8> {
    let entry = |(at, name): (usize, &&str)| {
        format!(r#""{name}":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{}]}}"#, at + 1)
    };
    let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
    file_of(&format!("{{{}}}", entries.join(",")), names.len())
}

pub(crate) fn index_of(entries: &[(&str, &str)], metadata: &str) -> Vec<u8> {
    let entries: Vec<String> = entries.iter().map(|(name, file)| format!("{name:?}:{file:?}")).collect();
    format!(r#"{{"metadata":{metadata},"weight_map":{{{}}}}}"#, entries.join(",")).into_bytes()
}

#[test]
fn several_files_without_an_index_are_all_read() {
    let folder = folder_of(&[
        ("b.safetensors", &letters(&["x", "y"])),
        ("a.safetensors", &letters(&["z"])),
        (".half.safetensors", b"unfinished"),
        ("readme.md", b"text"),
    ]);
    let checkpoint = open(folder.path()).unwrap();
    assert_eq!(names(&checkpoint), ["z", "x", "y"]);
    assert_eq!(bytes_of(&checkpoint, "y"), [1]);
    assert_eq!(checkpoint.root, folder.path());
}

#[test]
fn a_single_file_is_read_without_an_index_and_others_beside_it_are_not() {
    let other = letters(&["other"]);
    let folder = folder_of(&[("model.safetensors", &letters(&["x"])), ("adapter.safetensors", &other)]);
    assert_eq!(names(&open(folder.path()).unwrap()), ["x"]);
    assert_eq!(names(&open(&folder.path().join("adapter.safetensors")).unwrap()), ["other"]);
}

#[test]
fn an_index_can_be_named_or_found() {
    let index = index_of(&[("x", "sub/b.safetensors")], "{}");
    let file = letters(&["x"]);
    let usual = folder_of(&[("model.safetensors.index.json", &index), ("sub/b.safetensors", &file)]);
    assert_eq!(names(&open(usual.path()).unwrap()), ["x"]);
    assert_eq!(names(&open(&usual.path().join("model.safetensors.index.json")).unwrap()), ["x"]);
    let other = folder_of(&[("unet.safetensors.index.json", &index), ("sub/b.safetensors", &file)]);
    assert_eq!(names(&open(other.path()).unwrap()), ["x"]);
    let two = folder_of(&[("u.safetensors.index.json", &index), ("v.safetensors.index.json", &index)]);
    assert!(
        matches!(fault_at(two.path()), SafetensorsFault::SeveralIndexes { indexes } if indexes.len() == 2)
    );
}

#[test]
fn a_name_in_two_files_without_an_index_is_an_error() {
    let folder = folder_of(&[("a.safetensors", &letters(&["x"])), ("b.safetensors", &letters(&["y", "x"]))]);
    let fault = fault_at(folder.path());
    assert_eq!(fault.to_string(), "x is in a.safetensors and in b.safetensors");
}

#[test]
fn the_index_says_which_of_two_is_meant_and_what_it_does_not_name_is_read_with_a_note() {
    let files = [("a.safetensors", letters(&["y", "x"])), ("b.safetensors", letters(&["x", "extra"]))];
    let index =
        index_of(&[("x", "a.safetensors"), ("y", "a.safetensors"), ("extra2", "b.safetensors")], "{}");
    let absent = folder_of(&[
        (files[0].0, &files[0].1),
        (files[1].0, &files[1].1),
        ("i.safetensors.index.json", &index),
    ]);
    assert_eq!(fault_at(absent.path()).to_string(), "1 tensors of the index are not in their file: extra2");
    let b = letters(&["x", "extra", "named"]);
    let index = index_of(
        &[("x", "a.safetensors"), ("y", "a.safetensors"), ("named", "b.safetensors")],
        r#"{"total_size": 99}"#,
    );
    let folder =
        folder_of(&[(files[0].0, &files[0].1), ("b.safetensors", &b), ("i.safetensors.index.json", &index)]);
    let checkpoint = open(folder.path()).unwrap();
    assert_eq!(names(&checkpoint), ["y", "x", "extra", "named"]);
    assert_eq!(bytes_of(&checkpoint, "x"), [1], "the one in a.safetensors");
    let notes = [
        "read, though the index does not name them: extra",
        "left out, the index means another file: x in b.safetensors",
        "total_size of the index is 99, its tensors have 3 bytes",
    ];
    assert_eq!(checkpoint.facts.notes, notes);
}

#[test]
fn odd_metadata_of_an_index_is_no_error() {
    for metadata in
        ["{}", "null", r#"{"total_size":"3"}"#, r#"{"total_size":1.0}"#, "[]", r#"{"total_size":1}"#]
    {
        let index = Index::parse(&index_of(&[("x", "a.safetensors")], metadata)).unwrap();
        assert_eq!(index.total_size, (metadata == r#"{"total_size":1}"#).then_some(1), "{metadata}");
    }
    let bare = Index::parse(br#"{"weight_map": {}}"#).unwrap();
    assert_eq!((bare.files.len(), bare.total_size), (0, None));
}

#[test]
fn indexes_that_are_none_are_refused() {
    let fault = |json: &str| Index::parse(json.as_bytes()).unwrap_err().to_string();
    assert_eq!(fault(r#"{"weight_map": {"a": "x", "b": "x", "a": "y"}}"#), "duplicate name a");
    assert!(fault("{}").contains("weight_map"));
    assert!(fault(r#"{"weight_map": {"a": 3}}"#).contains("a: invalid type: integer"));
    for path in ["../x", "/x", "a/../../x", "", ".", "./x", "a/.."] {
        let found = Index::parse(&index_of(&[("w", path)], "{}"));
        assert!(
            matches!(&found, Err(SafetensorsFault::PathEscapes { tensor, file }) if tensor == "w" && file == path),
            "{path}: {found:?}"
        );
    }
}

/// Name, tensors and files of the published indexes; the counts were taken with another JSON reader.
const PUBLISHED: [(&str, usize, usize, u64); 5] = [
    ("Llama-3.1-70B-tune", 723, 162, 282_215_219_200),
    ("Llama-3.1-8B-int8-tune", 739, 6, 11_188_584_672),
    ("Mixtral-8x22B-instruct-tune", 1_739, 59, 281_241_268_224),
    ("Qwen3-1.7B-tune", 310, 1, 3_441_149_952),
    ("Qwen3.5-25B-REAP-A3B", 22_213, 10, 50_182_743_296),
];

/// The published indexes are read; without their files the error counts what is absent, before any is opened.
#[test]
fn published_indexes_are_read() {
    for (model, tensors, files, total_size) in PUBLISHED {
        let name = format!("{model}.index.json");
        let Some(json) = ground_truth(&format!("models/index/{name}")) else { continue };
        let index = Index::parse(&json).unwrap();
        assert_eq!((index.files.len(), index.file_names().len()), (tensors, files), "{model}");
        assert_eq!(index.total_size, Some(total_size));
        let folder = folder_of(&[("model.safetensors.index.json", &json)]);
        let fault = fault_at(folder.path());
        let SafetensorsFault::FilesAbsent { files: absent, named, tensors: affected } = fault else {
            panic!("{model}: {fault}")
        };
        assert_eq!((absent.len(), named, affected), (files, files, tensors));
        assert_eq!(absent, index.file_names());
    }
}

/// The shapes and types of a published model, as a folder without data: the names, sizes and the tied head.
#[test]
fn a_folder_of_a_published_model_is_laid_out_and_read() {
    use super::write::spec;
    let (Some(manifest), Some(config)) =
        (ground_truth("models/Qwen3-0.6B.manifest.json"), ground_truth("models/Qwen3-0.6B.json"))
    else {
        return;
    };
    let manifest = super::support::json(&manifest);
    let mut specs = Vec::new();
    for (name, tensor) in manifest["tensors"].as_object().unwrap() {
        let shape: Vec<u64> =
            tensor["shape"].as_array().unwrap().iter().map(|e| e.as_u64().unwrap()).collect();
        assert_eq!(tensor["dtype"], "BF16");
        specs.push(spec(name, &shape, reshard_layout::DType::Bf16));
    }
    let (files, _) =
        reshard_formats::safetensors::folder(&specs, &indexmap::IndexMap::new(), 500_000_000).unwrap();
    let folder = folder_of(&[("config.json", &config)]);
    for file in &files {
        use std::os::unix::fs::FileExt;
        let sparse = std::fs::File::create(folder.path().join(&file.path)).unwrap();
        sparse.set_len(file.length).unwrap();
        for known in &file.known {
            sparse.write_all_at(&known.bytes, known.offset).unwrap();
        }
    }
    let checkpoint = open(folder.path()).unwrap();
    let layout = &weights(&checkpoint).layout;
    assert_eq!(layout.parameters().len(), 310);
    let bytes: u64 = weights(&checkpoint).spans.iter().map(|span| span.length.0).sum();
    assert_eq!(bytes, 1_192_099_840, "596,049,920 parameters of two bytes");
    assert_eq!(layout.find("lm_head.weight"), layout.find("model.embed_tokens.weight"));
    assert!(checkpoint.facts.config.is_some() && checkpoint.facts.notes.is_empty());
}

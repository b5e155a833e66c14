//! What is laid out here is what the official crate writes and reads.

use std::collections::HashMap;

use indexmap::IndexMap;
use proptest::prelude::*;
use reshard_formats::FormatError;
use reshard_formats::safetensors::{SafetensorsFault, StoredType, TensorSpec, folder, open};
use reshard_layout::DType;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;

use super::support::{bytes_of, filled, folder_with, json as parse, names, weights};

pub(crate) fn spec(name: &str, shape: &[u64], dtype: DType) -> TensorSpec {
    TensorSpec { name: name.to_owned(), shape: shape.to_vec(), dtype, packed: None }
}

fn packed(name: &str, bytes: u64, dtype: &str, shape: &[u64]) -> TensorSpec {
    let packed = Some((dtype.to_owned(), shape.to_vec()));
    TensorSpec { packed, ..spec(name, &[bytes], DType::U8) }
}

/// The bytes of a tensor: its name again and again, with a counter, so that each place has its own.
fn contents(spec: &TensorSpec) -> Vec<u8> {
    let length = spec.shape.iter().product::<u64>() * spec.dtype.size();
    (0..length)
        .map(|at| (at as u8) ^ spec.name.as_bytes()[at as usize % spec.name.len()].rotate_left(3))
        .collect()
}

fn contents_of(specs: &[TensorSpec]) -> impl Fn(&str) -> Vec<u8> {
    let all: HashMap<String, Vec<u8>> =
        specs.iter().map(|spec| (spec.name.clone(), contents(spec))).collect();
    move |name| all[name].clone()
}

fn official_type(name: &str) -> Dtype {
    serde_json::from_value(json!(name)).unwrap()
}

/// Type and shape in the file.
fn in_file(spec: &TensorSpec) -> (Dtype, Vec<usize>) {
    let (dtype, shape) = match &spec.packed {
        Some((dtype, shape)) => (official_type(dtype), shape),
        None => (official_type(StoredType::of(spec.dtype).unwrap().name()), &spec.shape),
    };
    (dtype, shape.iter().map(|extent| *extent as usize).collect())
}

fn official_file(specs: &[TensorSpec]) -> Vec<u8> {
    let all: Vec<(String, Vec<u8>)> = specs.iter().map(|spec| (spec.name.clone(), contents(spec))).collect();
    let views = specs.iter().zip(&all).map(|(spec, (name, bytes))| {
        let (dtype, shape) = in_file(spec);
        (name.as_str(), TensorView::new(dtype, shape, bytes).unwrap())
    });
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    serialize(views, Some(metadata)).unwrap()
}

fn specs() -> impl Strategy<Value = Vec<TensorSpec>> {
    let tensor = ("[a-e./]{1,4}", 0usize..22, prop::collection::vec(0u64..5, 0..4));
    prop::collection::vec(tensor, 0..8).prop_map(|tensors| {
        let mut specs: Vec<TensorSpec> = Vec::new();
        for (name, dtype, shape) in tensors {
            let stored = StoredType::all()[dtype];
            let bits = shape.iter().product::<u64>() * stored.bits();
            if specs.iter().any(|known| known.name == name) || !bits.is_multiple_of(8) {
                continue;
            }
            specs.push(match stored.dtype() {
                Some(dtype) => spec(&name, &shape, dtype),
                None => packed(&name, bits / 8, stored.name(), &shape),
            });
        }
        specs
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn one_file_is_byte_for_byte_what_the_official_crate_writes(specs in specs()) {
        let (files, part) = folder(&specs, &IndexMap::new(), u64::MAX).unwrap();
        let written = filled(&files, &part, contents_of(&specs));
        prop_assert_eq!(written.len(), 1);
        prop_assert_eq!(&written[0].1, &official_file(&specs));
    }

    #[test]
    fn files_of_any_limit_are_read_by_the_official_crate_and_here(specs in specs(), limit in 0u64..80) {
        let (files, part) = folder(&specs, &IndexMap::new(), limit).unwrap();
        let written = filled(&files, &part, contents_of(&specs));
        let mut unread: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        for (path, bytes) in written.iter().filter(|(path, _)| path.extension().unwrap() == "safetensors") {
            let file = SafeTensors::deserialize(bytes).unwrap();
            let mut held = 0;
            for (name, view) in file.tensors() {
                let spec = specs.iter().find(|spec| spec.name == name).unwrap();
                prop_assert_eq!((view.dtype(), view.shape().to_vec()), in_file(spec));
                prop_assert_eq!(view.data(), contents(spec));
                held += view.data().len() as u64;
                unread.retain(|unread| *unread != name);
            }
            prop_assert!(held <= limit || file.len() == 1, "{} holds {held} bytes", path.display());
        }
        prop_assert!(unread.is_empty(), "{unread:?} in no file");
        let folder = folder_with(&written);
        let checkpoint = open(folder.path()).unwrap();
        prop_assert_eq!(names(&checkpoint).len(), specs.len());
        for spec in &specs {
            prop_assert_eq!(bytes_of(&checkpoint, &spec.name), contents(spec));
            prop_assert_eq!(checkpoint.facts.packed.get(&spec.name), spec.packed.as_ref());
        }
        prop_assert!(checkpoint.facts.notes.is_empty(), "{:?}", checkpoint.facts.notes);
    }
}

/// Numbers by hand: 12 + 8 + 40 + 4 bytes under a limit of 20.
#[test]
fn files_are_filled_in_the_order_given_and_a_large_tensor_gets_its_own() {
    let specs = [
        spec("d", &[3], DType::F32),
        spec("c", &[4], DType::Bf16),
        spec("b", &[10], DType::F32),
        spec("a", &[1], DType::F32),
    ];
    let (files, part) = folder(&specs, &IndexMap::new(), 20).unwrap();
    let paths: Vec<&str> = files.iter().map(|file| file.path.to_str().unwrap()).collect();
    let model = |at| format!("model-0000{at}-of-00003.safetensors");
    assert_eq!(paths, [model(1), model(2), model(3), "model.safetensors.index.json".to_owned()]);
    let index = parse(&files[3].known[0].bytes);
    assert_eq!(files[3].length, files[3].known[0].bytes.len() as u64);
    let expected = json!({
        "metadata": {"total_size": 64},
        "weight_map": {"a": model(3), "b": model(2), "c": model(1), "d": model(1)},
    });
    assert_eq!(index, expected);
    let at = |name: &str| {
        let id = part.layout.find(name).unwrap();
        let span = part.spans[part.layout.instances(id)[0].buffer.index()];
        (span.file.0, span.offset.0 - (files[span.file.index()].known[0].bytes.len() as u64), span.length.0)
    };
    assert_eq!([at("a"), at("b"), at("c"), at("d")], [(2, 0, 4), (1, 0, 40), (0, 12, 8), (0, 0, 12)]);
}

#[test]
fn every_tensor_begins_at_a_multiple_of_its_element() {
    let specs: Vec<TensorSpec> = StoredType::all()
        .iter()
        .filter_map(|stored| Some(spec(&stored.name().to_lowercase(), &[3], stored.dtype()?)))
        .collect();
    let (_, part) = folder(&specs, &IndexMap::new(), u64::MAX).unwrap();
    assert_eq!(part.spans.len(), 19);
    for (storage, span) in part.layout.places().storages.iter().zip(&part.spans) {
        let size = part.layout.parameter(part.layout.find(&storage.name).unwrap()).dtype.size();
        assert_eq!(span.offset.0 % size, 0, "{}", storage.name);
    }
}

#[test]
fn metadata_of_the_caller_is_kept() {
    let metadata =
        IndexMap::from([("format".to_owned(), "np".to_owned()), ("step".to_owned(), "7".to_owned())]);
    let (files, part) = folder(&[], &metadata, 10).unwrap();
    let folder = folder_with(&filled(&files, &part, |_| unreachable!()));
    let checkpoint = open(folder.path()).unwrap();
    assert_eq!(checkpoint.facts.metadata, metadata);
    assert_eq!(weights(&checkpoint).layout.parameters().len(), 0);
}

#[test]
fn what_cannot_be_written_is_refused_by_name() {
    let refusal = |specs: &[TensorSpec]| match folder(specs, &IndexMap::new(), 10) {
        Err(FormatError::Safetensors { fault, .. }) => fault,
        other => panic!("{other:?}"),
    };
    let twice = [spec("a", &[1], DType::F32), spec("a", &[1], DType::F32)];
    assert!(matches!(refusal(&twice), SafetensorsFault::RepeatedName { name } if name == "a"));
    let huge = [spec("a", &[1 << 40, 1 << 40], DType::F32)];
    assert!(matches!(refusal(&huge), SafetensorsFault::SizeOverflow { .. }));
    let sum = [spec("a", &[1 << 60], DType::U8), spec("b", &[u64::MAX >> 3], DType::U8)];
    assert!(folder(&sum, &IndexMap::new(), 10).is_ok());
    let unknown = [packed("a", 2, "F3", &[5])];
    assert!(matches!(refusal(&unknown), SafetensorsFault::UnknownType { dtype, .. } if dtype == "F3"));
    let odd = [packed("a", 2, "F4", &[3])];
    assert!(matches!(refusal(&odd), SafetensorsFault::PartOfByte { bits: 12, .. }));
    let other = [packed("a", 3, "F4", &[4])];
    assert!(matches!(refusal(&other), SafetensorsFault::PackedDisagrees { .. }));
}

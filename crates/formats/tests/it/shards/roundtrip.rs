//! What is written is read back, element by element, and each file alone is a plain safetensors file.

use indexmap::IndexMap;
use proptest::prelude::*;
use reshard_formats::shards::{RankLayout, folder, open, recognise};
use reshard_formats::{Checkpoint, Format, safetensors as plain};
use safetensors::SafeTensors;

use super::support::{TOPOLOGY, bytes, gathered, listed, rows_of, two_files, whole};
use crate::safetensors::support::{folder_with, json, poisoned, weights};

/// Segments of rows, each cut over the ranks at any places: what a rank has of each lies one after another.
fn cuts() -> impl Strategy<Value = (u64, Vec<Vec<u64>>, bool)> {
    (1usize..5).prop_flat_map(|world| {
        let segment = prop::collection::vec(0u64..4, world);
        (1u64..5, prop::collection::vec(segment, 1..4), any::<bool>())
    })
}

/// The stretches of rows of one rank.
fn rows_of_rank(segments: &[Vec<u64>], rank: usize) -> Vec<(u64, u64)> {
    let mut rows = Vec::new();
    let mut begin = 0;
    for widths in segments {
        let first = begin + widths[..rank].iter().sum::<u64>();
        if widths[rank] > 0 {
            rows.push((first, first + widths[rank]));
        }
        begin += widths.iter().sum::<u64>();
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn fused_uneven_and_transposed_shards_are_read_back((columns, segments, transposed) in cuts()) {
        let height = segments.iter().flatten().sum::<u64>();
        let world = segments[0].len();
        let shape = [height, columns];
        let rows: Vec<_> = (0..world).map(|rank| rows_of_rank(&segments, rank)).collect();
        let specs: Vec<_> = rows
            .iter()
            .map(|rows| vec![rows_of("w", shape, rows, transposed), whole("all", &[2, 3])])
            .collect();
        let (files, part) = folder(&specs, TOPOLOGY, &IndexMap::new()).unwrap();
        let mut written = poisoned(&files);
        prop_assert_eq!(written.len(), world);
        for (rank, rows) in rows.iter().enumerate() {
            let elements = listed(columns, rows, transposed);
            fill(&mut written[rank].1, "w", &bytes(&elements));
            fill(&mut written[rank].1, "all", &bytes(&[0, 1, 2, 3, 4, 5]));
        }
        let folder = folder_with(&written);
        let checkpoint = open(folder.path()).unwrap();
        let mut expected = Vec::new();
        for (rank, rows) in rows.iter().enumerate() {
            expected.extend(listed(columns, rows, false).iter().map(|at| (rank as u32, u64::from(*at), *at)));
        }
        expected.sort_unstable();
        prop_assert_eq!(gathered(&checkpoint, "w"), expected);
        let replicas = gathered(&checkpoint, "all");
        prop_assert_eq!(replicas.len(), 6 * world);
        prop_assert!(replicas.iter().all(|(_, flat, value)| *flat == u64::from(*value)));
        prop_assert_eq!(&weights(&checkpoint).layout, &part.layout);
    }
}

/// Puts a tensor's bytes where the official crate finds the tensor.
fn fill(file: &mut [u8], name: &str, data: &[u8]) {
    let copy = file.to_vec();
    let read = SafeTensors::deserialize(&copy).unwrap();
    let tensor = read.tensor(name).unwrap().data();
    assert_eq!(tensor.len(), data.len(), "{name}");
    let at = tensor.as_ptr() as usize - copy.as_ptr() as usize;
    file[at..at + data.len()].copy_from_slice(data);
}

#[test]
fn plain_boxes_stay_short() {
    let written = two_files();
    let (_, header) = SafeTensors::read_metadata(&written[1].1).unwrap();
    let text = &header.metadata().as_ref().unwrap()["reshard"];
    let expected = concat!(
        r#"{"version":1,"rank":1,"world":2,"topology":"autotp:tp=2","parameters":"#,
        r#"{"up":{"shape":[6,4],"origin":[3,0]},"norm":{"shape":[3]}}}"#
    );
    assert_eq!(text, expected);
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    assert_eq!(RankLayout::parse(text).unwrap().to_json().unwrap(), *text);
    assert_eq!(written[1].0.to_str(), Some("model-rank-00001-of-00002.safetensors"));
}

#[test]
fn fused_shards_name_their_boxes() {
    let rows = [[(0, 1), (2, 4)], [(1, 2), (4, 6)]];
    let specs: Vec<_> = rows.iter().map(|rows| vec![rows_of("qkv", [6, 4], rows, false)]).collect();
    let (files, _) = folder(&specs, "", &IndexMap::new()).unwrap();
    let (_, header) =
        SafeTensors::read_metadata(&[files[1].known[0].bytes.clone(), vec![0; 48]].concat()).unwrap();
    let layout = json(header.metadata().as_ref().unwrap()["reshard"].as_bytes());
    let expected = serde_json::json!({"shape": [6, 4], "boxes": [
        {"origin": [1, 0], "extent": [1, 4], "offset": 0, "strides": [0, 1]},
        {"origin": [4, 0], "extent": [2, 4], "offset": 4, "strides": [4, 1]},
    ]});
    assert_eq!(layout["parameters"]["qkv"], expected);
}

#[test]
fn a_folder_is_recognised_and_opened_by_any_of_its_files() {
    let folder = folder_with(&two_files());
    assert!(recognise(folder.path()).unwrap());
    let file = folder.path().join("model-rank-00001-of-00002.safetensors");
    assert!(recognise(&file).unwrap());
    let checkpoint = open(&file).unwrap();
    assert_eq!((checkpoint.format, checkpoint.root.as_path()), (Format::Shards, folder.path()));
    assert_eq!(checkpoint.facts.metadata["topology"], TOPOLOGY);
    assert_eq!(checkpoint.files.len(), 2);
    assert_eq!(weights(&checkpoint).layout.world(), 2);
    let found = Checkpoint::open(&file).unwrap();
    assert_eq!(
        (found.format, found.files.len()),
        (Format::Shards, 2),
        "never half of a model as a whole one"
    );
    let other = folder_with(&[("model.safetensors".into(), crate::safetensors::support::file_of("{}", 0))]);
    assert!(!recognise(other.path()).unwrap());
    assert!(plain::open(other.path()).is_ok());
}

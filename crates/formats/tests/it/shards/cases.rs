//! Public bug reports: names of files, versions, zero widths, tied and packed parameters.

use indexmap::IndexMap;
use reshard_formats::FormatError;
use reshard_formats::shards::{ShardSpec, ShardsFault, folder, open};
use reshard_layout::{DType, Kind, Region, Shard};

use super::support::{TOPOLOGY, fault_of, gathered, refusal, rows_of, two_files, whole};
use crate::safetensors::support::{bytes_of, filled, folder_with, poisoned, weights};

/// 102 ranks, file names in every padding and order: the value that a rank reads is its own number.
#[test]
fn c04_above_a_hundred_ranks_each_finds_its_own() {
    let specs: Vec<_> =
        (0..102).map(|rank| vec![rows_of("w", [102, 1], &[(rank, rank + 1)], false)]).collect();
    let (files, _) = folder(&specs, "tp=102", &IndexMap::new()).unwrap();
    let mut written = poisoned(&files);
    for (rank, (path, bytes)) in written.iter_mut().enumerate() {
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&(rank as u32).to_le_bytes());
        *path = match rank % 4 {
            0 => format!("pp_rank_{}_mp_rank_{rank:02}.safetensors", 101 - rank).into(),
            1 => format!("_{rank}_.safetensors").into(),
            2 => format!("_{rank:02}_.safetensors").into(),
            _ => format!("{}.safetensors", 101 - rank).into(),
        };
    }
    let folder = folder_with(&written);
    let checkpoint = open(folder.path()).unwrap();
    let expected: Vec<_> = (0..102u32).map(|rank| (rank, u64::from(rank), rank)).collect();
    assert_eq!(gathered(&checkpoint, "w"), expected);
    for name in ["_9_.safetensors", "_10_.safetensors", "pp_rank_1_mp_rank_100.safetensors"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    let fault = fault_of(open(folder.path()));
    assert_eq!(fault.to_string(), "3 of 102 ranks have no file: 9, 10, 100");
}

#[test]
fn c13_a_newer_version_and_a_shard_without_its_place_are_hard_errors() {
    let newer = r#"{"version": 2, "rank": {"tp": 0}, "ranks": 1}"#;
    assert_eq!(
        refusal(&[(newer, &[2])]),
        "0.safetensors: version 2 of the layout under the key reshard, this program knows 1"
    );
    let even = |rank| {
        format!(
            r#"{{"version":1,"rank":{rank},"world":4,"topology":"","parameters":{{"w":{{"shape":[6]}}}}}}"#
        )
    };
    let ranks: Vec<String> = (0..4).map(even).collect();
    let ranks: Vec<(&str, &[u64])> = ranks.iter().map(|text| (text.as_str(), [1].as_slice())).collect();
    assert_eq!(
        refusal(&ranks),
        "0.safetensors: w: a tensor of shape [1] of a parameter of shape [6], without origin or boxes"
    );
}

/// Two key heads on four ranks: 32, 32, 0, 0 rows. The last two have no entry, or an empty tensor.
#[test]
fn zero_width_shards_are_absent_or_empty() {
    let widths = [(0, 32), (32, 64), (64, 64), (64, 64)];
    for is_absent in [true, false] {
        let specs: Vec<Vec<ShardSpec>> = widths
            .iter()
            .map(|rows| {
                let shard = rows_of("k", [64, 2], std::slice::from_ref(rows), false);
                if is_absent && rows.0 == rows.1 { vec![] } else { vec![shard] }
            })
            .collect();
        let (files, part) = folder(&specs, "autotp:tp=4", &IndexMap::new()).unwrap();
        let lengths: Vec<u64> = part.spans.iter().map(|span| span.length.0).collect();
        assert_eq!(lengths, if is_absent { vec![256, 256] } else { vec![256, 256, 0, 0] });
        let mut written = poisoned(&files);
        for (file, rows) in written.iter_mut().zip(widths).take(2) {
            let at = file.1.len() - 256;
            file.1[at..].copy_from_slice(&super::support::bytes(&super::support::listed(2, &[rows], false)));
        }
        let folder = folder_with(&written);
        let elements = gathered(&open(folder.path()).unwrap(), "k");
        assert_eq!(elements.len(), 128);
        assert!(elements.iter().all(|(rank, flat, value)| *flat == u64::from(*value) && *rank == value / 64));
    }
}

/// The type and shape in which a packed parameter was stored go along, both ranks must say the same, and it is never
/// cut: half of 6 bytes may be half of a group.
#[test]
fn d10_packed_parameters_keep_their_type_and_shape() {
    let packed = Some(("F4".to_owned(), vec![3, 4]));
    let spec = ShardSpec { dtype: DType::U8, packed: packed.clone(), ..whole("w", &[6]) };
    let (files, part) =
        folder(&[vec![spec.clone()], vec![spec.clone()]], TOPOLOGY, &IndexMap::new()).unwrap();
    let folder = folder_with(&filled(&files, &part, |_| vec![0x21; 6]));
    let checkpoint = open(folder.path()).unwrap();
    assert_eq!(checkpoint.facts.packed.get("w"), packed.as_ref());
    assert_eq!(bytes_of(&checkpoint, "w"), [0x21; 6]);
    let other = ShardSpec { packed: Some(("F6_E2M3".to_owned(), vec![8])), ..spec.clone() };
    let refused = folder_refusal(&[vec![spec.clone()], vec![other]]);
    assert!(matches!(refused, ShardsFault::ParameterDisagrees { first: 0, rank: 1, .. }), "{refused}");
    let half = |origin| ShardSpec { shard: Shard::of_box(&[6], Region::new([origin], [3])), ..spec.clone() };
    let cut = folder_refusal(&[vec![half(0)], vec![half(3)]]);
    assert_eq!(cut.to_string(), "w: F4 of shape [3, 4] is not the whole of a parameter of [6] bytes");
    let short = ShardSpec { packed: Some(("F4".to_owned(), vec![5])), ..spec.clone() };
    assert!(matches!(folder_refusal(&[vec![short]]), ShardsFault::PackedNotWhole { .. }));
}

fn folder_refusal(ranks: &[Vec<ShardSpec>]) -> ShardsFault {
    match folder(ranks, TOPOLOGY, &IndexMap::new()) {
        Err(FormatError::Shards { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

/// A weight (4, 96) in groups of 32 columns has scales (4, 3). Cut by columns on three ranks, each file has the
/// scales of its own group, (4, 1): they are cut like any parameter, and never taken for replicated.
#[test]
fn d03_scales_are_cut_where_their_weight_is() {
    let columns = |name: &str, width: u64, rank: u64| {
        let shape = [4, 3 * width];
        let shard = Shard::of_box(&shape, Region::new([0, width * rank], [4, width]));
        ShardSpec { shard, ..whole(name, &shape) }
    };
    let of_rank = |rank| vec![columns("w", 32, rank), columns("scale", 1, rank)];
    let (files, _) = folder(&[of_rank(0), of_rank(1), of_rank(2)], "tp=3", &IndexMap::new()).unwrap();
    let mut written = poisoned(&files);
    for (rank, (_, file)) in written.iter_mut().enumerate() {
        let scales: Vec<u32> = (0..4).map(|row| 3 * row + rank as u32).collect();
        let copy = file.clone();
        let read = safetensors::SafeTensors::deserialize(&copy).unwrap();
        let scale = read.tensor("scale").unwrap();
        assert_eq!(
            (scale.shape(), read.tensor("w").unwrap().shape()),
            ([4, 1].as_slice(), [4, 32].as_slice())
        );
        let at = scale.data().as_ptr() as usize - copy.as_ptr() as usize;
        file[at..at + 16].copy_from_slice(&super::support::bytes(&scales));
    }
    let folder = folder_with(&written);
    let expected: Vec<_> = (0..3u32).flat_map(|rank| (0..4).map(move |row| (rank, 3 * row + rank))).collect();
    let expected: Vec<_> = expected.into_iter().map(|(rank, at)| (rank, u64::from(at), at)).collect();
    assert_eq!(gathered(&open(folder.path()).unwrap(), "scale"), expected);
}

#[test]
fn n02_tied_weights_have_both_names() {
    let specs = [vec![whole("model.embed_tokens.weight", &[2])]];
    let (files, part) = folder(&specs, "", &IndexMap::new()).unwrap();
    let mut written = filled(&files, &part, |_| vec![7; 8]);
    written.push(("config.json".into(), br#"{"tie_word_embeddings": true}"#.to_vec()));
    let folder = folder_with(&written);
    let checkpoint = open(folder.path()).unwrap();
    assert_eq!(bytes_of(&checkpoint, "lm_head.weight"), [7; 8]);
    assert!(checkpoint.facts.config.is_some());
}

#[test]
fn d05_ranks_of_other_types_are_refused() {
    let one = whole("router", &[2]);
    let other = ShardSpec { dtype: DType::F32, ..one.clone() };
    let fault = folder_refusal(&[vec![one], vec![other]]);
    assert_eq!(fault.to_string(), "router: rank 1 says f32 of shape [2], rank 0 says u32 of shape [2]");
    assert_eq!(fault.kind(), Kind::Invalid);
}

#[test]
fn two_files_are_read() {
    let folder = folder_with(&two_files());
    let checkpoint = open(folder.path()).unwrap();
    let expected: Vec<_> = (0..24u32).map(|at| (at / 12, u64::from(at), at)).collect();
    assert_eq!(gathered(&checkpoint, "up"), expected);
    assert_eq!(weights(&checkpoint).layout.parameters().len(), 2);
}

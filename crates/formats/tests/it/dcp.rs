//! Checkpoints of torch.distributed.checkpoint, written by torch with 4 processes. The value of every element follows
//! from where it lies: element i of parameter k is 100 k + i, its exp_avg 0.25 more, its exp_avg_sq 0.5 more.

use std::path::Path;

use reshard_formats::pickle::{NodeId, Pickle, PickleBuilder, Value};
use reshard_formats::{Checkpoint, Format, FormatError, Kept, dcp};
use reshard_layout::{Bytes, DType, Kind, volume};
use reshard_transport::ReadAt;
use tempfile::TempDir;

use crate::support::{own, scratch};

/// The bytes of a whole tensor, row-major, gathered element by element. What no piece holds stays poisoned.
fn whole(checkpoint: &Checkpoint, kept: &Kept, name: &str) -> Vec<u8> {
    let part = &checkpoint.parts[kept];
    let reader = checkpoint.reader(part);
    let id = part.layout.find(name).unwrap_or_else(|| panic!("no {name}"));
    let parameter = part.layout.parameter(id);
    let size = usize::try_from(parameter.dtype.size()).unwrap();
    let mut bytes = vec![0xfe; usize::try_from(volume(&parameter.shape).unwrap()).unwrap() * size];
    for piece in part.layout.pieces_of(id) {
        let buffer = part.layout.places().buffer(piece.buffer);
        for index in 0..piece.region.volume() {
            let (mut rest, mut logical, mut stored) = (index, 0, piece.offset.0);
            let mut step = 1;
            for axis in (0..parameter.shape.len()).rev() {
                let along = rest % piece.region.extent()[axis];
                rest /= piece.region.extent()[axis];
                logical += (piece.region.origin()[axis] + along) * step;
                step *= parameter.shape[axis];
                stored += along * piece.strides[axis];
            }
            let at = usize::try_from(logical).unwrap() * size;
            let offset = buffer.offset + Bytes(stored * parameter.dtype.size());
            reader.read_at(buffer.storage, offset, &mut bytes[at..at + size]).unwrap();
        }
    }
    bytes
}

fn floats(checkpoint: &Checkpoint, kept: &Kept, name: &str) -> Vec<f32> {
    let bytes = whole(checkpoint, kept, name);
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

fn numbered(k: u16, count: u16, more: f32) -> Vec<f32> {
    (0..count).map(|i| f32::from(100 * k + i) + more).collect()
}

fn weights(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    floats(checkpoint, &Kept::Weights, name)
}

fn state(name: &str) -> Kept {
    Kept::State(name.to_owned())
}

fn names<'a>(checkpoint: &'a Checkpoint, kept: &Kept) -> Vec<(&'a str, Vec<u64>)> {
    let parameters = checkpoint.parts[kept].layout.parameters();
    let mut names: Vec<_> =
        parameters.map(|(_, parameter)| (parameter.name.as_str(), parameter.shape.to_vec())).collect();
    names.sort();
    names
}

#[test]
fn uneven_shards_and_ranks_without_a_row() {
    let checkpoint = dcp::open(&own("dcp/uneven")).unwrap();
    assert_eq!(checkpoint.format, Format::Dcp);
    assert_eq!(checkpoint.parts.keys().collect::<Vec<_>>(), [&Kept::Weights]);
    let expected = [
        ("columns", vec![4, 10]),
        ("empty", vec![0, 4]),
        ("half", vec![5, 2]),
        ("plain", vec![2, 2]),
        ("replica", vec![3, 2]),
        ("scalar", vec![]),
        ("six", vec![6, 2]),
        ("ten", vec![10, 3]),
        ("transposed", vec![2, 3]),
    ];
    assert_eq!(names(&checkpoint, &Kept::Weights), expected);
    assert_eq!(weights(&checkpoint, "ten"), numbered(0, 30, 0.0));
    assert_eq!(weights(&checkpoint, "six"), numbered(1, 12, 0.0));
    assert_eq!(weights(&checkpoint, "columns"), numbered(2, 40, 0.0));
    assert_eq!(weights(&checkpoint, "replica"), numbered(4, 6, 0.0));
    assert_eq!(weights(&checkpoint, "scalar"), numbered(6, 1, 0.0));
    assert_eq!(weights(&checkpoint, "transposed"), [700.0, 702.0, 704.0, 701.0, 703.0, 705.0]);
    let half: Vec<u8> = numbered(3, 10, 0.0)
        .into_iter()
        .flat_map(|value| half::bf16::from_f32(value).to_le_bytes())
        .collect();
    assert_eq!(whole(&checkpoint, &Kept::Weights, "half"), half);
    let plain: Vec<u8> = (500..504i64).flat_map(i64::to_le_bytes).collect();
    assert_eq!(whole(&checkpoint, &Kept::Weights, "plain"), plain);
    let layout = &checkpoint.parts[&Kept::Weights].layout;
    assert_eq!(layout.parameter(layout.find("half").unwrap()).dtype, DType::Bf16);
    let pieces = |name: &str| layout.pieces_of(layout.find(name).unwrap()).count();
    assert_eq!(["ten", "six", "columns", "half", "replica", "empty"].map(pieces), [4, 3, 4, 3, 1, 0]);
    assert_eq!(checkpoint.facts.metadata["ignored"], "epoch, note.text");
    assert_eq!(checkpoint.facts.step, None);
}

#[test]
fn fully_sharded_and_tensor_parallel_with_an_optimizer() {
    let checkpoint = dcp::open(&own("dcp/fsdp_tp")).unwrap();
    let kept = [Kept::Weights, state("exp_avg"), state("exp_avg_sq")];
    assert_eq!(checkpoint.parts.keys().collect::<Vec<_>>(), kept.iter().collect::<Vec<_>>());
    for (kept, more) in kept.iter().zip([0.0, 0.25, 0.5]) {
        let expected = [("down.weight", vec![3, 6]), ("up.bias", vec![6]), ("up.weight", vec![6, 4])];
        assert_eq!(names(&checkpoint, kept), expected);
        assert_eq!(floats(&checkpoint, kept, "up.weight"), numbered(0, 24, more), "{kept}");
        assert_eq!(floats(&checkpoint, kept, "up.bias"), numbered(1, 6, more), "{kept}");
        assert_eq!(floats(&checkpoint, kept, "down.weight"), numbered(2, 18, more), "{kept}");
    }
    assert_eq!(checkpoint.facts.step, Some(2));
    assert!(checkpoint.facts.metadata["ignored"].contains("optim.param_groups.0.lr"));
}

#[test]
fn a_flattened_optimizer_inside_an_application() {
    let checkpoint = dcp::open(&own("dcp/flattened/.metadata")).unwrap();
    assert_eq!(checkpoint.parts.len(), 3);
    assert_eq!(weights(&checkpoint, "weight"), numbered(2, 18, 0.0));
    assert_eq!(floats(&checkpoint, &state("exp_avg"), "weight"), numbered(2, 18, 0.25));
    assert_eq!(floats(&checkpoint, &state("exp_avg_sq"), "weight"), numbered(2, 18, 0.5));
    assert_eq!(checkpoint.facts.step, Some(2));
}

#[test]
fn safetensors_files_that_ranks_saved_apart() {
    let checkpoint = dcp::open(&own("dcp/hub")).unwrap();
    let expected =
        [("columns", vec![4, 10]), ("half", vec![5, 2]), ("six", vec![6, 2]), ("ten", vec![10, 3])];
    assert_eq!(names(&checkpoint, &Kept::Weights), expected);
    assert_eq!(weights(&checkpoint, "ten"), numbered(0, 30, 0.0));
    assert_eq!(weights(&checkpoint, "six"), numbered(1, 12, 0.0));
    assert_eq!(weights(&checkpoint, "columns"), numbered(2, 40, 0.0));
}

#[test]
fn every_kind_is_recognised_from_its_folder() {
    for case in ["uneven", "fsdp_tp", "flattened", "hub"] {
        let checkpoint = Checkpoint::open(&own(&format!("dcp/{case}"))).unwrap();
        assert_eq!(checkpoint.format, Format::Dcp, "{case}");
    }
    for file in ["uneven/.metadata", "hub/shard-00002-model-00001-of-00001.safetensors"] {
        let path = own(&format!("dcp/{file}"));
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(
            (checkpoint.format, Some(checkpoint.root.as_path())),
            (Format::Dcp, path.parent()),
            "{file}"
        );
    }
}

/// A copy of a checkpoint without some of its files.
fn copy(case: &str, without: &[&str]) -> TempDir {
    let folder = scratch();
    for entry in std::fs::read_dir(own(&format!("dcp/{case}"))).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !without.contains(&name) {
            std::fs::copy(&path, folder.path().join(name)).unwrap();
        }
    }
    folder
}

/// A copy of `uneven` whose metadata has some objects replaced.
fn changed(replace: impl FnMut(&mut PickleBuilder, Value<'_>) -> Option<NodeId>) -> TempDir {
    let folder = copy("uneven", &[]);
    let path = folder.path().join(".metadata");
    let read = Pickle::read(&std::fs::read(&path).unwrap()).unwrap();
    let mut builder = PickleBuilder::new();
    let root = builder.copy_replacing(read.root(), replace);
    std::fs::write(&path, builder.finish(root).write().unwrap()).unwrap();
    folder
}

/// The message, without the path, and the kind.
fn refusal(folder: &Path) -> (String, Kind) {
    let error = dcp::open(folder).unwrap_err();
    let text = error.to_string();
    let reason = text.strip_prefix(folder.to_str().unwrap()).expect("the error names the path");
    (reason.to_owned(), error.kind().unwrap())
}

fn invalid(reason: &str) -> (String, Kind) {
    (reason.to_owned(), Kind::Invalid)
}

/// Whether a value is the place of this chunk: an object of three attributes.
fn is_place(value: Value<'_>, file: &str, offset: u64) -> bool {
    let text = value.attribute("relative_path").and_then(Value::as_str);
    text == Some(file) && value.attribute("offset").and_then(Value::as_u64) == Some(offset)
}

/// The place of a chunk, made anew.
fn place(builder: &mut PickleBuilder, file: &str, offset: u64, transform: Option<&str>) -> NodeId {
    let class = builder.class("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    let mut attributes = vec![
        (builder.str("relative_path"), builder.str(file)),
        (builder.str("offset"), builder.uint(offset)),
        (builder.str("length"), builder.uint(1577)),
    ];
    if let Some(transform) = transform {
        let name = builder.str(transform);
        attributes.push((builder.str("transform_descriptors"), builder.list([name])));
    }
    builder.instance(class, attributes)
}

/// Where chunk 0 of `ten` lies, and chunk 1.
const FIRST: (&str, u64) = ("__0_0.distcp", 0);
const SECOND: (&str, u64) = ("__1_0.distcp", 2522);

#[test]
fn what_is_copied_without_a_change_opens() {
    let folder = changed(|_, _| None);
    assert_eq!(weights(&dcp::open(folder.path()).unwrap(), "ten"), numbered(0, 30, 0.0));
    let again = changed(|builder, value| {
        is_place(value, SECOND.0, SECOND.1).then(|| place(builder, SECOND.0, SECOND.1, None))
    });
    assert_eq!(weights(&dcp::open(again.path()).unwrap(), "ten"), numbered(0, 30, 0.0));
}

#[test]
fn a_tensor_with_a_hole_is_refused() {
    let folder = changed(|builder, value| {
        let chunks = value.items().filter(|items| items.len() == 4)?;
        let sizes = |chunk: &Value<'_>| chunk.attribute("sizes").and_then(Value::as_numbers);
        let is_ten = sizes(&chunks[0]) == Some(vec![3, 3]) && sizes(&chunks[3]) == Some(vec![1, 3]);
        // All but the second of the chunks of `ten`.
        is_ten.then(|| {
            let kept: Vec<NodeId> =
                [0, 2, 3].into_iter().map(|index| builder.copy_from(chunks[index])).collect();
            builder.list(kept)
        })
    });
    let (reason, kind) = refusal(folder.path());
    assert_eq!(reason, ": ten: no rank holds box [3, 0]+[3, 3], 9 of 30 elements are missing");
    assert_eq!(kind, Kind::Invalid);
}

#[test]
fn absent_files_are_named() {
    let folder = copy("uneven", &["__2_0.distcp", "__3_0.distcp"]);
    // Rank 2 holds a chunk of ten, six, columns and half, and `plain`; rank 3 one of ten and columns, and two more.
    let (reason, kind) = refusal(folder.path());
    assert_eq!(kind, Kind::Invalid);
    assert_eq!(
        reason,
        "/.metadata: 9 chunks of tensors lie in files that are not there: __2_0.distcp, __3_0.distcp"
    );
}

#[test]
fn chunks_lie_where_the_metadata_says() {
    // Nowhere: what is said to lie somewhere is a chunk that the tensor has not.
    let is_second = |value: Value<'_>| {
        value.attribute("fqn").and_then(Value::as_str) == Some("model.ten")
            && value.attribute("offset").and_then(Value::as_numbers) == Some(vec![3, 0])
    };
    let folder = changed(|builder, value| {
        is_second(value).then(|| {
            let class = builder.class("torch.distributed.checkpoint.metadata", "MetadataIndex");
            let attributes = [
                (builder.str("fqn"), builder.str("model.ten")),
                (builder.str("offset"), builder.size(&[4, 0])),
            ];
            builder.instance(class, attributes)
        })
    });
    assert_eq!(
        refusal(folder.path()),
        invalid("/.metadata: \"model.ten\": no file holds the chunk at [3, 0]")
    );
    let folder = changed(|builder, value| is_second(value).then(|| builder.none()));
    assert_eq!(refusal(folder.path()), invalid("/.metadata: storage_data of \"Metadata\" cannot be read"));
    // Two chunks of other extents, each at the place of the other.
    const SIX: (&str, u64) = (FIRST.0, 1577);
    let folder = changed(|builder, value| {
        if is_place(value, SECOND.0, SECOND.1) {
            Some(place(builder, SIX.0, SIX.1, None))
        } else {
            is_place(value, SIX.0, SIX.1).then(|| place(builder, SECOND.0, SECOND.1, None))
        }
    });
    let expected = "/.metadata: \"model.ten\": the chunk at [3, 0] is f32 [2, 2], expected f32 [3, 3]";
    assert_eq!(refusal(folder.path()), invalid(expected));
    // At the place of another chunk of the same extents.
    let folder = changed(|builder, value| {
        is_place(value, SECOND.0, SECOND.1).then(|| place(builder, FIRST.0, 0, None))
    });
    assert_eq!(
        refusal(folder.path()),
        invalid("/.metadata: \"model.ten\" and \"model.ten\" lie in the same bytes")
    );
    // In the middle of a chunk of another tensor, and beyond the file.
    let folder = changed(|builder, value| {
        is_place(value, SECOND.0, SECOND.1).then(|| place(builder, FIRST.0, 5000, None))
    });
    assert_eq!(
        refusal(folder.path()),
        invalid("/.metadata: \"model.half\" and \"model.ten\" lie in the same bytes")
    );
    let folder = changed(|builder, value| {
        is_place(value, SECOND.0, SECOND.1).then(|| place(builder, FIRST.0, 6308, None))
    });
    let (reason, _) = refusal(folder.path());
    assert_eq!(reason, "/__0_0.distcp: no sound zip archive: 1577 bytes at 6308 are not inside the file");
}

#[test]
fn chunks_lie_inside_their_tensors() {
    for (sizes, expected) in [
        ([9, 3], "/.metadata: \"model.ten\" of shape [9, 3] has no chunk of shape [1, 3] at [9, 0]"),
        ([1 << 40, 1 << 40], "/.metadata: size of \"model.ten\" cannot be read"),
    ] {
        let folder = changed(|builder, value| {
            let is_whole =
                value.made_by() == Some(("torch", "Size")) && value.as_numbers() == Some(vec![10, 3]);
            is_whole.then(|| builder.size(&sizes))
        });
        assert_eq!(refusal(folder.path()), invalid(expected));
    }
    // Ten rows more than there are chunks for.
    let folder = changed(|builder, value| {
        let is_whole = value.made_by() == Some(("torch", "Size")) && value.as_numbers() == Some(vec![10, 3]);
        is_whole.then(|| builder.size(&[20, 3]))
    });
    assert_eq!(
        refusal(folder.path()),
        invalid(": ten: no rank holds box [10, 0]+[10, 3], 30 of 60 elements are missing")
    );
}

#[test]
fn files_lie_in_the_folder_and_are_as_they_were_written() {
    for file in ["../uneven/__0_0.distcp", "/etc/passwd", "a//b", ".."] {
        let folder = changed(|builder, value| {
            is_place(value, SECOND.0, SECOND.1).then(|| place(builder, file, 0, None))
        });
        let expected = format!("/.metadata: file {file:?} is not a path inside the checkpoint");
        assert_eq!(refusal(folder.path()), invalid(&expected));
    }
    let folder = changed(|builder, value| {
        is_place(value, SECOND.0, SECOND.1).then(|| place(builder, SECOND.0, SECOND.1, Some("stream.zstd")))
    });
    let expected = "/.metadata: \"model.ten\" was transformed when it was written: stream.zstd";
    assert_eq!(refusal(folder.path()), (expected.to_owned(), Kind::Unsupported));
}

#[test]
fn folders_without_metadata_are_told_apart() {
    let folder = copy("uneven", &[".metadata"]);
    let none = ": no `.metadata`, and no safetensors files with the place of each shard in them";
    assert_eq!(refusal(folder.path()), invalid(none));
    std::fs::write(folder.path().join("__0.metadata"), b"").unwrap();
    assert_eq!(refusal(folder.path()).1, Kind::Unsupported);
    // A shard of the hub's variant that is missing: the rows after it are there, so that the hole shows.
    let folder = copy("hub", &["shard-00002-model-00001-of-00001.safetensors"]);
    let (reason, kind) = refusal(folder.path());
    assert!(
        reason.contains("ten: no rank holds box [3, 0]+[3, 3], 9 of 30 elements are missing"),
        "{reason}"
    );
    assert_eq!(kind, Kind::Invalid);
}

#[test]
fn damaged_metadata_is_refused_or_as_good_as_any() {
    let folder = copy("uneven", &[]);
    let path = folder.path().join(".metadata");
    let mut bytes = std::fs::read(&path).unwrap();
    for length in 0..bytes.len() {
        std::fs::write(&path, &bytes[..length]).unwrap();
        assert!(matches!(dcp::open(folder.path()), Err(FormatError::Dcp { .. })), "cut to {length}");
    }
    for at in 0..bytes.len() {
        let bit = 1 << (at * 5 % 8);
        bytes[at] ^= bit;
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(checkpoint) = dcp::open(folder.path()) {
            for (id, parameter) in checkpoint.parts.values().flat_map(|part| part.layout.parameters()) {
                assert!(volume(&parameter.shape).is_some(), "{id:?}");
            }
        }
        bytes[at] ^= bit;
    }
}

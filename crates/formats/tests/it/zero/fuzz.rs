//! Random damage to what the files of a real checkpoint say: objects of their pickles are exchanged for others.
//! `cargo bolero test zero::fuzz::objects` runs an engine that learns, for as long as one likes.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use reshard_formats::pickle::{NodeId, Pickle, PickleBuilder, Value};
use reshard_formats::torch::{Contents, TorchFile, torch_file};
use reshard_formats::{FileId, Files, zero};
use reshard_layout::Bytes;

use crate::support::{fuzz_time, own, scratch};
use crate::torch::render;

/// Objects of a pickle that are counted.
const OBJECTS_MAX: usize = 100_000;

/// A file to be damaged.
pub(crate) struct Seed {
    /// Its path in the folder that it is written to.
    pub(crate) name: PathBuf,
    pickle: Pickle,
    storages: Vec<(String, Contents)>,
    objects: usize,
}

fn seeds(folder: &Path) -> Vec<Seed> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| seed(path)).collect()
}

/// The seed that a file is.
pub(crate) fn seed(path: &Path) -> Seed {
    let mut files = Files::default();
    let id: FileId = files.add(path).unwrap();
    let torch = TorchFile::open(&files, id).unwrap();
    let mut storages: Vec<(String, Contents)> = Vec::new();
    for (key, span) in torch.storages() {
        let mut bytes = vec![0; usize::try_from(span.length.0).unwrap()];
        files.read_at(span.file, span.offset + Bytes(0), &mut bytes).unwrap();
        storages.push((key.clone(), Contents::Known(bytes)));
    }
    storages.sort_by_key(|(key, _)| key.parse::<u32>().unwrap());
    let mut objects = 0;
    PickleBuilder::new().copy_replacing(torch.pickle.root(), |_, _| {
        objects += 1;
        None
    });
    assert!(objects < OBJECTS_MAX);
    Seed { name: path.file_name().unwrap().into(), objects, storages, pickle: torch.pickle }
}

/// The pickle with some objects exchanged: the n-th that is met, for something of the kind `change` says.
fn damaged(seed: &Seed, changes: &[(u16, u8, i64)]) -> Pickle {
    let mut builder = PickleBuilder::new();
    let mut met = 0;
    let mut earlier: Vec<NodeId> = Vec::new();
    let places: HashSet<usize> =
        changes.iter().map(|(place, ..)| usize::from(*place) % seed.objects).collect();
    let replace = |builder: &mut PickleBuilder, _: Value<'_>| {
        let here = met;
        met += 1;
        if !places.contains(&here) {
            return None;
        }
        let (_, change, number) =
            changes.iter().find(|(place, ..)| usize::from(*place) % seed.objects == here).unwrap();
        let node = match change % 10 {
            0 => builder.none(),
            1 => builder.int(*number),
            2 => builder.int(i64::MAX - (number & 7)),
            3 => builder.float(*number as f64 / 3.0),
            4 => builder.str(["w", "^w$", "(", ".*", "norm.weight", ""][number.unsigned_abs() as usize % 6]),
            5 => builder.list([]),
            6 => builder.dict([]),
            7 => builder.size(&[number.unsigned_abs(), 3]),
            8 => builder.numbers(&[0, number.unsigned_abs()]),
            _ => earlier.get(number.unsigned_abs() as usize % earlier.len().max(1)).copied()?,
        };
        earlier.push(node);
        Some(node)
    };
    let root = builder.copy_replacing(seed.pickle.root(), replace);
    builder.finish(root)
}

#[test]
fn objects() {
    let fixtures = ["zero_init_frozen", "round_robin", "frozen_tied_buffers", "aligned"];
    let seeds: Vec<Vec<Seed>> =
        fixtures.iter().map(|name| seeds(&own(&format!("zero/{name}/step2")))).collect();
    let folders: Vec<_> = fixtures.iter().map(|_| scratch()).collect();
    for (folder, seeds) in folders.iter().zip(&seeds) {
        for seed in seeds {
            write(folder.path(), seed, &[]);
        }
        zero::open(folder.path()).unwrap();
    }
    bolero::check!()
        .with_type::<(u8, u8, Vec<(u16, u8, i64)>)>()
        .with_max_len(256)
        .with_test_time(fuzz_time())
        .for_each(|(fixture, file, changes)| {
            let fixture = usize::from(*fixture) % fixtures.len();
            let (folder, seeds) = (folders[fixture].path(), &seeds[fixture]);
            let seed = &seeds[usize::from(*file) % seeds.len()];
            write(folder, seed, changes);
            match zero::open(folder) {
                Ok(checkpoint) => {
                    for part in checkpoint.parts.values() {
                        for span in &part.spans {
                            let end = span.offset.0.checked_add(span.length.0).unwrap();
                            assert!(end <= checkpoint.files.length(span.file).0);
                        }
                    }
                }
                Err(error) => assert!(error.kind().is_some(), "{error}"),
            }
            write(folder, seed, &[]);
        });
}

/// Writes the file with some objects of its pickle exchanged.
pub(crate) fn write(folder: &Path, seed: &Seed, changes: &[(u16, u8, i64)]) {
    let pickle = damaged(seed, changes);
    let Ok((target, _)) = torch_file(seed.name.clone(), "fuzzed", &pickle, seed.storages.clone()) else {
        return;
    };
    render(&target, folder, &[]);
}

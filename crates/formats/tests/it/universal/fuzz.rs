//! Random damage to what the files of a Universal checkpoint say: reading it, and writing it again, is refused with a
//! reason or as good as with any other.
//! `cargo bolero test universal::fuzz::objects` runs an engine that learns, for as long as one likes.

use std::path::Path;

use reshard_formats::universal::{self, ForStage, UniversalOptions};

use super::written;
use crate::converted::names;
use crate::support::{fuzz_time, own, scratch};
use crate::zero::fuzz::{Seed, seed, write};

fn seeds(folder: &Path) -> Vec<Seed> {
    let files = names(folder).into_iter().filter(|name| name.ends_with(".pt"));
    let seed = |name: String| {
        let mut seed = seed(&folder.join(&name));
        seed.name = name.into();
        seed
    };
    files.map(seed).collect()
}

#[test]
fn objects() {
    let made = written(&own("zero/frozen_tied_buffers"), ForStage::Both);
    let seeds = seeds(&made.path());
    let folder = scratch();
    let folder = folder.path();
    for seed in &seeds {
        std::fs::create_dir_all(folder.join(seed.name.parent().unwrap())).unwrap();
        write(folder, seed, &[]);
    }
    std::fs::copy(made.path().join("latest_universal"), folder.join("latest_universal")).unwrap();
    universal::open(folder).unwrap();
    let stages = [ForStage::Same, ForStage::OneTwo, ForStage::Three, ForStage::Both];
    bolero::check!()
        .with_type::<(u8, u8, Vec<(u16, u8, i64)>)>()
        .with_max_len(256)
        .with_test_time(fuzz_time())
        .for_each(|(stage, file, changes)| {
            let for_stage = stages[usize::from(*stage) % stages.len()];
            let seed = &seeds[usize::from(*file) % seeds.len()];
            write(folder, seed, changes);
            let again = universal::open(folder)
                .and_then(|checkpoint| universal::output(&checkpoint, &UniversalOptions { for_stage }));
            if let Err(error) = again {
                assert!(error.kind().is_some(), "{error}");
            }
            write(folder, seed, &[]);
        });
}

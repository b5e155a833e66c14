//! Random damage to real files. The engine of the tests is random; `cargo bolero test hostile::fuzz::pickles` runs
//! one that learns, for as long as one likes.
//!
//! ```text
//!   input  | seed | (place, change, byte) (place, change, byte) ...
//!   seed 3 = protocol_3.pkl  ──changes──►  bytes  ──read──►  refused, or sound
//! ```

use std::time::Duration;

use crate::hostile::torch;
use crate::support::{is_sound_or_refused, own, scratch};

/// How long each target runs.
const SECONDS: u64 = 5;

/// A change to one place of a file: another byte, one more, one less, a stretch doubled, or the rest cut off.
type Change = (u16, u8, u8);

fn damage(seed: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for (place, change, byte) in changes {
        if bytes.is_empty() {
            return bytes;
        }
        let at = usize::from(*place) % bytes.len();
        match change % 8 {
            0..=2 => bytes[at] = *byte,
            3 => bytes[at] ^= 1 << (byte % 8),
            4 => bytes.insert(at, *byte),
            5 => drop(bytes.remove(at)),
            6 => {
                let end = (at + usize::from(*byte)).min(bytes.len());
                let stretch = bytes[at..end].to_vec();
                bytes.splice(at..at, stretch);
            }
            _ => bytes.truncate(at.max(bytes.len() / 2)),
        }
    }
    bytes
}

/// The pickle of a torch file: where its first entry's bytes are, which torch aligns to 64.
fn pickle_of(torch_file: &[u8]) -> Vec<u8> {
    let archive = rawzip::ZipArchive::from_slice(torch_file).unwrap();
    let record = archive.entries().next_entry().unwrap().unwrap().wayfinder();
    archive.get_entry(record).unwrap().data().to_vec()
}

#[test]
fn pickles() {
    let mut seeds: Vec<Vec<u8>> = (0..=5)
        .map(|protocol| std::fs::read(own(&format!("pickle/protocol_{protocol}.pkl"))).unwrap())
        .collect();
    seeds.extend(
        ["dtypes", "views"].map(|name| pickle_of(&std::fs::read(own(&format!("torch/{name}.pt"))).unwrap())),
    );
    bolero::check!()
        .with_type::<(u8, Vec<Change>)>()
        .with_max_len(256)
        .with_test_time(Duration::from_secs(SECONDS))
        .for_each(|(seed, changes)| {
            is_sound_or_refused(&damage(&seeds[usize::from(*seed) % seeds.len()], changes))
        });
}

#[test]
fn bytes_without_a_seed() {
    bolero::check!()
        .with_max_len(512)
        .with_test_time(Duration::from_secs(SECONDS / 2))
        .for_each(is_sound_or_refused);
}

#[test]
fn torch_files() {
    let seeds = ["dtypes", "views", "refused_meta", "refused_big"]
        .map(|name| std::fs::read(own(&format!("torch/{name}.pt"))).unwrap());
    let folder = scratch();
    let path = folder.path().join("fuzzed.pt");
    bolero::check!()
        .with_type::<(u8, Vec<Change>)>()
        .with_max_len(256)
        .with_test_time(Duration::from_secs(SECONDS))
        .for_each(|(seed, changes)| {
            std::fs::write(&path, damage(&seeds[usize::from(*seed) % seeds.len()], changes)).unwrap();
            torch::is_sound_or_refused(&path);
        });
}

#[test]
fn dcp_metadata() {
    let folder = scratch();
    for entry in std::fs::read_dir(own("dcp/uneven")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join(".metadata");
    let seed = std::fs::read(&path).unwrap();
    bolero::check!()
        .with_type::<Vec<Change>>()
        .with_max_len(256)
        .with_test_time(Duration::from_secs(SECONDS))
        .for_each(|changes| {
            std::fs::write(&path, damage(&seed, changes)).unwrap();
            if let Err(error) = reshard_formats::dcp::open(folder.path()) {
                assert!(!error.to_string().is_empty());
            }
        });
}

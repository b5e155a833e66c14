//! Conversions that are killed at any moment, and conversions that the system stops.
//!
//! A process to be killed is this test binary again: it runs the one test `converting_process`, which does what the
//! environment names, and which does nothing in an ordinary run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use reshard_formats::{Conversion, FormatError, Kept, Silent, WriteOptions};
use reshard_layout::{Bytes, DType, Layout};

use super::{assert_same, expected, matrix, names, opened, output, storages, tree, write_sources};

const FOLDER: &str = "RESHARD_TEST_FOLDER";
const BODY: &str = "RESHARD_TEST_BODY";

const SHAPE: [u64; 2] = [500, 240];

/// What is converted; the same folder holds both versions.
fn sources(version: usize) -> [(Kept, Layout); 1] {
    let kept = [Kept::Weights, Kept::Master][version].clone();
    [(kept, matrix("w", SHAPE, DType::F32, 1, 2, 1))]
}

/// Two outputs that are told apart: of other files, and with other values.
fn conversion(folder: &Path, version: usize) -> Conversion {
    Conversion::new(opened(&folder.join("in"), &sources(version)), target(version)).unwrap()
}

/// A folder with both sources, and one that the output will lie in.
fn prepared() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    (0..2).for_each(|version| write_sources(&folder.path().join("in"), &sources(version)));
    let around = folder.path().join("around");
    std::fs::create_dir(&around).unwrap();
    (folder, around)
}

fn target(version: usize) -> reshard_formats::Output {
    let kept = [Kept::Weights, Kept::Master][version].clone();
    output(&[(kept, matrix("w", SHAPE, DType::F32, 0, [4, 5][version], 1))])
}

fn wanted(version: usize) -> BTreeMap<PathBuf, Vec<u8>> {
    let target = target(version);
    let (kept, part) = target.parts.get_index(0).unwrap();
    let memory = storages(kept, &part.layout, 0);
    expected(&target, &[memory])
}

fn options(sync: bool) -> WriteOptions {
    let threads = NonZeroUsize::new(2).unwrap();
    WriteOptions { memory: Bytes(256 << 10), threads, sync, force: true, ..WriteOptions::default() }
}

#[test]
fn converting_process() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = PathBuf::from(folder);
    match std::env::var(BODY).unwrap().as_str() {
        "forever" => convert_forever(&folder),
        "limited" => convert_limited(&folder),
        other => panic!("{other}"),
    }
}

/// The command that runs a body in a process of its own.
fn arguments(folder: &Path, body: &str, command: &mut Command) {
    command.args(["--exact", "engine::kill::converting_process", "--nocapture", "--test-threads=1"]);
    command.env(FOLDER, folder).env(BODY, body).stdin(Stdio::null()).stdout(Stdio::null());
}

fn convert_forever(folder: &Path) {
    let conversions = [conversion(folder, 0), conversion(folder, 1)];
    std::io::stderr().write_all(b"ready\n").unwrap();
    for round in 0.. {
        let place = folder.join("around/out");
        conversions[round % 2].run(&place, &options(round % 3 == 2), &Silent).unwrap();
    }
}

#[test]
fn a_killed_conversion_leaves_the_old_or_the_new() {
    const KILLS: usize = 240;
    let (folder, around) = prepared();
    let place = around.join("out");
    let versions = [wanted(0), wanted(1)];
    let begin = Instant::now();
    conversion(folder.path(), 0).run(&place, &options(false), &Silent).unwrap();
    let moments = (4 * begin.elapsed()).max(Duration::from_millis(10)).as_micros() as u64;
    let (mut seen, mut interrupted) = ([0usize; 3], 0);
    let mut random = 1u64;
    for kill in 0..KILLS {
        if kill % 4 == 0 && place.exists() {
            std::fs::remove_dir_all(&place).unwrap();
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        arguments(folder.path(), "forever", &mut command);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // From before its first write to some conversions later.
        std::thread::sleep(Duration::from_micros((random >> 33) % moments));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), None, "it was killed, and did not end by itself");
        interrupted += usize::from(around.join(".out.reshard-partial").exists());
        if !place.exists() {
            seen[2] += 1;
            continue;
        }
        let found = tree(&place);
        let version = usize::from(found.keys().eq(versions[1].keys()));
        assert_same(&found, &versions[version]);
        seen[version] += 1;
    }
    assert!(seen.iter().all(|&count| count > 0), "absent or either version, {seen:?}");
    assert!(interrupted > KILLS / 10, "{interrupted} of {KILLS} left something behind");
    conversion(folder.path(), 0).run(&place, &options(true), &Silent).unwrap();
    assert_same(&tree(&place), &versions[0]);
    assert_eq!(names(&around), ["out"]);
}

/// Files may not grow beyond 50 KiB here: the system refuses what a full disk would refuse.
fn convert_limited(folder: &Path) {
    let place = folder.join("around/out");
    match conversion(folder, 0).run(&place, &options(false), &Silent).unwrap_err() {
        FormatError::Io { operation: "write", path, cause } => {
            assert!(path.ends_with("data.bin"), "{}", path.display());
            assert_eq!(cause.kind(), std::io::ErrorKind::FileTooLarge);
        }
        error => panic!("{error}"),
    }
}

#[test]
fn what_the_system_refuses_leaves_nothing() {
    let (folder, around) = prepared();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ && ulimit -f 100 && exec \"$0\" \"$@\""]);
    command.arg(std::env::current_exe().unwrap());
    arguments(folder.path(), "limited", &mut command);
    let status = command.status().unwrap();
    assert!(status.success(), "{status}");
    assert_eq!(names(&around), [""; 0]);
}

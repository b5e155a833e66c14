//! What is refused before a byte is written, and what stops in the middle: typed errors, and nothing left behind.

use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use reshard_formats::{
    Checkpoint, Checksum, Conversion, FileId, FormatError, Kept, Known, Output, Silent, Span, TargetFile,
    WriteFault, WriteOptions,
};
use reshard_layout::{Bytes, DType, Kind};

use super::{checkpoint, matrix, names, output};

const SHAPE: [u64; 2] = [1000, 400];

fn source(folder: &Path) -> Checkpoint {
    checkpoint(folder, &[(Kept::Weights, matrix("w", SHAPE, DType::F32, 1, 2, 1))])
}

fn target() -> Output {
    output(&[(Kept::Weights, matrix("w", SHAPE, DType::F32, 0, 4, 1))])
}

fn options() -> WriteOptions {
    WriteOptions { sync: false, ..WriteOptions::default() }
}

fn fault(error: FormatError) -> WriteFault {
    match error {
        FormatError::Write { fault, .. } => fault,
        error => panic!("{error}"),
    }
}

#[test]
fn output_and_input_must_lie_apart() {
    let around = tempfile::tempdir().unwrap();
    let input = around.path().join("a/in");
    let conversion = Conversion::new(source(&input), target()).unwrap();
    let forced = WriteOptions { force: true, ..options() };
    std::os::unix::fs::symlink(&input, around.path().join("link")).unwrap();
    for place in [input.clone(), input.join("out"), around.path().join("link/out")] {
        let error = conversion.run(&place, &forced, &Silent).unwrap_err();
        assert_eq!(fault(error), WriteFault::InsideInput { input: input.clone() }, "{}", place.display());
    }
    let error = conversion.run(&around.path().join("a"), &forced, &Silent).unwrap_err();
    assert_eq!(fault(error), WriteFault::HoldsInput { input: input.clone() });
    // A file that is taken over counts as input.
    let mut output = target();
    let other = around.path().join("b/config.json");
    fs::create_dir(around.path().join("b")).unwrap();
    fs::write(&other, b"{}").unwrap();
    output.copied.push((other.clone(), "config.json".into()));
    let conversion = Conversion::new(source(&input), output).unwrap();
    let error = conversion.run(&around.path().join("b"), &forced, &Silent).unwrap_err();
    assert_eq!(fault(error), WriteFault::HoldsInput { input: other });
    assert_eq!(names(around.path()), ["a", "b", "link"]);
    assert_eq!(names(&around.path().join("a")), ["in"]);
}

#[test]
fn memory_and_disk_are_counted_first() {
    let around = tempfile::tempdir().unwrap();
    let input = around.path().join("in");
    let place = around.path().join("out");
    let conversion = Conversion::new(source(&input), target()).unwrap();
    let little = WriteOptions { memory: Bytes(131_071), ..options() };
    let error = conversion.run(&place, &little, &Silent).unwrap_err();
    assert_eq!(error.kind(), Some(Kind::OverBudget));
    assert_eq!(fault(error), WriteFault::MemoryTooSmall { needed: Bytes(131_072), found: Bytes(131_071) });
    let mut huge = target();
    let (path, length) = ("huge".into(), 1 << 60);
    huge.files.push(TargetFile { path, length, known: Vec::new(), checksums: Vec::new() });
    let others: u64 = target().files.iter().map(|file| file.length).sum();
    let conversion = Conversion::new(source(&input), huge).unwrap();
    match fault(conversion.run(&place, &options(), &Silent).unwrap_err()) {
        WriteFault::SpaceShort { needed, available } => {
            assert_eq!(needed, Bytes((1 << 60) + others));
            assert!(available.0 > 0 && available < needed);
        }
        other => panic!("{other}"),
    }
    assert_eq!(names(around.path()), ["in"]);
}

#[test]
fn files_must_fit_and_stay_inside() {
    let around = tempfile::tempdir().unwrap();
    let input = around.path().join("in");
    let refused = |change: &dyn Fn(&mut Output)| {
        let mut output = target();
        change(&mut output);
        fault(Conversion::new(source(&input), output).unwrap_err())
    };
    for path in ["/etc/passwd", "../x", "a/../../x", "a/./x", "a//x", "a/", ""] {
        let found = refused(&|output| output.files[1].path = path.into());
        assert_eq!(found, WriteFault::PathClimbs { file: path.into() });
        let config = around.path().join("config.json");
        fs::write(&config, b"{}").unwrap();
        let found = refused(&|output| output.copied.push((config.clone(), path.into())));
        assert_eq!(found, WriteFault::PathClimbs { file: path.into() });
    }
    let first = target().files[0].path.clone();
    let found = refused(&|output| output.files[1].path = output.files[0].path.clone());
    assert_eq!(found, WriteFault::PathRepeated { file: first.clone() });
    let found = refused(&|output| output.files[1].path = first.join("below"));
    assert_eq!(found, WriteFault::PathRepeated { file: first.join("below") });

    let length = target().files[0].length;
    let misplaced = |what, begin, end| {
        let file = first.clone();
        WriteFault::Misplaced { file, what, begin, end, length }
    };
    let known = |offset, bytes: &[u8]| Known { offset, bytes: bytes.to_vec() };
    let found = refused(&|output| output.files[0].known.push(known(4, b"x")));
    assert_eq!(found, misplaced("known part", 4, 5));
    let found = refused(&|output| output.files[0].known.push(known(length - 1, b"xy")));
    assert_eq!(found, misplaced("known part", length - 1, length + 1));
    let found = refused(&|output| output.files[0].known.push(known(u64::MAX, b"xy")));
    assert_eq!(found, misplaced("known part", u64::MAX, u64::MAX));
    let checksum = |data, at: u64| Checksum { data, at: vec![at] };
    let found = refused(&|output| output.files[0].checksums.push(checksum(0..0, length - 3)));
    assert_eq!(found, misplaced("checksum", length - 3, length + 1));
    let found = refused(&|output| output.files[0].checksums.push(checksum(0..0, 7)));
    assert_eq!(found, misplaced("checksum", 7, 11));
    let found = refused(&|output| output.files[0].checksums.push(checksum(length..length + 1, 7)));
    assert_eq!(found, misplaced("data of a checksum", length, length + 1));
    let found = refused(&|output| output.parts[0].spans[0].file = FileId(9));
    assert!(matches!(found, WriteFault::SpanDiffers { found: Bytes(0), .. }), "{found}");
    let short = Span { length: Bytes(3), ..target().parts[0].spans[0] };
    let found = refused(&|output| output.parts[0].spans[0] = short);
    assert!(matches!(found, WriteFault::SpanDiffers { found: Bytes(3), .. }), "{found}");
    let found = refused(&|output| {
        let part = output.parts[0].clone();
        output.parts.insert(Kept::Master, part);
    });
    assert_eq!(found, WriteFault::KeptMissing { kept: Kept::Master });
}

#[test]
fn a_source_that_shrinks_stops_all_and_leaves_nothing() {
    let around = tempfile::tempdir().unwrap();
    let input = around.path().join("in");
    let conversion = Conversion::new(source(&input), target()).unwrap();
    let shrunk = input.join("weights-1.bin");
    fs::File::options().write(true).open(&shrunk).unwrap().set_len(300_000).unwrap();
    for threads in 1..4 {
        let threads = NonZeroUsize::new(threads).unwrap();
        let options = WriteOptions { memory: Bytes(256 << 10), threads, ..options() };
        match conversion.run(&around.path().join("out"), &options, &Silent).unwrap_err() {
            FormatError::Io { operation: "read", path, cause } => {
                assert_eq!(path, shrunk);
                assert_eq!(cause.kind(), std::io::ErrorKind::UnexpectedEof);
            }
            error => panic!("{error}"),
        }
        assert_eq!(names(around.path()), ["in"]);
    }
}

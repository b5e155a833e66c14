//! How fast raw files are converted beside `cp`, and in how much memory.
//!
//! `cargo run --release -p reshard-formats --example convert_rate -- FOLDER [MIB] [REPEATS] [THREADS]`
//!
//! Each layout is converted in turn with `cp -r --reflink=never` of the same source, from the page cache, once without
//! and once with everything brought to disk. Medians, in one run. Memory is the private memory (RssAnon) at its highest
//! while the conversion runs, above what it was just before. FOLDER needs room for three times the size.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indexmap::IndexMap;
use reshard_formats::{
    Checkpoint, Conversion, Facts, FileId, Files, Format, Kept, Output, Part, Silent, Span, TargetFile,
    WriteOptions,
};
use reshard_layout::{Block, Bytes, DType, Elements, Geometry, Layout, LayoutBuilder, Rank, Region};

const COLUMNS: u64 = 4096;
const ROWS: u64 = 4096;

/// Matrices cut along an axis over some ranks, each shard in a storage of its own.
fn matrices(count: u64, dtype: DType, axis: usize, parts: u64) -> Layout {
    let mut builder = LayoutBuilder::new();
    for index in 0..count {
        let name = format!("layers.{index}.weight");
        let w = builder.parameter(&name, [ROWS, COLUMNS], dtype);
        for part in 0..parts {
            let (mut origin, mut extent) = ([0, 0], [ROWS, COLUMNS]);
            extent[axis] /= parts;
            origin[axis] = part * extent[axis];
            let region = Region::new(origin, extent);
            let elements = Elements(region.volume());
            let geometry = Geometry::new([ROWS, COLUMNS], [Block::dense(region, Elements(0))]);
            let geometry = builder.geometry(geometry);
            let storage = builder.storage(Rank(part as u32), &name, elements.bytes(dtype));
            let buffer = builder.buffer(storage, Bytes(0), dtype, elements);
            builder.place(w, buffer, Elements(0), geometry);
        }
    }
    builder.build().unwrap()
}

/// A file a rank, its storages one after another after 4096 bytes of head.
fn spans(layout: &Layout) -> (Vec<u64>, Vec<Span>) {
    let mut lengths = vec![4096; layout.world() as usize];
    let span = |storage: &reshard_layout::Storage| {
        let length = &mut lengths[storage.rank.index()];
        let span = Span { file: FileId(storage.rank.0), offset: Bytes(*length), length: storage.length };
        *length += storage.length.0;
        span
    };
    let spans = layout.places().storages.iter().map(span).collect();
    (lengths, spans)
}

fn source(folder: &Path, layout: &Layout) -> Checkpoint {
    let (lengths, spans) = spans(layout);
    let mut files = Files::default();
    for (rank, length) in lengths.iter().enumerate() {
        files.add(&source_file(folder, rank, *length)).unwrap();
    }
    let part = Part { layout: layout.clone(), spans };
    let (format, root) = (Format::HuggingFace, folder.to_owned());
    Checkpoint {
        format,
        root,
        files,
        parts: IndexMap::from([(Kept::Weights, part)]),
        facts: Facts::default(),
    }
}

/// Writes a source file, unless it is there.
fn source_file(folder: &Path, rank: usize, length: u64) -> PathBuf {
    let path = folder.join(format!("rank-{rank}.bin"));
    if !path.exists() {
        std::fs::create_dir_all(folder).unwrap();
        let bytes: Vec<u8> = (0..length).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
        std::fs::write(&path, bytes).unwrap();
        // What is still to reach the disk would be paid by whoever writes next.
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
    }
    path
}

fn output(layout: &Layout) -> Output {
    let (lengths, spans) = spans(layout);
    let file = |(rank, length): (usize, u64)| TargetFile {
        path: format!("rank-{rank}.bin").into(),
        length,
        known: Vec::new(),
        checksums: Vec::new(),
    };
    let files = lengths.into_iter().enumerate().map(file).collect();
    let part = Part { layout: layout.clone(), spans };
    Output { files, parts: IndexMap::from([(Kept::Weights, part)]), copied: Vec::new() }
}

/// Private memory of this process, in bytes.
fn private_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Runs `work` and tells the highest private memory meanwhile, above what it was.
fn highest_private_bytes(work: impl FnOnce()) -> u64 {
    let (base, highest, done) = (private_bytes(), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                highest.fetch_max(private_bytes(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        work();
        done.store(true, Ordering::Relaxed);
    });
    highest.into_inner().saturating_sub(base)
}

fn seconds(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

/// Copies as `cp` does, then brings every file to disk if `sync` says so.
fn copy(from: &Path, to: &Path, sync: bool) {
    let status = Command::new("cp").args(["-r", "--reflink=never"]).arg(from).arg(to).status().unwrap();
    assert!(status.success());
    if sync {
        let files = std::fs::read_dir(to).unwrap().map(|entry| entry.unwrap().path());
        let status = Command::new("sync").args(files).status().unwrap();
        assert!(status.success());
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().unwrap());
    let mut number = |otherwise: u64| arguments.next().map_or(otherwise, |text| text.parse().unwrap());
    let (mebibytes, repeats) = (number(2048), number(5));
    let threads = NonZeroUsize::new(number(2) as usize).unwrap();
    let (f32, bf16) = (DType::F32, DType::Bf16);
    let count = mebibytes / 64;
    let cases = [
        ("contiguous", matrices(count, f32, 0, 2), matrices(count, f32, 0, 2)),
        ("rows of 2 ranks merged", matrices(count, f32, 0, 2), matrices(count, f32, 0, 1)),
        ("columns of 2 ranks merged", matrices(count, f32, 1, 2), matrices(count, f32, 0, 1)),
        ("columns of 1 cut in 4", matrices(count, f32, 0, 1), matrices(count, f32, 1, 4)),
        ("columns merged, f32 to bf16", matrices(count, f32, 1, 2), matrices(count, bf16, 0, 1)),
    ];
    for (name, from, to) in &cases {
        let sources = folder.join(format!("in-{}", from.world()));
        let conversion = Conversion::new(source(&sources, from), output(to)).unwrap();
        for sync in [false, true] {
            let options = WriteOptions { memory: Bytes(256 << 20), threads, sync, ..WriteOptions::default() };
            let (mut converted, mut copied, mut highest) = (Vec::new(), Vec::new(), 0);
            let (out, copy_of) = (folder.join("out"), folder.join("copy"));
            let mut ours = || {
                highest = highest.max(highest_private_bytes(|| {
                    let report = conversion.run(&out, &options, &Silent).unwrap();
                    converted.push(report.seconds);
                }));
                std::fs::remove_dir_all(&out).unwrap();
            };
            let mut theirs = || {
                copied.push(seconds(|| copy(&sources, &copy_of, sync)));
                std::fs::remove_dir_all(&copy_of).unwrap();
            };
            // Each goes first every other time: what the first has left to the disk is paid by the second.
            for round in 0..repeats {
                if round % 2 == 0 {
                    theirs();
                    ours();
                } else {
                    ours();
                    theirs();
                }
            }
            let (ours, theirs) = (median(converted), median(copied));
            println!(
                "{name:<28} sync {sync:<5}  {ours:6.2} s   cp {theirs:6.2} s   ratio {:4.2}   {:5.1} MiB",
                ours / theirs,
                highest as f64 / f64::from(1 << 20)
            );
        }
    }
    for parts in [1, 2] {
        std::fs::remove_dir_all(folder.join(format!("in-{parts}"))).unwrap();
    }
}

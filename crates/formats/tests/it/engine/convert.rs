//! Conversions against files that are put together in memory, element by element.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use half::bf16;
use proptest::prelude::*;
use reshard_formats::{Conversion, Kept, Progress, Replicas, Silent, WriteOptions, write_files};
use reshard_layout::strategies::layout_pairs;
use reshard_layout::{Bytes, DType};
use reshard_transport::Assembly;

use super::{assert_same, checkpoint, expected, matrix, names, output, retyped, storages, tree};

const LEAST: Bytes = Bytes(128 << 10);

fn options(memory: Bytes, threads: usize) -> WriteOptions {
    let threads = NonZeroUsize::new(threads).unwrap();
    WriteOptions { memory, threads, sync: false, ..WriteOptions::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_layout_becomes_any_other(
        weights in layout_pairs(),
        masters in layout_pairs(),
        dtype in prop::sample::select(vec![DType::F64, DType::Bf16, DType::U8]),
        threads in 1usize..4,
        sync in prop::bool::weighted(0.1),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let state = Kept::State("exp_avg".to_owned());
        let source = [
            (Kept::Weights, weights.0.clone()),
            (Kept::Master, masters.0.clone()),
            (state.clone(), retyped(&weights.0, dtype)),
        ];
        // Not in the same order, and not all of it.
        let target = [(state, retyped(&weights.1, dtype)), (Kept::Weights, weights.1.clone())];
        let mut output = output(&target);
        let copied = folder.path().join("config.json");
        std::fs::write(&copied, b"{}").unwrap();
        output.copied.push((copied, "deep/config.json".into()));
        let memory: Vec<_> = target.iter().map(|(kept, layout)| storages(kept, layout, 0)).collect();
        let mut wanted = expected(&output, &memory);
        wanted.insert("deep/config.json".into(), b"{}".to_vec());
        let bytes: u64 = wanted.values().map(|bytes| bytes.len() as u64).sum();
        let conversion = Conversion::new(checkpoint(&folder.path().join("in"), &source), output).unwrap();
        let target_folder = folder.path().join("out");
        let options = WriteOptions { sync, ..options(LEAST, threads) };
        let report = conversion.run(&target_folder, &options, &Silent).unwrap();
        assert_same(&tree(&target_folder), &wanted);
        prop_assert_eq!(names(folder.path()), ["config.json", "in", "out"]);
        prop_assert_eq!((report.bytes_written, report.files), (Bytes(bytes), wanted.len()));
        let summary = conversion.summary();
        prop_assert_eq!((summary.bytes_written, summary.files), (Bytes(bytes), wanted.len()));
    }
}

#[derive(Default)]
struct Count(AtomicU64);

impl Progress for Count {
    fn advance(&self, bytes: Bytes) {
        self.0.fetch_add(bytes.0, Ordering::Relaxed);
    }
}

#[test]
fn many_windows_make_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [3000, 330];
    let source = [(Kept::Weights, matrix("w", shape, DType::F32, 1, 3, 1))];
    for (number, (axis, parts)) in [(0, 1), (0, 4), (1, 2), (1, 330)].into_iter().enumerate() {
        let target = [(Kept::Weights, matrix("w", shape, DType::F32, axis, parts, 1))];
        let output = output(&target);
        let wanted = expected(&output, &[storages(&Kept::Weights, &target[0].1, 0)]);
        let conversion = Conversion::new(checkpoint(&folder.path().join("in"), &source), output).unwrap();
        let place = folder.path().join(format!("out{number}"));
        let count = Count::default();
        let report = conversion.run(&place, &options(LEAST, 1 + number), &count).unwrap();
        assert_same(&tree(&place), &wanted);
        assert_eq!(count.0.into_inner(), report.bytes_written.0);
        let needed = 3000 * 330 * 4;
        assert_eq!(conversion.summary().parts[&Kept::Weights].bytes_read, Bytes(needed));
        // Columns are read with what lies between, at most all of a row for each.
        let limit = if parts == 330 { 110 * needed } else { needed * 22 / 10 };
        assert!(report.bytes_read.0 <= limit, "{} bytes of {needed}", report.bytes_read);
    }
}

#[test]
fn rows_are_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [3000, 330];
    let source = [(Kept::Weights, matrix("w", shape, DType::F32, 0, 3, 1))];
    let target = [(Kept::Weights, matrix("w", shape, DType::F32, 0, 8, 1))];
    let conversion =
        Conversion::new(checkpoint(&folder.path().join("in"), &source), output(&target)).unwrap();
    let report = conversion.run(&folder.path().join("out"), &options(LEAST, 2), &Silent).unwrap();
    assert_eq!(report.bytes_read, Bytes(3000 * 330 * 4));
}

#[test]
fn another_float_type_is_cast() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [1001, 333];
    let source = matrix("w", shape, DType::F32, 1, 3, 1);
    let target = matrix("w", shape, DType::Bf16, 0, 7, 1);
    let output = output(&[(Kept::Weights, target.clone())]);
    let mut memory = storages(&Kept::Weights, &target, 0);
    for (storage, byte, parameter, flat) in super::elements(&target) {
        let value = super::element(&Kept::Weights, parameter, flat, DType::F32);
        let value = bf16::from_f32(f32::from_le_bytes(value.try_into().unwrap()));
        memory[storage][byte..byte + 2].copy_from_slice(&value.to_le_bytes());
    }
    let wanted = expected(&output, &[memory]);
    let source = checkpoint(&folder.path().join("in"), &[(Kept::Weights, source)]);
    let conversion = Conversion::new(source, output).unwrap();
    let place = folder.path().join("out");
    conversion.run(&place, &options(LEAST, 2), &Silent).unwrap();
    assert_same(&tree(&place), &wanted);
}

#[test]
fn processes_write_their_own_files() {
    let folder = tempfile::tempdir().unwrap();
    let shape = [600, 300];
    let source =
        checkpoint(&folder.path().join("in"), &[(Kept::Weights, matrix("w", shape, DType::F32, 1, 2, 1))]);
    let target = [(Kept::Weights, matrix("w", shape, DType::F32, 0, 3, 1))];
    let output = output(&target);
    let wanted = expected(&output, &[storages(&Kept::Weights, &target[0].1, 0)]);
    let (held, part) = (&source.parts[&Kept::Weights], &output.parts[&Kept::Weights]);
    let plan = reshard_plan::plan(&held.layout, &part.layout, reshard_plan::Policy::Lowest).unwrap();
    let assembly = Assembly::new(&plan).unwrap();
    let reader = source.reader(held);
    let filling = reshard_formats::Filling { part, assembly: &assembly, sources: &reader };
    let place = folder.path().join("out");
    let out = reshard_formats::OutputFolder::create(&place, false).unwrap();
    for (number, file) in (0u32..).map(reshard_formats::FileId).take(output.files.len()).enumerate() {
        assert_eq!(tree(out.path()).len(), number);
        let options = WriteOptions { replicas: Replicas::First, ..options(LEAST, 2) };
        let report = write_files(out.path(), &output.files, &[file], &[filling], &options, &Silent).unwrap();
        assert_eq!((report.files, report.bytes_written), (1, Bytes(output.files[number].length)));
        assert!(report.bytes_read >= Bytes(200 * 300 * 4));
    }
    assert!(!place.exists());
    out.commit(true).unwrap();
    assert_same(&tree(&place), &wanted);
    assert_eq!(names(folder.path()), ["in", "out"]);
}

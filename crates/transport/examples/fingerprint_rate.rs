//! How fast fingerprints are taken, in GB/s on one thread, beside a plain sum of the same bytes.
//!
//! `cargo run --release -p reshard-transport --example fingerprint_rate`

#![allow(clippy::print_stdout)]

use std::time::Instant;

use reshard_layout::{DType, Region};
use reshard_transport::Fingerprinter;

const ROWS: u64 = 256;
const REPEATS: usize = 9;

/// The median of several runs, in GB/s.
fn rate(bytes: &[u8], mut run: impl FnMut(&[u8]) -> u64) -> f64 {
    let mut seconds: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let begin = Instant::now();
            std::hint::black_box(run(std::hint::black_box(bytes)));
            begin.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    bytes.len() as f64 / seconds[REPEATS / 2] / 1e9
}

fn main() {
    for (dtype, columns) in
        [(DType::U8, 4096), (DType::Bf16, 4096), (DType::F32, 4096), (DType::F64, 4096), (DType::F32, 9)]
    {
        let shape = [(64 << 20) / (ROWS * columns * dtype.size()) * ROWS, columns];
        let bytes: Vec<u8> =
            (0..shape[0] * columns * dtype.size()).map(|at| ((at * 7919) >> 5) as u8).collect();
        let weights = Fingerprinter::new("w", &shape, dtype);
        let region = Region::whole(&shape);
        let taken = rate(&bytes, |bytes| {
            let fingerprint = weights.of_box(&region, bytes);
            u64::from(fingerprint == weights.of_box(&Region::new([0, 0], [0, columns]), &[]))
        });
        let summed = rate(&bytes, |bytes| {
            bytes.as_chunks().0.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)))
        });
        println!("{dtype:<5} {shape:?}: fingerprint {taken:.1} GB/s, plain sum {summed:.1} GB/s");
    }
}

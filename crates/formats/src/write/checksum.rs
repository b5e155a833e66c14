//! Checksums of stretches that several workers write, put together when the file is done.
//!
//! ```text
//!   data of a checksum   |   window 1   |   window 2   |   w. 3 |
//!   CRC-32                    c1             c2            c3        combined in order ──► written at its places
//! ```

use std::ops::Range;

use crc32fast::Hasher;

use crate::output::Checksum;

/// The CRC-32 of a part of a checksum's data.
#[derive(Debug)]
pub(super) struct Partial {
    checksum: usize,
    begin: u64,
    hasher: Hasher,
}

/// The checksums' parts that lie in a window of the file, whose bytes are there. `checksums` may be in any order.
pub(super) fn partials(checksums: &[Checksum], window: &Range<u64>, bytes: &[u8]) -> Vec<Partial> {
    let of = |(checksum, wanted): (usize, &Checksum)| {
        let begin = wanted.data.start.max(window.start);
        let end = wanted.data.end.min(window.end);
        (begin < end).then(|| {
            let mut hasher = Hasher::new();
            hasher.update(&bytes[(begin - window.start) as usize..(end - window.start) as usize]);
            Partial { checksum, begin, hasher }
        })
    };
    checksums.iter().enumerate().filter_map(of).collect()
}

/// Each place and what is written there.
pub(super) fn combined(checksums: &[Checksum], mut partials: Vec<Partial>) -> Vec<(u64, [u8; 4])> {
    partials.sort_by_key(|partial| (partial.checksum, partial.begin));
    let mut whole: Vec<Hasher> = checksums.iter().map(|_| Hasher::new()).collect();
    for partial in &partials {
        whole[partial.checksum].combine(&partial.hasher);
    }
    let places = checksums.iter().zip(whole).flat_map(|(checksum, hasher)| {
        let bytes = hasher.finalize().to_le_bytes();
        checksum.at.iter().map(move |&at| (at, bytes))
    });
    places.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_in_any_order_make_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|at| (at * 7 + at / 13) as u8).collect();
        let checksums = [
            Checksum { data: 10..700, at: vec![0, 800] },
            Checksum { data: 700..700, at: vec![4] },
            Checksum { data: 710..712, at: vec![804] },
        ];
        let windows = [640..1000, 0..100, 320..640, 100..320];
        let parts = windows.iter().flat_map(|window: &Range<u64>| {
            partials(&checksums, window, &bytes[window.start as usize..window.end as usize])
        });
        let found = combined(&checksums, parts.collect());
        let slow = |data: &[u8]| {
            // Bit by bit, from the polynomial.
            let step = |crc: u32, byte: &u8| {
                (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                    (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
                })
            };
            (!data.iter().fold(u32::MAX, step)).to_le_bytes()
        };
        let (one, other) = (slow(&bytes[10..700]), slow(&bytes[710..712]));
        assert_eq!(found, [(0, one), (800, one), (4, [0; 4]), (804, other)]);
    }
}

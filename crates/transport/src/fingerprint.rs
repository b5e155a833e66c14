//! A sum over a tensor's elements that does not depend on how the tensor is cut.
//!
//! ```text
//!   F = Σ word x Π over axes (weight of the axis at the word's coordinate)    mod 2^61 - 1
//!   rank 0 has rows 0..2: F0      rank 1 has rows 2..4: F1      the whole tensor: F0 + F1, in any order
//! ```
//!
//! The weights are pseudo-random numbers of the tensor's name, shape and type, and of the axis, so that a value in
//! another place, or of another tensor, counts differently. A row, along the last axis, counts as the 32-bit
//! little-endian words of its bytes, whatever its elements are; a part of a word counts as if the rest were zero. It
//! goes by segments: a weight of 61 bits a segment and one of 32 bits a word in it. Two tensors that differ agree under
//! one key with a chance of about 2^-32; two keys are used. It finds mistakes, not attacks: the keys are no secret.

use std::ops::{Add, AddAssign};

use reshard_layout::{DType, Dims, Region};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The modulus, a Mersenne prime.
const PRIME: u64 = (1 << 61) - 1;

/// How many independent sums there are.
const KEYS: usize = 2;

/// Words of a segment of a row, and their bytes.
const SEGMENT_WORDS: u64 = 1024;
const SEGMENT_BYTES: u64 = 4 * SEGMENT_WORDS;

/// The fingerprint of a part of a tensor, or of all of it. Those of disjoint parts add up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint([u64; KEYS]);

impl Add for Fingerprint {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|key| (self.0[key] + other.0[key]) % PRIME))
    }
}

impl AddAssign for Fingerprint {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Fingerprint {
    fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
        items.fold(Self::default(), Add::add)
    }
}

/// The weights of one tensor: takes fingerprints of its parts.
#[derive(Clone, Debug)]
pub struct Fingerprinter {
    shape: Dims,
    dtype: DType,
    seeds: [u64; KEYS],
}

/// Weights of the words of a segment: the same for all tensors, whose segments have weights of their own.
static WORDS: [[u32; SEGMENT_WORDS as usize]; KEYS] = words();

const fn words() -> [[u32; SEGMENT_WORDS as usize]; KEYS] {
    let mut words = [[0; SEGMENT_WORDS as usize]; KEYS];
    let mut at = 0;
    while at < KEYS * SEGMENT_WORDS as usize {
        words[at / SEGMENT_WORDS as usize][at % SEGMENT_WORDS as usize] =
            (scrambled((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 32) as u32;
        at += 1;
    }
    words
}

impl Fingerprinter {
    /// The weights of the tensor with this name, shape and type.
    #[must_use]
    pub fn new(name: &str, shape: &[u64], dtype: DType) -> Self {
        let mut identity = Vec::with_capacity(name.len() + 8 * shape.len() + 16);
        identity.extend((name.len() as u64).to_le_bytes());
        identity.extend(name.as_bytes());
        identity.extend(dtype.name().as_bytes());
        identity.extend(shape.iter().flat_map(|extent| extent.to_le_bytes()));
        let seeds = std::array::from_fn(|key| xxh3_64_with_seed(&identity, key as u64));
        Self { shape: Dims::from_slice(shape), dtype, seeds }
    }

    /// The fingerprint of a box of the tensor, whose elements lie one after another in row-major order in `bytes`.
    ///
    /// # Panics
    /// If the box leaves the tensor, or `bytes` has another length than it: bugs of the caller.
    #[must_use]
    pub fn of_box(&self, region: &Region, bytes: &[u8]) -> Fingerprint {
        assert_eq!(region.axes(), self.shape.len(), "a box has the axes of its tensor");
        let inside = (0..region.axes()).all(|axis| region.end(axis) <= self.shape[axis]);
        assert!(inside, "a box lies inside its tensor");
        let expected = region.volume().checked_mul(self.dtype.size());
        assert_eq!(expected, Some(bytes.len() as u64), "the bytes are those of the box");
        if bytes.is_empty() {
            return Fingerprint::default();
        }
        let sum = self.axes(region, 0, bytes);
        Fingerprint(std::array::from_fn(|key| sum[key] % PRIME))
    }

    /// The sum over the axes from `axis` on.
    fn axes(&self, region: &Region, axis: usize, bytes: &[u8]) -> [u64; KEYS] {
        // Axes of one element at the end would make segments of one element.
        let last = self.shape.iter().rposition(|&extent| extent != 1).unwrap_or(0);
        if axis >= last {
            let first = region.origin().get(last).copied().unwrap_or(0);
            return self.row(last, first * self.dtype.size(), bytes);
        }
        let extent = region.extent()[axis];
        let steps = bytes.chunks_exact(bytes.len() / extent as usize);
        let mut sum = [0; KEYS];
        for (at, step) in (region.origin()[axis]..).zip(steps) {
            let inner = self.axes(region, axis + 1, step);
            for key in 0..KEYS {
                let weight = reduced(mixed(self.seeds[key], axis as u64, at).into());
                sum[key] = (sum[key] + times(weight, inner[key])) % PRIME;
            }
        }
        sum
    }

    /// The sum over bytes of the last axis, from byte `first` of a row on.
    fn row(&self, axis: usize, first: u64, bytes: &[u8]) -> [u64; KEYS] {
        let mut sum = [0; KEYS];
        let (mut at, mut left) = (first, bytes);
        while !left.is_empty() {
            let within = at % SEGMENT_BYTES;
            let (now, later) = left.split_at(left.len().min((SEGMENT_BYTES - within) as usize));
            let inner = Self::segment(within as usize, now);
            for key in 0..KEYS {
                let weight = reduced(mixed(self.seeds[key], axis as u64, at / SEGMENT_BYTES).into());
                sum[key] = (sum[key] + times(weight, inner[key])) % PRIME;
            }
            at += now.len() as u64;
            left = later;
        }
        sum
    }

    /// The sum over bytes from byte `first` of a segment on. The first and last word may be parts of words.
    fn segment(first: usize, bytes: &[u8]) -> [u64; KEYS] {
        let mut sums = [0u128; KEYS];
        let (mut at, mut left) = (first, bytes);
        if !at.is_multiple_of(4) {
            let (now, later) = left.split_at(left.len().min(4 - at % 4));
            Self::add_part(at, now, &mut sums);
            (at, left) = (at + now.len(), later);
        }
        let (words, rest) = left.as_chunks::<4>();
        let weights = [&WORDS[0][at / 4..][..words.len()], &WORDS[1][at / 4..][..words.len()]];
        for (word, (one, other)) in words.iter().zip(weights[0].iter().zip(weights[1])) {
            let word = u64::from(u32::from_le_bytes(*word));
            sums[0] += u128::from(word * u64::from(*one));
            sums[1] += u128::from(word * u64::from(*other));
        }
        if !rest.is_empty() {
            Self::add_part(at + 4 * words.len(), rest, &mut sums);
        }
        sums.map(reduced)
    }

    /// Adds bytes of one word, from byte `at` of the segment on.
    fn add_part(at: usize, bytes: &[u8], sums: &mut [u128; KEYS]) {
        let mut word = [0; 4];
        word[at % 4..][..bytes.len()].copy_from_slice(bytes);
        let word = u64::from(u32::from_le_bytes(word));
        for (sum, weights) in sums.iter_mut().zip(&WORDS) {
            *sum += u128::from(word * u64::from(weights[at / 4]));
        }
    }
}

/// A pseudo-random number of a key, an axis and a coordinate.
fn mixed(seed: u64, axis: u64, at: u64) -> u64 {
    let mut bits = seed ^ axis.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = scrambled(bits).wrapping_add(at.wrapping_mul(0xd1b5_4a32_d192_ed03));
    scrambled(bits)
}

/// The finaliser of splitmix64 (Steele, Lea and Flood 2014, with Stafford's constants, variant 13).
const fn scrambled(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn times(one: u64, other: u64) -> u64 {
    reduced(u128::from(one) * u128::from(other))
}

/// A number below 2^122 modulo the prime: 2^61 counts as 1.
fn reduced(value: u128) -> u64 {
    let folded = (value as u64 & PRIME) + (value >> 61) as u64;
    let folded = (folded & PRIME) + (folded >> 61);
    if folded >= PRIME { folded - PRIME } else { folded }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use reshard_layout::{coordinate, volume};

    /// The same sum byte by byte, with the remainder of 128-bit numbers and no segments in a row.
    fn slow(name: &str, shape: &[u64], dtype: DType, region: &Region, bytes: &[u8]) -> Fingerprint {
        let weights = Fingerprinter::new(name, shape, dtype);
        let prime = u128::from(PRIME);
        let size = dtype.size();
        let last = shape.iter().rposition(|&extent| extent != 1).unwrap_or(0);
        let sum = |key: usize| {
            let mut sum = 0u128;
            for (local, byte) in (0u64..).zip(bytes) {
                let at = coordinate(local / size, region.extent());
                let at: Vec<u64> = at.iter().zip(region.origin()).map(|(at, from)| at + from).collect();
                let in_row = at.get(last).copied().unwrap_or(0) * size + local % size;
                let mut product = u128::from(*byte) << (8 * (in_row % 4));
                for (axis, &at) in (0u64..).zip(&at[..last]) {
                    let weight = mixed(weights.seeds[key], axis, at);
                    product = product * (u128::from(weight) % prime) % prime;
                }
                let (word, segment) = (in_row / 4 % SEGMENT_WORDS, in_row / 4 / SEGMENT_WORDS);
                let segment = mixed(weights.seeds[key], last as u64, segment);
                product = product * (u128::from(segment) % prime) % prime;
                sum = (sum + product * u128::from(WORDS[key][word as usize])) % prime;
            }
            sum as u64
        };
        Fingerprint([sum(0), sum(1)])
    }

    fn data(length: u64, salt: u64) -> Vec<u8> {
        (0..length).map(|at| (scrambled(at ^ salt << 32) >> 11) as u8).collect()
    }

    /// The dense bytes of a box of dense bytes.
    fn sliced(shape: &[u64], region: &Region, size: usize, bytes: &[u8]) -> Vec<u8> {
        let strides = reshard_layout::row_major(shape);
        let element = |local| {
            let at = coordinate(local, region.extent());
            let flat: u64 =
                (0..shape.len()).map(|axis| (at[axis] + region.origin()[axis]) * strides[axis]).sum();
            &bytes[flat as usize * size..][..size]
        };
        (0..region.volume()).flat_map(element).copied().collect()
    }

    /// Boxes that cover a tensor, cut again and again at random places.
    fn cover(shape: &[u64], cuts: &[(usize, f64)]) -> Vec<Region> {
        let mut boxes = vec![Region::whole(shape)];
        for (number, (axis, fraction)) in cuts.iter().enumerate() {
            let region = boxes.swap_remove(number % boxes.len());
            if shape.is_empty() {
                return vec![region];
            }
            let axis = axis % shape.len();
            let at = region.origin()[axis] + (region.extent()[axis] as f64 * fraction) as u64;
            let (low, high) = region.split(axis, at);
            boxes.extend([low, high]);
        }
        boxes
    }

    const TYPES: [DType; 4] = [DType::U8, DType::Bf16, DType::F32, DType::F64];

    fn shapes() -> impl Strategy<Value = Vec<u64>> {
        let small = prop::collection::vec(1u64..7, 0..4);
        let long = (1u64..4, 900u64..2500).prop_map(|(rows, columns)| vec![rows, columns]);
        let thin = (1u64..40).prop_map(|rows| vec![rows, 1, 1]);
        prop_oneof![small, long, thin]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn parts_add_up_to_the_slow_sum_of_the_whole(
            shape in shapes(),
            dtype in prop::sample::select(TYPES.to_vec()),
            cuts in prop::collection::vec((0usize..4, 0.0..1.0f64), 0..8),
            salt in any::<u64>(),
        ) {
            let size = dtype.size();
            let bytes = data(volume(&shape).unwrap() * size, salt);
            let weights = Fingerprinter::new("w", &shape, dtype);
            let whole = weights.of_box(&Region::whole(&shape), &bytes);
            prop_assert_eq!(whole, slow("w", &shape, dtype, &Region::whole(&shape), &bytes));
            let parts = cover(&shape, &cuts);
            let sum: Fingerprint = parts
                .iter()
                .map(|region| weights.of_box(region, &sliced(&shape, region, size as usize, &bytes)))
                .sum();
            prop_assert_eq!(sum, whole);
        }

        #[test]
        fn one_bit_counts(
            shape in shapes(),
            dtype in prop::sample::select(TYPES.to_vec()),
            place in 0.0..1.0f64,
            bit in 0u32..8,
        ) {
            let mut bytes = data(volume(&shape).unwrap() * dtype.size(), 1);
            let weights = Fingerprinter::new("w", &shape, dtype);
            let before = weights.of_box(&Region::whole(&shape), &bytes);
            let at = (bytes.len() as f64 * place) as usize;
            bytes[at] ^= 1 << bit;
            let after = weights.of_box(&Region::whole(&shape), &bytes);
            prop_assert!(before.0[0] != after.0[0] && before.0[1] != after.0[1]);
        }
    }

    #[test]
    fn places_names_shapes_and_types_count() {
        let (rows, columns) = (5u64, 1500u64);
        let bytes = data(rows * columns * 4, 3);
        let of = |name: &str, shape: &[u64], dtype: DType, bytes: &[u8]| {
            Fingerprinter::new(name, shape, dtype).of_box(&Region::whole(shape), bytes)
        };
        let mut seen = std::collections::HashSet::from([of("w", &[rows, columns], DType::F32, &bytes)]);
        let mut is_new = |fingerprint| assert!(seen.insert(fingerprint));
        is_new(of("v", &[rows, columns], DType::F32, &bytes));
        is_new(of("w", &[columns, rows], DType::F32, &bytes));
        is_new(of("w", &[rows, columns], DType::I32, &bytes));
        is_new(of("w", &[1, rows, columns], DType::F32, &bytes));
        let row = |at: u64| (at * columns * 4) as usize..((at + 1) * columns * 4) as usize;
        for other in 1..rows {
            let mut swapped = bytes.clone();
            swapped[row(0)].copy_from_slice(&bytes[row(other)]);
            swapped[row(other)].copy_from_slice(&bytes[row(0)]);
            is_new(of("w", &[rows, columns], DType::F32, &swapped));
        }
        // Columns of one segment, and the same place of two segments.
        for other in [1, 1023, 1024, 1499] {
            let mut swapped = bytes.clone();
            for row in 0..rows {
                let at = |column: u64| ((row * columns + column) * 4) as usize;
                for byte in 0..4 {
                    swapped.swap(at(0) + byte, at(other) + byte);
                }
            }
            is_new(of("w", &[rows, columns], DType::F32, &swapped));
        }
    }

    #[test]
    fn nothing_counts_as_nothing() {
        let weights = Fingerprinter::new("w", &[0, 4], DType::F32);
        assert_eq!(weights.of_box(&Region::whole(&[0, 4]), &[]), Fingerprint::default());
    }
}

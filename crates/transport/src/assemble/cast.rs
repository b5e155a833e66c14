//! Values of one float type written as another, rounded once to the nearest, ties to even. NaN stays NaN.
//!
//! ```text
//!   source  f32  3f 80 80 00   ──► target  bf16  3f 80        halfway: to the even one
//! ```
//!
//! Elements are read and written as bytes, so that neither side needs to be aligned.

use half::{bf16, f16};
use reshard_layout::DType;

use crate::kernel::Axis;

/// Whether values of the type can be cast.
pub(super) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::Bf16)
}

/// Casts a box whose first element lies at the beginning of `source` and at byte `target` of `into`. Strides are in
/// bytes, the largest target stride first. Types that are no floats were refused before, and are left alone.
pub(super) fn cast_box(
    (from, source): (DType, &[u8]),
    (to, into): (DType, &mut [u8]),
    target: u64,
    axes: &[Axis],
) {
    macro_rules! walk {
        ($source:ty, $target:ty, $convert:expr) => {
            Walk { convert: |value| <$target>::to_le_bytes($convert(<$source>::from_le_bytes(value))) }.steps(
                source,
                into,
                (0, target as usize),
                axes,
            )
        };
    }
    match (from, to) {
        (DType::F64, DType::F32) => walk!(f64, f32, |value| value as f32),
        (DType::F64, DType::F16) => walk!(f64, f16, |value| f16::from_f32(to_odd(value))),
        (DType::F64, DType::Bf16) => walk!(f64, bf16, |value| bf16::from_f32(to_odd(value))),
        (DType::F32, DType::F64) => walk!(f32, f64, f64::from),
        (DType::F32, DType::F16) => walk!(f32, f16, f16::from_f32),
        (DType::F32, DType::Bf16) => walk!(f32, bf16, bf16::from_f32),
        (DType::F16, DType::F64) => walk!(f16, f64, f64::from),
        (DType::F16, DType::F32) => walk!(f16, f32, f32::from),
        (DType::F16, DType::Bf16) => walk!(f16, bf16, |value| bf16::from_f32(f32::from(value))),
        (DType::Bf16, DType::F64) => walk!(bf16, f64, f64::from),
        (DType::Bf16, DType::F32) => walk!(bf16, f32, f32::from),
        (DType::Bf16, DType::F16) => walk!(bf16, f16, |value| f16::from_f32(f32::from(value))),
        _ => {}
    }
}

/// An `f64` as an `f32` that is cut off, with its last bit set if anything was lost: what is then rounded to 16 bits
/// is rounded as if only once.
fn to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() {
        return nearest;
    }
    let is_away = back.abs() > value.abs();
    f32::from_bits((nearest.to_bits() - u32::from(is_away)) | 1)
}

/// Elements of `S` bytes cast to elements of `T` bytes.
struct Walk<const S: usize, const T: usize, F> {
    convert: F,
}

impl<const S: usize, const T: usize, F: Fn([u8; S]) -> [u8; T]> Walk<S, T, F> {
    fn steps(&self, source: &[u8], into: &mut [u8], (from, to): (usize, usize), axes: &[Axis]) {
        match axes {
            [] => self.run(&source[from..from + S], &mut into[to..to + T]),
            [last] if last.source_stride == S as u64 && last.target_stride == T as u64 => {
                let count = last.extent as usize;
                self.run(&source[from..from + count * S], &mut into[to..to + count * T]);
            }
            [outer, inner @ ..] => {
                for step in 0..outer.extent as usize {
                    let from = from + step * outer.source_stride as usize;
                    let to = to + step * outer.target_stride as usize;
                    self.steps(source, into, (from, to), inner);
                }
            }
        }
    }

    /// Elements that lie one after another on both sides.
    fn run(&self, source: &[u8], into: &mut [u8]) {
        let (source, _) = source.as_chunks::<S>();
        let (into, _) = into.as_chunks_mut::<T>();
        for (value, cast) in source.iter().zip(into) {
            *cast = (self.convert)(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 16-bit float nearest to a value by looking at all of them; of two, the one with an even last bit.
    fn nearest(value: f64, widen: impl Fn(u16) -> f64, largest: u16) -> u16 {
        let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
        let distance = |bits: &u16| ((widen(*bits) - value.abs()).abs(), bits & 1);
        let by = |one: &u16, other: &u16| distance(one).partial_cmp(&distance(other)).unwrap();
        sign | (0..=largest).min_by(by).unwrap()
    }

    #[test]
    fn doubles_are_rounded_once() {
        // Just above, on and below halves of 16-bit floats, by less than an f32 can hold.
        for base in [1.0, 1.0078125, 1.0009765625, 3.0e-8, 6.103515625e-5, 1234.5, 9.183549615799121e-41] {
            for step in [0.5f64.powi(8), 0.5f64.powi(9), 0.5f64.powi(11), 0.5f64.powi(12)] {
                for wiggle in [0.0, 1e-14, -1e-14] {
                    for sign in [1.0, -1.0] {
                        let value: f64 = sign * base * (1.0 + step + wiggle);
                        let wide = |bits| f64::from(bf16::from_bits(bits));
                        let found = bf16::from_f32(to_odd(value)).to_bits();
                        assert_eq!(found, nearest(value, wide, 0x7f7f), "bf16 of {value:e}");
                        let wide = |bits| f64::from(f16::from_bits(bits));
                        let found = f16::from_f32(to_odd(value)).to_bits();
                        assert_eq!(found, nearest(value, wide, 0x7bff), "f16 of {value:e}");
                    }
                }
            }
        }
        for extreme in [f64::MAX, f64::INFINITY, 65520.0, 3.4e38] {
            assert!(f16::from_f32(to_odd(extreme)).is_infinite());
        }
        assert!(bf16::from_f32(to_odd(f64::MAX)).is_infinite());
        assert!(bf16::from_f32(to_odd(f64::NAN)).is_nan());
        assert_eq!(to_odd(-0.0).to_bits(), 0x8000_0000);
    }
}

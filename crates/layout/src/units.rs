//! Counts and numbers that must not be mixed up, each as its own type.
//!
//! ```text
//! Rank(3)  a process      Elements(12)  a count of elements, or a distance in elements
//!                         Bytes(24)     a count of bytes, or a distance in bytes
//! ```

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// A global process number. Both layouts of a plan number the same processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index into a table with one entry a rank.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! count {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                Self(items.map(|item| item.0).sum())
            }
        }
    };
}

count!(
    /// A count of elements, or a distance between two of them.
    Elements
);
count!(
    /// A count of bytes, or a distance between two of them.
    Bytes
);

impl Elements {
    /// The bytes that this many elements of `dtype` take.
    #[must_use]
    pub fn bytes(self, dtype: DType) -> Bytes {
        Bytes(self.0 * dtype.size())
    }
}

/// The type of one element. Sub-byte types are not expressible: they move as whole bytes (`U8`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DType {
    /// 64-bit float.
    #[serde(alias = "float64")]
    F64,
    /// 32-bit float.
    #[serde(alias = "float32")]
    F32,
    /// 16-bit float with 5 exponent bits.
    #[serde(alias = "float16")]
    F16,
    /// 16-bit float with 8 exponent bits.
    #[serde(alias = "bfloat16")]
    Bf16,
    /// 8-bit float, 4 exponent bits, as in OCP FP8.
    F8E4m3,
    /// 8-bit float, 5 exponent bits, as in OCP FP8.
    F8E5m2,
    /// 64-bit signed integer.
    I64,
    /// 32-bit signed integer.
    I32,
    /// 8-bit unsigned integer, and opaque bytes.
    U8,
    /// 8-bit exponent without a sign, as the block scales of OCP MX.
    F8E8m0,
    /// 8-bit float, 4 exponent bits, no negative zero and no infinity.
    F8E4m3fnuz,
    /// 8-bit float, 5 exponent bits, no negative zero and no infinity.
    F8E5m2fnuz,
    /// Two 32-bit floats: a complex number.
    C64,
    /// 64-bit unsigned integer.
    U64,
    /// 32-bit unsigned integer.
    U32,
    /// 16-bit unsigned integer.
    U16,
    /// 16-bit signed integer.
    I16,
    /// 8-bit signed integer.
    I8,
    /// A truth value in a byte.
    Bool,
}

impl DType {
    const NAMES: [(&'static str, Self); 23] = [
        ("f64", Self::F64),
        ("float64", Self::F64),
        ("f32", Self::F32),
        ("float32", Self::F32),
        ("f16", Self::F16),
        ("float16", Self::F16),
        ("bf16", Self::Bf16),
        ("bfloat16", Self::Bf16),
        ("f8e4m3", Self::F8E4m3),
        ("f8e5m2", Self::F8E5m2),
        ("i64", Self::I64),
        ("i32", Self::I32),
        ("u8", Self::U8),
        ("f8e8m0", Self::F8E8m0),
        ("f8e4m3fnuz", Self::F8E4m3fnuz),
        ("f8e5m2fnuz", Self::F8E5m2fnuz),
        ("c64", Self::C64),
        ("u64", Self::U64),
        ("u32", Self::U32),
        ("u16", Self::U16),
        ("i16", Self::I16),
        ("i8", Self::I8),
        ("bool", Self::Bool),
    ];

    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> u64 {
        match self {
            Self::F64 | Self::I64 | Self::U64 | Self::C64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 | Self::U16 | Self::I16 => 2,
            Self::F8E4m3 | Self::F8E5m2 | Self::F8E8m0 | Self::F8E4m3fnuz | Self::F8E5m2fnuz => 1,
            Self::U8 | Self::I8 | Self::Bool => 1,
        }
    }

    /// Reads the short name (`bf16`) or PyTorch's (`bfloat16`, as `config.json` spells it).
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
    }

    /// The short name, such as `bf16`.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, dtype)| *dtype == self).map_or("?", |(name, _)| name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

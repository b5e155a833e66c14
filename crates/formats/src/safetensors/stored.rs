//! The element types of a safetensors header, and what each is in a layout.
//!
//! ```text
//!   "BF16"      16 bits   bf16 [4096, 1024]
//!   "F4"         4 bits   u8 [bytes]: moved as whole bytes, never cut inside one
//! ```
//!
//! The names and sizes are those of safetensors 0.8. Its writer puts types of greater alignment first: the order here.

use reshard_layout::DType;

use super::fault::SafetensorsFault;

/// An element type as a header names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredType {
    name: &'static str,
    bits: u64,
    dtype: Option<DType>,
}

const fn whole(name: &'static str, dtype: DType) -> StoredType {
    StoredType { name, bits: 8 * dtype.size(), dtype: Some(dtype) }
}

const fn packed(name: &'static str, bits: u64) -> StoredType {
    StoredType { name, bits, dtype: None }
}

/// By increasing alignment, as the official writer orders them.
const TYPES: [StoredType; 22] = [
    whole("BOOL", DType::Bool),
    packed("F4", 4),
    packed("F6_E2M3", 6),
    packed("F6_E3M2", 6),
    whole("U8", DType::U8),
    whole("I8", DType::I8),
    whole("F8_E5M2", DType::F8E5m2),
    whole("F8_E4M3", DType::F8E4m3),
    whole("F8_E8M0", DType::F8E8m0),
    whole("F8_E4M3FNUZ", DType::F8E4m3fnuz),
    whole("F8_E5M2FNUZ", DType::F8E5m2fnuz),
    whole("I16", DType::I16),
    whole("U16", DType::U16),
    whole("F16", DType::F16),
    whole("BF16", DType::Bf16),
    whole("I32", DType::I32),
    whole("U32", DType::U32),
    whole("F32", DType::F32),
    whole("C64", DType::C64),
    whole("F64", DType::F64),
    whole("I64", DType::I64),
    whole("U64", DType::U64),
];

impl StoredType {
    /// Every type of the format.
    #[must_use]
    pub fn all() -> &'static [Self] {
        &TYPES
    }

    /// The type that a header calls `name`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        TYPES.into_iter().find(|known| known.name == name)
    }

    /// How a header calls a type of a layout; `None` if the format has no such type.
    #[must_use]
    pub fn of(dtype: DType) -> Option<Self> {
        TYPES.into_iter().find(|known| known.dtype == Some(dtype))
    }

    /// Its name in a header.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Bits of one element.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// What it is in a layout; `None` for types below a byte, which lie there as bytes.
    #[must_use]
    pub fn dtype(self) -> Option<DType> {
        self.dtype
    }

    /// Its place in the order of alignments.
    pub(super) fn alignment(self) -> usize {
        TYPES.iter().position(|known| *known == self).unwrap_or(0)
    }

    /// Bytes of a tensor of this type. As in the official reader a product may pass 2^64 on no axis, even where a
    /// later one is 0.
    ///
    /// # Errors
    /// [`SafetensorsFault`] if the size does not fit in 64 bits or ends inside a byte.
    pub fn bytes(self, tensor: &str, shape: &[u64]) -> Result<u64, SafetensorsFault> {
        let elements = shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent));
        let bits = elements.and_then(|elements| elements.checked_mul(self.bits)).ok_or_else(|| {
            let (tensor, shape) = (tensor.to_owned(), shape.to_vec());
            SafetensorsFault::SizeOverflow { tensor, dtype: self.name, shape }
        })?;
        if !bits.is_multiple_of(8) {
            let (tensor, shape) = (tensor.to_owned(), shape.to_vec());
            return Err(SafetensorsFault::PartOfByte { tensor, dtype: self.name, shape, bits });
        }
        Ok(bits / 8)
    }
}

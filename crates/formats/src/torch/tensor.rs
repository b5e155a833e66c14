//! Tensors: windows of a storage, and the few that are read at once.
//!
//! ```text
//!   storage data/0    0 1 2 3 4 5 6 7 8 9 10 11        Tensor { offset 4, shape [2, 3], strides [1, 2] }
//!                             ^                          4 6 8
//!                                                        5 7 9
//! ```

use reshard_layout::{DType, Elements, row_major, volume};

use super::fault::TorchFault;
use crate::error::FormatError;
use crate::files::{Files, Span};

/// Bytes that [`read_bytes`] reads at most, and of which it takes them at most.
pub const SMALL_BYTES_MAX: u64 = 64 << 20;

/// A tensor in a torch file. Invariant: it lies inside its storage, and its element count fits in 64 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// The type of its elements.
    pub dtype: DType,
    /// Its extents; empty for a scalar.
    pub shape: Vec<u64>,
    /// Elements of the storage between neighbours along each axis. 0 where a tensor repeats itself.
    pub strides: Vec<u64>,
    /// Its first element in the storage.
    pub offset: Elements,
    /// The whole storage in the file. Several tensors may be windows of one.
    pub storage: Span,
    /// The name of the storage in the file.
    pub key: String,
}

impl Tensor {
    /// How many elements it has.
    #[must_use]
    pub fn elements(&self) -> Elements {
        Elements(volume(&self.shape).unwrap_or(u64::MAX))
    }

    /// Whether its elements lie one after another in row-major order.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        let packed = row_major(&self.shape);
        let mut axes = self.shape.iter().zip(self.strides.iter().zip(&packed));
        self.elements().0 == 0 || axes.all(|(extent, (stride, dense))| *extent == 1 || stride == dense)
    }

    /// The stretch of its storage from its first element to its last, in elements.
    fn reach(&self) -> u64 {
        if self.elements().0 == 0 {
            return 0;
        }
        self.shape.iter().zip(&self.strides).map(|(extent, stride)| (extent - 1) * stride).sum::<u64>() + 1
    }

    /// The bytes of the file from its first element to its last.
    #[must_use]
    pub fn span(&self) -> Span {
        let offset = self.storage.offset + self.offset.bytes(self.dtype);
        Span { file: self.storage.file, offset, length: Elements(self.reach()).bytes(self.dtype) }
    }
}

/// The bytes of a small tensor, row-major.
///
/// # Errors
/// Over budget, if the tensor or the stretch of its storage that it spans is over [`SMALL_BYTES_MAX`];
/// [`FormatError::Io`].
pub fn read_bytes(files: &Files, tensor: &Tensor) -> Result<Vec<u8>, FormatError> {
    let span = tensor.span();
    let size = tensor.dtype.size();
    if span.length.0 > SMALL_BYTES_MAX || tensor.elements().0 > SMALL_BYTES_MAX / size {
        let fault =
            TorchFault::Limit { what: "bytes in a tensor that is read at once", max: SMALL_BYTES_MAX };
        return Err(FormatError::Torch { path: files.path(span.file).to_owned(), fault });
    }
    // Both lengths are below the limit, hence below 2^32.
    let mut window = vec![0; span.length.0 as usize];
    if !window.is_empty() {
        files.read_at(span.file, span.offset, &mut window)?;
    }
    if tensor.is_dense() {
        return Ok(window);
    }
    let (size, count) = (size as usize, tensor.elements().0);
    let mut bytes = Vec::with_capacity(count as usize * size);
    for index in 0..count {
        let at = address(index, &tensor.shape, &tensor.strides) as usize * size;
        bytes.extend_from_slice(&window[at..at + size]);
    }
    Ok(bytes)
}

/// Where the row-major `index`-th element lies.
fn address(mut index: u64, shape: &[u64], strides: &[u64]) -> u64 {
    let mut at = 0;
    for (extent, stride) in shape.iter().zip(strides).rev() {
        at += index % extent * stride;
        index /= extent;
    }
    at
}

/// The number that a tensor of one element holds.
///
/// # Errors
/// Invalid, if it has more or fewer elements; unsupported, if they are no plain numbers; [`FormatError::Io`].
pub fn read_scalar(files: &Files, tensor: &Tensor) -> Result<f64, FormatError> {
    let fail =
        |fault: TorchFault| FormatError::Torch { path: files.path(tensor.storage.file).to_owned(), fault };
    if tensor.elements().0 != 1 {
        return Err(fail(TorchFault::NotOneNumber { shape: tensor.shape.clone() }));
    }
    let bytes = read_bytes(files, tensor)?;
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(&bytes);
    let low = u64::from_le_bytes(wide);
    let unused_bits = 64 - 8 * tensor.dtype.size();
    let signed = ((low << unused_bits) as i64) >> unused_bits;
    Ok(match tensor.dtype {
        DType::F64 => f64::from_bits(low),
        DType::F32 => f64::from(f32::from_bits(low as u32)),
        DType::Bf16 => f64::from(f32::from_bits((low as u32) << 16)),
        DType::I64 | DType::I32 | DType::I16 | DType::I8 => signed as f64,
        DType::U64 | DType::U32 | DType::U16 | DType::U8 | DType::Bool => low as f64,
        other => return Err(fail(TorchFault::DType { dtype: format!("one {other}, read as a number") })),
    })
}

/// Checks that a tensor lies inside its storage.
pub(super) fn check(tensor: Tensor) -> Result<Tensor, TorchFault> {
    let elements = tensor.storage.length.0 / tensor.dtype.size();
    let count = volume(&tensor.shape).ok_or(TorchFault::Tensor { what: "extents" })?;
    let last = || {
        let mut last = tensor.offset.0;
        for (extent, stride) in tensor.shape.iter().zip(&tensor.strides) {
            last = last.checked_add((extent - 1).checked_mul(*stride)?)?;
        }
        Some(last)
    };
    let is_inside =
        if count == 0 { tensor.offset.0 <= elements } else { last().is_some_and(|last| last < elements) };
    if is_inside {
        return Ok(tensor);
    }
    let Tensor { key, shape, strides, offset, .. } = tensor;
    Err(TorchFault::OutOfStorage { key, shape, strides, offset: offset.0, elements })
}

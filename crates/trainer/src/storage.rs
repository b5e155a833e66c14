//! Storages: plain memory that layouts describe, read and written as numbers.
//!
//! ```text
//! bf16 memory  3f80 4000 ..   --widen-->  1.0 2.0 ..     exact
//!                             <--round--  nearest, ties to even
//! ```

use std::ops::Range;

use half::bf16;
use half::slice::HalfFloatSliceExt;
use reshard_layout::{Bytes, DType};
use reshard_parallel::{Run, StorageSpec};
use reshard_transport::SharedMemory;

use crate::error::TrainerError;

/// One storage of this process, in memory that other processes may read.
///
/// Invariants, in the order of their checks: (1) elements are f32 or bf16; (2) the memory is as long as the
/// specification says.
#[derive(Debug)]
pub struct Storage {
    spec: StorageSpec,
    memory: SharedMemory,
}

impl Storage {
    /// Allocates a storage, all zero.
    ///
    /// # Errors
    /// [`TrainerError::DTypeUnsupported`], or where the system has no memory left.
    pub fn allocate(spec: &StorageSpec) -> Result<Self, TrainerError> {
        check_storable(spec.dtype)?;
        let memory = SharedMemory::create(spec.length.bytes(spec.dtype))?;
        Ok(Self { spec: spec.clone(), memory })
    }

    /// What was allocated.
    #[must_use]
    pub fn spec(&self) -> &StorageSpec {
        &self.spec
    }

    /// Its memory, for a transport to bind.
    #[must_use]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Its memory, for a transport to write.
    #[must_use]
    pub fn memory_mut(&mut self) -> &mut SharedMemory {
        &mut self.memory
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.spec.length.bytes(self.spec.dtype)
    }

    /// The bytes of a range of elements.
    pub(crate) fn raw(&self, range: Range<usize>) -> &[u8] {
        let size = self.spec.dtype.size() as usize;
        &self.memory.as_slice()[range.start * size..range.end * size]
    }

    pub(crate) fn raw_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let size = self.spec.dtype.size() as usize;
        &mut self.memory.as_mut_slice()[range.start * size..range.end * size]
    }

    /// A range of elements, widened to f32.
    pub(crate) fn widened(&self, range: Range<usize>) -> Vec<f32> {
        widen(self.spec.dtype, self.raw(range))
    }

    /// Rounds numbers to the storage's type and stores them from element `start` on.
    pub(crate) fn store(&mut self, start: usize, values: &[f32]) {
        let dtype = self.spec.dtype;
        let target = self.raw_mut(start..start + values.len());
        match dtype {
            DType::Bf16 => bytemuck::cast_slice_mut::<u8, bf16>(target).convert_from_f32_slice(values),
            _ => bytemuck::cast_slice_mut::<u8, f32>(target).copy_from_slice(values),
        }
    }

    /// All elements of an f32 storage, to write.
    pub(crate) fn numbers_mut(&mut self) -> &mut [f32] {
        debug_assert_eq!(self.spec.dtype, DType::F32);
        bytemuck::cast_slice_mut(self.memory.as_mut_slice())
    }

    /// Makes every element NaN, so that one that nobody writes is seen.
    pub(crate) fn poison(&mut self) {
        let length = self.spec.length.0 as usize;
        self.store(0, &vec![f32::NAN; length]);
    }
}

/// Weights are stored as f32 or bf16.
pub(crate) fn check_storable(dtype: DType) -> Result<(), TrainerError> {
    match dtype {
        DType::F32 | DType::Bf16 => Ok(()),
        _ => Err(TrainerError::DTypeUnsupported { dtype }),
    }
}

/// Widens the bytes of f32 or bf16 elements to f32. Exact. Bytes from a collective need not be aligned; those that
/// are take the fast way.
pub(crate) fn widen(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::Bf16 => match bytemuck::try_cast_slice::<u8, bf16>(bytes) {
            Ok(values) => values.to_f32_vec(),
            Err(_) => bytes.as_chunks().0.iter().map(|pair| bf16::from_ne_bytes(*pair).to_f32()).collect(),
        },
        _ => match bytemuck::try_cast_slice::<u8, f32>(bytes) {
            Ok(values) => values.to_vec(),
            Err(_) => bytes.as_chunks().0.iter().map(|word| f32::from_ne_bytes(*word)).collect(),
        },
    }
}

/// The elements of the storage that a run covers.
pub(crate) fn stored_range(run: &Run) -> Range<usize> {
    run.offset.0 as usize..(run.offset + run.length).0 as usize
}

/// The elements of the flattened shard that a run covers.
pub(crate) fn shard_range(run: &Run) -> Range<usize> {
    run.first.0 as usize..(run.first + run.length).0 as usize
}

/// What numbers become when they are stored in a type and widened again.
pub(crate) fn rounded(dtype: DType, values: &[f32]) -> Vec<f32> {
    match dtype {
        DType::Bf16 => values.iter().map(|value| bf16::from_f32(*value).to_f32()).collect(),
        _ => values.to_vec(),
    }
}

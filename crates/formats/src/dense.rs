//! Parameters as one row-major storage each: the common ground on which files of any layout are compared.
//!
//! ```text
//!   storage i = parameter i, all of it, dense        window of it ──► which elements, at which coordinate
//! ```

use std::ops::Range;

use reshard_layout::{
    Bytes, DType, Dims, Elements, Geometry, Layout, LayoutBuilder, Rank, StorageId, coordinate, volume,
};

use crate::error::FormatError;

/// A layout of whole parameters: storage `i` is the `i`-th of them.
///
/// # Errors
/// [`FormatError::Layout`] if a shape is beyond 64 bits.
pub(crate) fn dense_layout<'a>(
    path: &std::path::Path,
    parameters: impl Iterator<Item = (&'a str, &'a Dims, DType)>,
) -> Result<Layout, FormatError> {
    let mut builder = LayoutBuilder::new();
    for (name, shape, dtype) in parameters {
        // A shape that does not fit is found by the build.
        let elements = volume(shape).filter(|elements| elements.checked_mul(dtype.size()).is_some());
        let elements = Elements(elements.unwrap_or(0));
        let parameter = builder.parameter(name, shape.iter().copied(), dtype);
        let storage = builder.storage(Rank(0), name, elements.bytes(dtype));
        let buffer = builder.buffer(storage, Bytes(0), dtype, elements);
        let geometry = builder.geometry(Geometry::whole(shape));
        builder.place(parameter, buffer, Elements(0), geometry);
    }
    builder.build().map_err(|error| FormatError::Layout { path: path.to_owned(), error })
}

/// A window of one storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) storage: StorageId,
    pub(crate) range: Range<u64>,
}

/// The windows of storages, in order, cut at multiples of `window_bytes` (a multiple of any element).
pub(crate) fn windows(storages: &[reshard_layout::Storage], window_bytes: u64) -> Vec<Window> {
    let of = |(index, storage): (u32, &reshard_layout::Storage)| {
        let length = storage.length.0;
        let at = (0..length.div_ceil(window_bytes)).map(move |at| at * window_bytes);
        at.map(move |at| Window { storage: StorageId(index), range: at..(at + window_bytes).min(length) })
    };
    (0u32..).zip(storages).flat_map(of).collect()
}

/// The coordinate of the element that a byte of a dense storage belongs to.
pub(crate) fn coordinate_of(shape: &[u64], dtype: DType, byte: u64) -> Vec<u64> {
    coordinate(byte / dtype.size(), shape).to_vec()
}

/// Where two windows differ first.
pub(crate) fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    // Compared as a whole first: far faster than byte by byte.
    if one == other {
        return None;
    }
    one.iter().zip(other).position(|(one, other)| one != other)
}

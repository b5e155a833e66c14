//! Pickles: the postcard form of a value behind a checksum, so that damage is an error and never another value.
//!
//! ```text
//!   | xxh3 of the rest, 8 bytes, little-endian | postcard |
//! ```
//!
//! A layout is checked again when it is read; a plan is proved by `verify`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use crate::errors;

pub(crate) fn to_bytes<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyBytes>> {
    let payload = postcard::to_allocvec(value).map_err(|error| errors::usage(py, error))?;
    let mut bytes = xxh3_64(&payload).to_le_bytes().to_vec();
    bytes.extend(payload);
    Ok(PyBytes::new(py, &bytes))
}

pub(crate) fn from_bytes<T: DeserializeOwned>(py: Python<'_>, what: &str, bytes: &[u8]) -> PyResult<T> {
    let wrong =
        |cause: &str| errors::usage(py, format!("these bytes are no {what} of this version: {cause}"));
    let (checksum, payload) = bytes.split_first_chunk().ok_or_else(|| wrong("they are too few"))?;
    if u64::from_le_bytes(*checksum) != xxh3_64(payload) {
        return Err(wrong("they are damaged"));
    }
    postcard::from_bytes(payload).map_err(|error| wrong(&error.to_string()))
}

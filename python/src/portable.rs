//! Pickles: a checksum and the postcard form of a value. Not every value that can be read is a sound one, so bytes that
//! were damaged on their way are refused before they are looked at.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use crate::errors;

pub(crate) fn to_bytes<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyBytes>> {
    let form = postcard::to_allocvec(value).map_err(|error| errors::usage(py, error))?;
    let mut bytes = xxh3_64(&form).to_le_bytes().to_vec();
    bytes.extend(form);
    Ok(PyBytes::new(py, &bytes))
}

pub(crate) fn from_bytes<T: DeserializeOwned>(py: Python<'_>, what: &str, bytes: &[u8]) -> PyResult<T> {
    let refused = |why: &dyn std::fmt::Display| {
        errors::usage(py, format!("these {} bytes are no {what} of this version: {why}", bytes.len()))
    };
    let form = bytes
        .split_first_chunk()
        .filter(|(checksum, form)| **checksum == xxh3_64(form).to_le_bytes())
        .map(|(_, form)| form)
        .ok_or_else(|| refused(&"they do not match their checksum"))?;
    postcard::from_bytes(form).map_err(|error| refused(&error))
}

//! Pickles: the postcard form of a value. A layout is checked again when it is read; a plan is proved by `verify`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::errors;

pub(crate) fn to_bytes<'py>(py: Python<'py>, value: &impl Serialize) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = postcard::to_allocvec(value).map_err(|error| errors::usage(py, error))?;
    Ok(PyBytes::new(py, &bytes))
}

pub(crate) fn from_bytes<T: DeserializeOwned>(py: Python<'_>, what: &str, bytes: &[u8]) -> PyResult<T> {
    postcard::from_bytes(bytes)
        .map_err(|error| errors::usage(py, format!("these bytes are no {what} of this version: {error}")))
}

//! Affine maps: DeepSpeed's `ParamAffineMap` objects or their dictionary form, in and out.

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyMapping, PyString};
use reshard_layout::affine::{self, AffineFile, AffineMap};
use reshard_layout::{DType, Layout};

use crate::errors;

pub(crate) fn dtype_of(py: Python<'_>, name: &str) -> PyResult<DType> {
    let bare = name.strip_prefix("torch.").unwrap_or(name);
    DType::parse(bare).ok_or_else(|| {
        errors::usage(
            py,
            format!("{name:?} is no dtype; known are f64 f32 f16 bf16 f8e4m3 f8e5m2 i64 i32 u8"),
        )
    })
}

/// One map, from an object with `to_dict` or from a dictionary whose rank keys may be integers.
pub(crate) fn map_of(value: &Bound<'_, PyAny>) -> PyResult<AffineMap> {
    let py = value.py();
    let entry = match value.hasattr("to_dict")? {
        true => value.call_method0("to_dict")?,
        false => value.clone(),
    };
    // JSON turns integer keys into text, as the file form has them.
    let text: String = py.import("json")?.call_method1("dumps", (entry,))?.extract()?;
    serde_json::from_str(&text).map_err(|error| errors::usage(py, format!("not an affine map: {error}")))
}

pub(crate) fn layout_of(maps: &Bound<'_, PyAny>, dtype: &Bound<'_, PyAny>) -> PyResult<Layout> {
    let py = maps.py();
    let mut read = Vec::new();
    for item in maps.cast::<PyMapping>()?.items()? {
        let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
        let dtype = match dtype.cast::<PyString>() {
            Ok(one) => one.to_string(),
            Err(_) => dtype.get_item(&name)?.str()?.to_string(),
        };
        read.push((name, map_of(&value)?, dtype_of(py, &dtype)?));
    }
    py.detach(|| affine::layout_of(read.iter().map(|(name, map, dtype)| (name.as_str(), map, *dtype))))
        .map_err(|error| errors::layout(py, &error))
}

/// What a layout must be to be said in this form.
const NO_FORM: &str =
    "this layout has no affine form: it has no parameters, several dtypes, or a shard with gaps in it";

pub(crate) fn file_of(py: Python<'_>, layout: &Layout) -> PyResult<AffineFile> {
    py.detach(|| AffineFile::from_layout(layout)).ok_or_else(|| errors::unsupported_layout(py, NO_FORM))
}

pub(crate) fn maps_of<'py>(py: Python<'py>, layout: &Layout) -> PyResult<Bound<'py, PyAny>> {
    let maps =
        py.detach(|| affine::maps_of(layout)).ok_or_else(|| errors::unsupported_layout(py, NO_FORM))?;
    pythonize::pythonize(py, &maps).map_err(Into::into)
}

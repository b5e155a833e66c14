//! Element types as torch's pickles name them.
//!
//! ```text
//!   old types   ('storage', torch.FloatStorage, '0', 'cpu', elements)           _rebuild_tensor_v2(storage, ...)
//!   new types   ('storage', torch.storage.UntypedStorage, '0', 'cpu', bytes)    _rebuild_tensor_v3(..., torch.uint16)
//! ```
//!
//! Source: torch 2.15, `torch/storage.py` (`_dtype_to_storage_type_map`, `_new_dtypes`).

use reshard_layout::DType;

use super::fault::TorchFault;
use crate::pickle::Value;

/// `torch.<name>`, the class of its storages if it is an old type, and the type.
const TYPES: [(&str, Option<&str>, DType); 19] = [
    ("float64", Some("DoubleStorage"), DType::F64),
    ("float32", Some("FloatStorage"), DType::F32),
    ("float16", Some("HalfStorage"), DType::F16),
    ("bfloat16", Some("BFloat16Storage"), DType::Bf16),
    ("int64", Some("LongStorage"), DType::I64),
    ("int32", Some("IntStorage"), DType::I32),
    ("int16", Some("ShortStorage"), DType::I16),
    ("int8", Some("CharStorage"), DType::I8),
    ("uint8", Some("ByteStorage"), DType::U8),
    ("bool", Some("BoolStorage"), DType::Bool),
    ("complex64", Some("ComplexFloatStorage"), DType::C64),
    ("float8_e4m3fn", None, DType::F8E4m3),
    ("float8_e5m2", None, DType::F8E5m2),
    ("float8_e8m0fnu", None, DType::F8E8m0),
    ("float8_e4m3fnuz", None, DType::F8E4m3fnuz),
    ("float8_e5m2fnuz", None, DType::F8E5m2fnuz),
    ("uint16", None, DType::U16),
    ("uint32", None, DType::U32),
    ("uint64", None, DType::U64),
];

/// The type of the elements of a class of storages.
pub(super) fn of_storage_class(class: &str) -> Result<DType, TorchFault> {
    let known = TYPES.iter().find(|(_, known, _)| *known == Some(class));
    known.map(|(_, _, dtype)| *dtype).ok_or_else(|| TorchFault::DType { dtype: format!("torch.{class}") })
}

/// The type that a pickled `torch.dtype` names.
pub(crate) fn of_value(value: Value<'_>) -> Result<DType, TorchFault> {
    let Some(("torch", name)) = value.as_class() else { return Err(TorchFault::Tensor { what: "dtype" }) };
    let known = TYPES.iter().find(|(known, _, _)| *known == name);
    known.map(|(_, _, dtype)| *dtype).ok_or_else(|| TorchFault::DType { dtype: format!("torch.{name}") })
}

/// What torch calls a type, and the class of its storages if it has one.
pub(super) fn names(dtype: DType) -> (&'static str, Option<&'static str>) {
    let known = TYPES.iter().find(|(_, _, known)| *known == dtype);
    known.map_or(("uint8", Some("ByteStorage")), |(name, class, _)| (name, *class))
}

//! `torch.save` files: a zip of a pickle and of raw storages.
//!
//! ```text
//!   x/data.pkl      {"w": _rebuild_tensor_v2(storage '0', offset 6, (2, 3), (3, 1), ...)}
//!   x/byteorder     little
//!   x/data/0        the bytes of storage '0'          ──tensor──►  Tensor { dtype, shape, strides, offset, storage }
//! ```
//!
//! Opening reads the pickle and the zip headers. Where a tensor lies is then known; its bytes are not touched.
//! Source: torch 2.15, `torch/serialization.py` (`_save`, `_load`) and `torch/_utils.py` (`_rebuild_*`).

mod dtype;
mod fault;
mod tensor;
mod write;
mod zip;

use std::collections::HashMap;
use std::path::PathBuf;

use reshard_layout::{Bytes, DType, Elements};

pub(crate) use dtype::of_value as dtype_of_value;
pub use fault::TorchFault;
pub use tensor::{SMALL_BYTES_MAX, Tensor, read_bytes, read_scalar};
pub use write::{Contents, torch_file};

use crate::error::FormatError;
use crate::files::{FileId, Files, Span};
use crate::pickle::{PICKLE_BYTES_MAX, Pickle, Value};
use zip::Entry;

/// How a file of torch before 1.6 begins: protocol 2, then the number 0x1950a86a20f9469cfc6c.
const LEGACY: [u8; 14] = [0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// What `byteorder` may hold.
const BYTE_ORDER_BYTES_MAX: u64 = 16;
/// How often a parameter or a tensor with a type of its own may wrap another.
const WRAPPERS_MAX: usize = 8;

/// A `torch.save` file, opened: its pickle, and where its storages lie.
#[derive(Debug)]
pub struct TorchFile {
    /// What was saved.
    pub pickle: Pickle,
    path: PathBuf,
    file: FileId,
    storages: HashMap<String, Span>,
}

impl TorchFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`FormatError::Torch`] if it is none of `torch.save`, or a kind that is not read; [`FormatError::Io`].
    pub fn open(files: &Files, file: FileId) -> Result<Self, FormatError> {
        Self::open_span(files, Span { file, offset: Bytes(0), length: files.length(file) })
    }

    /// Opens what `torch.save` wrote into a stretch of a file.
    ///
    /// # Errors
    /// As [`open`](Self::open). The stretch must lie inside the file, or that is an error too.
    pub fn open_span(files: &Files, span: Span) -> Result<Self, FormatError> {
        let path = files.path(span.file).to_owned();
        let fail = |fault: TorchFault| FormatError::Torch { path: path.clone(), fault };
        let end = span.offset.0.checked_add(span.length.0);
        if end.is_none_or(|end| end > files.length(span.file).0) {
            let (offset, length) = (span.offset, span.length);
            let cause = format!("{length} bytes at {offset} are not inside the file");
            return Err(fail(TorchFault::Zip { cause }));
        }
        if is_legacy(files, span)? {
            return Err(fail(TorchFault::Legacy));
        }
        let entries = zip::entries(files, span)?;
        let top = top_folder(&entries).map_err(fail)?;
        let find = |name: &str| entries.iter().find(|entry| entry.name.strip_prefix(&top) == Some(name));
        if let Some(entry) = find("byteorder") {
            let order = read_entry(files, entry, BYTE_ORDER_BYTES_MAX)?;
            if order != b"little" {
                let order = String::from_utf8_lossy(&order).into_owned();
                return Err(fail(TorchFault::ByteOrder { order }));
            }
        }
        let entry = find("data.pkl").ok_or_else(|| fail(TorchFault::NotTorch { missing: "data.pkl" }))?;
        let pickle =
            Pickle::read(&read_entry(files, entry, PICKLE_BYTES_MAX)?).map_err(|fault| fail(fault.into()))?;
        let data = format!("{top}data/");
        let storages = entries
            .iter()
            .filter_map(|entry| Some((entry.name.strip_prefix(&data)?.to_owned(), entry.span)))
            .collect();
        Ok(Self { pickle, path, file: span.file, storages })
    }

    /// The file that it lies in.
    #[must_use]
    pub fn file(&self) -> FileId {
        self.file
    }

    /// The storages, by name: their bytes in the file, used or not.
    #[must_use]
    pub fn storages(&self) -> &HashMap<String, Span> {
        &self.storages
    }

    /// The tensor that a value of the pickle stands for; `None` if it is something else.
    ///
    /// # Errors
    /// Unsupported, naming what makes it, if it is a tensor of another kind (sparse, quantised, of another device)
    /// or of a type that [`DType`] has not. Invalid, if it contradicts itself or reaches outside its storage.
    pub fn tensor(&self, value: Value<'_>) -> Result<Option<Tensor>, FormatError> {
        self.rebuild(value).map_err(|fault| FormatError::Torch { path: self.path.clone(), fault })
    }

    fn rebuild(&self, value: Value<'_>) -> Result<Option<Tensor>, TorchFault> {
        let Some((mut module, mut function)) = value.made_by() else { return Ok(None) };
        let mut arguments = value.arguments();
        for _ in 0..WRAPPERS_MAX {
            match (module, function) {
                ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3") => {
                    return self.window(function, &arguments).map(Some);
                }
                ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state") => {
                    let inner = *arguments.first().ok_or(TorchFault::Tensor { what: "parameter" })?;
                    (module, function) = inner.made_by().ok_or(TorchFault::Tensor { what: "parameter" })?;
                    arguments = inner.arguments();
                }
                ("torch._tensor", "_rebuild_from_type_v2") => {
                    let [inner, _, its_arguments, ..] = arguments[..] else {
                        return Err(TorchFault::Tensor { what: "type" });
                    };
                    (module, function) = inner.as_class().ok_or(TorchFault::Tensor { what: "type" })?;
                    arguments = its_arguments.items().ok_or(TorchFault::Tensor { what: "type" })?;
                }
                ("torch._utils" | "torch._tensor", name) if name.starts_with("_rebuild_") => {
                    return Err(TorchFault::TensorKind { made_by: format!("{module}.{name}") });
                }
                ("torch", "Tensor") | ("torch.nn.parameter", "Parameter") => {
                    return Err(TorchFault::TensorKind { made_by: format!("{module}.{function}") });
                }
                _ => return Ok(None),
            }
        }
        Err(TorchFault::Limit { what: "tensors wrapped in one another", max: WRAPPERS_MAX as u64 })
    }

    /// The arguments: storage, offset, shape, strides, and for the third version a dtype as the seventh.
    fn window(&self, function: &str, arguments: &[Value<'_>]) -> Result<Tensor, TorchFault> {
        let part = |index: usize, what: &'static str| {
            arguments.get(index).copied().ok_or(TorchFault::Tensor { what })
        };
        let numbers = |index: usize, what: &'static str| {
            part(index, what)?.as_numbers().ok_or(TorchFault::Tensor { what })
        };
        let storage = part(0, "storage")?.as_persistent().and_then(Value::items);
        let Some([kind, class, key, _, count]) = storage.as_deref() else {
            return Err(TorchFault::Tensor { what: "storage" });
        };
        let (Some("storage"), Some((_, class)), Some(key), Some(count)) =
            (kind.as_str(), class.as_class(), key.as_str(), count.as_u64())
        else {
            return Err(TorchFault::Tensor { what: "storage" });
        };
        let is_new = function == "_rebuild_tensor_v3";
        let unit =
            if is_new && class == "UntypedStorage" { DType::U8 } else { dtype::of_storage_class(class)? };
        let dtype = if is_new { dtype::of_value(part(6, "dtype")?)? } else { unit };
        let storage = self.storage(key, count, unit)?;
        let (shape, strides) = (numbers(2, "shape")?, numbers(3, "strides")?);
        let offset = Elements(part(1, "offset")?.as_u64().ok_or(TorchFault::Tensor { what: "offset" })?);
        if shape.len() != strides.len() {
            return Err(TorchFault::Tensor { what: "strides" });
        }
        tensor::check(Tensor { dtype, shape, strides, offset, storage, key: key.to_owned() })
    }

    fn storage(&self, key: &str, count: u64, unit: DType) -> Result<Span, TorchFault> {
        let expected = count.checked_mul(unit.size()).ok_or(TorchFault::Tensor { what: "storage" })?;
        match self.storages.get(key) {
            Some(span) if span.length.0 == expected => Ok(*span),
            other => {
                let found = other.map_or(0, |span| span.length.0);
                Err(TorchFault::StorageLength { key: key.to_owned(), expected, found })
            }
        }
    }
}

fn is_legacy(files: &Files, span: Span) -> Result<bool, FormatError> {
    let mut begin = [0; LEGACY.len()];
    if span.length.0 < begin.len() as u64 {
        return Ok(false);
    }
    files.read_at(span.file, span.offset, &mut begin)?;
    Ok(begin == LEGACY)
}

/// The folder, with its slash, that all entries lie in, each as it was put there.
fn top_folder(entries: &[Entry]) -> Result<String, TorchFault> {
    let missing = TorchFault::NotTorch { missing: "data.pkl" };
    let Some((top, _)) = entries.first().and_then(|entry| entry.name.split_once('/')) else {
        return Err(missing);
    };
    let top = format!("{top}/");
    if entries.iter().any(|entry| entry.name.strip_prefix(&top) == Some("constants.pkl")) {
        return Err(TorchFault::TorchScript);
    }
    for entry in entries {
        if let Some(how) = entry.packed {
            return Err(TorchFault::Packed { name: entry.name.clone(), how });
        }
        if !entry.name.starts_with(&top) {
            return Err(missing);
        }
    }
    Ok(top)
}

/// The bytes of a small entry, which must be what was written.
fn read_entry(files: &Files, entry: &Entry, max: u64) -> Result<Vec<u8>, FormatError> {
    let fail = |fault: TorchFault| FormatError::Torch { path: files.path(entry.span.file).to_owned(), fault };
    if entry.span.length.0 > max {
        return Err(fail(TorchFault::Limit { what: "bytes in an entry that is read at once", max }));
    }
    // Below the limit, and checked to lie inside the file.
    let mut bytes = vec![0; entry.span.length.0 as usize];
    if !bytes.is_empty() {
        files.read_at(entry.span.file, entry.span.offset, &mut bytes)?;
    }
    if crc32fast::hash(&bytes) != entry.crc32 {
        let name = entry.name.clone();
        return Err(fail(TorchFault::Entry { name, what: "is damaged: its checksum is another one" }));
    }
    Ok(bytes)
}

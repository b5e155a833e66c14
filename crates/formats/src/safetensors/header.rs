//! The header of one file: names, types, shapes and byte ranges, proved to cover the file exactly.
//!
//! ```text
//!   | 8 bytes: n | n bytes of JSON, spaces at the end |   k: 0..16   |   v: 16..32   |   end of file
//!                  {"k": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "v": ... }
//! ```
//!
//! The rules are those of the official crate, which is the oracle of the tests. It is not used here: of two tensors of
//! one name it keeps one, its errors name no numbers, and it takes what lies in memory.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use indexmap::IndexMap;
use reshard_layout::{Bytes, DType};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::fault::SafetensorsFault;
use super::json::Entries;
use super::stored::StoredType;
use crate::error::FormatError;
use crate::files::{FileId, Files, Span};

/// Bytes of a header's JSON: the limit of the official reader.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Axes of a tensor: as many as numpy and torch take.
pub const AXES_MAX: usize = 64;

/// The name in a header under which text stands and no tensor.
pub const RESERVED_NAME: &str = "__metadata__";

/// Bytes in front of a header that hold its length.
pub(super) const LENGTH_BYTES: u64 = 8;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub stored: StoredType,
    /// Its shape, in elements of that type.
    pub shape: Vec<u64>,
    /// Its bytes, counted from the start of the file.
    pub range: Range<u64>,
}

impl Tensor {
    /// Bytes that it takes.
    #[must_use]
    pub fn length(&self) -> Bytes {
        Bytes(self.range.end - self.range.start)
    }

    /// Type and shape in a layout: of a type below a byte, its bytes.
    #[must_use]
    pub fn in_layout(&self) -> (DType, Vec<u64>) {
        match self.stored.dtype() {
            Some(dtype) => (dtype, self.shape.clone()),
            None => (DType::U8, vec![self.length().0]),
        }
    }

    /// Where it lies.
    #[must_use]
    pub fn span(&self, file: FileId) -> Span {
        Span { file, offset: Bytes(self.range.start), length: self.length() }
    }
}

/// What a file holds. Invariant: the tensors lie one after another and end where the file ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Its tensors, as they lie in the file.
    pub tensors: Vec<Tensor>,
    /// The text that its writer left.
    pub metadata: IndexMap<String, String>,
}

impl Header {
    /// Reads the header of a file, and nothing else of it.
    ///
    /// # Errors
    /// [`FormatError::Safetensors`] for a header that is no such or does not fit the file; [`FormatError::Io`].
    pub fn read(files: &Files, file: FileId) -> Result<Self, FormatError> {
        let invalid = |fault| FormatError::Safetensors { path: files.path(file).to_owned(), fault };
        let file_length = files.length(file);
        if file_length.0 < LENGTH_BYTES {
            return Err(invalid(SafetensorsFault::LengthAbsent { file_length }));
        }
        let mut length = [0; LENGTH_BYTES as usize];
        files.read_at(file, Bytes(0), &mut length)?;
        let length = header_length(u64::from_le_bytes(length), file_length).map_err(invalid)?;
        let mut text = vec![0; length];
        files.read_at(file, Bytes(LENGTH_BYTES), &mut text)?;
        Self::parse(&text, file_length).map_err(invalid)
    }

    /// Reads the JSON of a header of a file of `file_length` bytes.
    ///
    /// # Errors
    /// [`SafetensorsFault`] naming the tensor.
    pub fn parse(json: &[u8], file_length: Bytes) -> Result<Self, SafetensorsFault> {
        let before = LENGTH_BYTES + json.len() as u64;
        let data_length = file_length
            .0
            .checked_sub(before)
            .ok_or(SafetensorsFault::HeaderTruncated { length: Bytes(json.len() as u64), file_length })?;
        let text = std::str::from_utf8(json)
            .map_err(|cause| SafetensorsFault::NotUtf8 { byte: Bytes(cause.valid_up_to() as u64) })?;
        let raw: RawHeader = serde_json::from_str(text).map_err(|cause| SafetensorsFault::Json { cause })?;
        let metadata = metadata(raw.metadata)?;
        let mut names = HashSet::with_capacity(raw.tensors.len());
        if let Some((name, _)) = raw.tensors.iter().find(|(name, _)| !names.insert(name.as_str())) {
            return Err(SafetensorsFault::RepeatedName { name: name.clone() });
        }
        drop(names);
        let tensors =
            raw.tensors.into_iter().map(|(name, raw)| tensor(name, raw)).collect::<Result<_, _>>()?;
        let mut tensors = in_order(tensors, data_length)?;
        for tensor in &mut tensors {
            tensor.range = tensor.range.start + before..tensor.range.end + before;
        }
        Ok(Self { tensors, metadata })
    }
}

fn header_length(length: u64, file_length: Bytes) -> Result<usize, SafetensorsFault> {
    if length > HEADER_BYTES_MAX {
        let (length, limit) = (Bytes(length), Bytes(HEADER_BYTES_MAX));
        return Err(SafetensorsFault::HeaderTooLong { length, limit });
    }
    if length > file_length.0 - LENGTH_BYTES {
        return Err(SafetensorsFault::HeaderTruncated { length: Bytes(length), file_length });
    }
    Ok(length as usize)
}

/// The objects called `__metadata__`: at most one, which may be null.
fn metadata(found: Vec<Option<Entries<String>>>) -> Result<IndexMap<String, String>, SafetensorsFault> {
    if found.len() > 1 {
        return Err(SafetensorsFault::RepeatedName { name: RESERVED_NAME.to_owned() });
    }
    match found.into_iter().flatten().next() {
        Some(entries) => entries.unique().map_err(|key| SafetensorsFault::RepeatedKey { key }),
        None => Ok(IndexMap::new()),
    }
}

/// One tensor, its range counted from the end of the header.
fn tensor(name: String, raw: RawTensor) -> Result<Tensor, SafetensorsFault> {
    let RawTensor { dtype, shape, data_offsets: (begin, end) } = raw;
    let Some(stored) = StoredType::parse(&dtype) else {
        return Err(SafetensorsFault::UnknownType { tensor: name, dtype });
    };
    if shape.len() > AXES_MAX {
        return Err(SafetensorsFault::TooManyAxes { tensor: name, axes: shape.len(), limit: AXES_MAX });
    }
    if begin > end {
        return Err(SafetensorsFault::EndsBeforeItBegins { tensor: name, begin, end });
    }
    let expected = stored.bytes(&name, &shape)?;
    if end - begin != expected {
        let (dtype, found) = (stored.name(), Bytes(end - begin));
        let expected = Bytes(expected);
        return Err(SafetensorsFault::WrongLength { tensor: name, dtype, shape, expected, found });
    }
    Ok(Tensor { name, stored, shape, range: begin..end })
}

/// The tensors as they lie, if each byte of the data belongs to exactly one.
fn in_order(mut tensors: Vec<Tensor>, data_length: u64) -> Result<Vec<Tensor>, SafetensorsFault> {
    tensors.sort_by(|one, other| {
        (one.range.start, one.range.end, &one.name).cmp(&(other.range.start, other.range.end, &other.name))
    });
    let mut end = 0;
    let mut last: Option<&Tensor> = None;
    for tensor in &tensors {
        let begin = tensor.range.start;
        if begin > end {
            return Err(SafetensorsFault::Hole { tensor: tensor.name.clone(), begin: end, end: begin });
        }
        if let Some(last) = last.filter(|_| begin < end) {
            let (first, second) = (last.name.clone(), tensor.name.clone());
            return Err(SafetensorsFault::SharedBytes { first, second, begin, end });
        }
        end = tensor.range.end;
        last = Some(tensor);
    }
    match last {
        Some(last) if end > data_length => {
            let (tensor, end, length) = (last.name.clone(), Bytes(end), Bytes(data_length));
            Err(SafetensorsFault::Truncated { tensor, end, length })
        }
        _ if end < data_length => {
            Err(SafetensorsFault::TrailingBytes { end: Bytes(end), length: Bytes(data_length) })
        }
        _ => Ok(tensors),
    }
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

#[derive(Default)]
struct RawHeader {
    metadata: Vec<Option<Entries<String>>>,
    tensors: Vec<(String, RawTensor)>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawHeaderVisitor)
    }
}

struct RawHeaderVisitor;

impl<'de> Visitor<'de> for RawHeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut raw = RawHeader::default();
        while let Some(name) = map.next_key::<String>()? {
            let named = |cause| A::Error::custom(format_args!("{name}: {cause}"));
            if name == RESERVED_NAME {
                raw.metadata.push(map.next_value().map_err(named)?);
            } else {
                let tensor = map.next_value().map_err(named)?;
                raw.tensors.push((name, tensor));
            }
        }
        Ok(raw)
    }
}

//! `.metadata`: which chunks each tensor has, and which file holds each.
//!
//! ```text
//!   state_dict_metadata   "model.w" -> dtype, size (10, 3), chunks at (0, 0) and (5, 0)
//!   storage_data          ("model.w", (5, 0)) -> "__1_0.distcp", offset 1577, length 1577
//!   planner_data          "model.w" -> ("model", "w")        the keys of which the dot-joined name was made
//! ```
//!
//! Source: torch 2.15, `torch/distributed/checkpoint/metadata.py` and `filesystem.py` (`_StorageInfo`).

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;

use reshard_layout::{DType, volume};

use super::fault::DcpFault;
use crate::error::FormatError;
use crate::paths::stays_inside;
use crate::pickle::{Node, Pickle, Value};
use crate::safetensors::AXES_MAX;
use crate::torch::{TorchFault, dtype_of_value};

/// Bytes of a name, and keys of which it may be joined. Names are shared in a pickle, and looked at at each mention.
const NAME_BYTES_MAX: usize = 4096;
const KEYS_MAX: usize = 256;

/// Something that was saved under a name.
pub(super) struct Item<'a> {
    pub(super) name: &'a str,
    /// The keys of the nested dictionaries it lay in.
    pub(super) keys: Vec<Cow<'a, str>>,
    /// `None`, if it is no tensor.
    pub(super) tensor: Option<Saved<'a>>,
}

/// A tensor, in chunks.
pub(super) struct Saved<'a> {
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
    /// Those that hold an element.
    pub(super) chunks: Vec<Chunk<'a>>,
}

/// A box of a tensor, inside it and not empty.
pub(super) struct Chunk<'a> {
    pub(super) offsets: Vec<u64>,
    pub(super) sizes: Vec<u64>,
    pub(super) place: Place<'a>,
}

/// Where a chunk lies.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) file: &'a str,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// How the writer changed it.
    transforms: Option<Value<'a>>,
}

/// Why a tensor of the metadata cannot be had.
pub(super) enum Refused {
    Dcp(DcpFault),
    Torch(TorchFault),
}

impl Refused {
    pub(super) fn at(self, path: &Path) -> FormatError {
        match self {
            Self::Dcp(fault) => FormatError::Dcp { path: path.to_owned(), fault },
            Self::Torch(fault) => FormatError::Torch { path: path.to_owned(), fault },
        }
    }
}

impl From<DcpFault> for Refused {
    fn from(fault: DcpFault) -> Self {
        Self::Dcp(fault)
    }
}

fn unreadable(what: &'static str, name: &str) -> DcpFault {
    DcpFault::Metadata { what, name: name.to_owned() }
}

/// The keys of which each name was joined.
type Keys<'a> = HashMap<&'a str, Vec<Cow<'a, str>>>;

/// Where each chunk lies, by its tensor and where it begins there.
type Places<'a> = HashMap<(&'a str, Vec<u64>), Place<'a>>;

/// Everything that the metadata names.
pub(super) fn items(pickle: &Pickle) -> Result<Vec<Item<'_>>, Refused> {
    let root = pickle.root();
    let part = |name: &'static str| root.attribute(name).ok_or_else(|| unreadable(name, "Metadata"));
    let places = places(part("storage_data")?)?;
    let keys = keys(root.attribute("planner_data"))?;
    let entries = part("state_dict_metadata")?.entries();
    let entries = entries.ok_or_else(|| unreadable("state_dict_metadata", "Metadata"))?;
    entries.map(|(name, value)| item(name, value, &keys, &places)).collect()
}

fn item<'a>(
    name: Value<'a>,
    value: Value<'a>,
    keys: &Keys<'a>,
    places: &Places<'a>,
) -> Result<Item<'a>, Refused> {
    let name = name_of(name).ok_or_else(|| unreadable("a name", "state_dict_metadata"))?;
    let keys = keys.get(name).cloned().unwrap_or_else(|| vec![Cow::Borrowed(name)]);
    let tensor = match value.made_by() {
        Some((_, "TensorStorageMetadata")) => Some(saved(name, value, places)?),
        Some((_, "BytesStorageMetadata")) => None,
        _ => return Err(unreadable("the kind", name).into()),
    };
    Ok(Item { name, keys, tensor })
}

fn saved<'a>(name: &'a str, value: Value<'a>, places: &Places<'a>) -> Result<Saved<'a>, Refused> {
    let part = |what: &'static str| value.attribute(what).ok_or_else(|| unreadable(what, name));
    let properties = part("properties")?.state().and_then(Value::items);
    let dtype = properties.as_deref().and_then(<[Value<'_>]>::first);
    let dtype =
        dtype_of_value(*dtype.ok_or_else(|| unreadable("properties", name))?).map_err(Refused::Torch)?;
    let shape = extents(part("size")?).ok_or_else(|| unreadable("size", name))?;
    if volume(&shape).is_none() {
        return Err(unreadable("size", name).into());
    }
    let mut chunks = Vec::new();
    for chunk in part("chunks")?.items().ok_or_else(|| unreadable("chunks", name))? {
        let part = |what: &'static str| {
            chunk.attribute(what).and_then(extents).ok_or_else(|| unreadable(what, name))
        };
        let (offsets, sizes) = (part("offsets")?, part("sizes")?);
        if !is_inside(&shape, &offsets, &sizes) {
            return Err(DcpFault::OutOfTensor { name: name.to_owned(), shape, offsets, sizes }.into());
        }
        if !sizes.contains(&0) {
            chunks.push(stored(name, offsets, sizes, places)?);
        }
    }
    Ok(Saved { dtype, shape, chunks })
}

fn stored<'a>(
    name: &'a str,
    offsets: Vec<u64>,
    sizes: Vec<u64>,
    places: &Places<'a>,
) -> Result<Chunk<'a>, DcpFault> {
    let key = (name, offsets);
    let Some(place) = places.get(&key).copied() else {
        return Err(DcpFault::NowhereStored { name: name.to_owned(), offsets: key.1 });
    };
    if let Some(transforms) = place.transforms.and_then(Value::items)
        && let Some(first) = transforms.first()
    {
        let by = first.as_str().unwrap_or("?").to_owned();
        return Err(DcpFault::Transformed { name: name.to_owned(), by });
    }
    if !stays_inside(place.file) {
        return Err(DcpFault::Climbs { file: place.file.to_owned() });
    }
    Ok(Chunk { offsets: key.1, sizes, place })
}

/// Whether a box lies inside a tensor.
pub(super) fn is_inside(shape: &[u64], offsets: &[u64], sizes: &[u64]) -> bool {
    let fits = |((extent, offset), size): ((&u64, &u64), &u64)| {
        offset.checked_add(*size).is_some_and(|end| end <= *extent)
    };
    offsets.len() == shape.len()
        && sizes.len() == shape.len()
        && shape.iter().zip(offsets).zip(sizes).all(fits)
}

/// A `torch.Size` of few axes.
fn extents(value: Value<'_>) -> Option<Vec<u64>> {
    let items = value.items()?;
    if items.len() > AXES_MAX {
        return None;
    }
    items.into_iter().map(Value::as_u64).collect()
}

fn places(value: Value<'_>) -> Result<Places<'_>, DcpFault> {
    let wrong = || unreadable("storage_data", "Metadata");
    let mut places = HashMap::new();
    for (index, info) in value.entries().ok_or_else(wrong)? {
        let name = index.attribute("fqn").and_then(name_of).ok_or_else(wrong)?;
        let offsets = match index.attribute("offset") {
            // What is no tensor has no offset.
            None => continue,
            Some(none) if none.is_none() => continue,
            Some(offset) => extents(offset).ok_or_else(|| unreadable("offset", name))?,
        };
        let part = |what: &'static str| info.attribute(what).ok_or_else(|| unreadable(what, name));
        let number = |what: &'static str| part(what)?.as_u64().ok_or_else(|| unreadable(what, name));
        let place = Place {
            file: part("relative_path")?.as_str().ok_or_else(|| unreadable("relative_path", name))?,
            offset: number("offset")?,
            length: number("length")?,
            transforms: info.attribute("transform_descriptors"),
        };
        places.insert((name, offsets), place);
    }
    Ok(places)
}

fn name_of(value: Value<'_>) -> Option<&str> {
    value.as_str().filter(|name| name.len() <= NAME_BYTES_MAX)
}

/// The keys of which each name was joined.
fn keys(value: Option<Value<'_>>) -> Result<Keys<'_>, DcpFault> {
    let mut found = HashMap::new();
    for (name, keys) in value.and_then(Value::entries).into_iter().flatten() {
        let name = name_of(name).ok_or_else(|| unreadable("a name", "planner_data"))?;
        let keys = keys.items().filter(|keys| keys.len() <= KEYS_MAX);
        let keys = keys.and_then(|keys| keys.into_iter().map(key).collect::<Option<Vec<_>>>());
        let keys = keys.filter(|keys| is_joined_of(name, keys));
        found.insert(name, keys.ok_or_else(|| unreadable("planner_data", name))?);
    }
    Ok(found)
}

fn key(value: Value<'_>) -> Option<Cow<'_, str>> {
    match value.node() {
        Node::Str(text) => Some(Cow::Borrowed(text)),
        Node::Int(number) => Some(Cow::Owned(number.to_string())),
        _ => None,
    }
}

fn is_joined_of(name: &str, keys: &[Cow<'_, str>]) -> bool {
    let mut rest = Some(name);
    for (index, key) in keys.iter().enumerate() {
        let before = if index == 0 { "" } else { "." };
        rest = rest.and_then(|rest| rest.strip_prefix(before)?.strip_prefix(&**key));
    }
    rest == Some("")
}

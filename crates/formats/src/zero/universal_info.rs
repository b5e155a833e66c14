//! `universal_checkpoint_info`: how the tensor-parallel shards of each parameter join.
//!
//! ```text
//!   affine map   > replicated > averaged > two halves > recorded widths > row parallel: axis 1 > else axis 0
//!   box by box     whole        whole      gate | up    q | k | v
//! ```
//!
//! The first that names a parameter holds. Source: DeepSpeed 0.19.8 `checkpoint/ds_to_universal.py`
//! (`merge_tp_slices`), `module_inject/layers.py` (`collect_autotp_universal_checkpoint_info`).

use indexmap::IndexMap;
use reshard_layout::affine::{AffineMap, AffinePiece, AffineShard};

use super::fault::ZeroFault;
use super::field::Field;
use super::patterns::Patterns;

/// The newest form that is known.
const VERSION_MAX: f64 = 0.4;
/// From this one on, the widths of sub-parameters are recorded.
const VERSION_OF_WIDTHS: f64 = 0.4;
/// The newest form of affine maps that is known.
const AFFINE_VERSION_MAX: u64 = 1;

/// How the tensor-parallel shards of a parameter join.
#[derive(Clone, Debug, PartialEq)]
pub enum Join {
    /// Box by box.
    Affine(AffineMap),
    /// Each rank has all of it.
    Whole,
    /// Each rank's shard is two halves along axis 0, and each half is cut on its own.
    Halves,
    /// Several parts along one axis, each cut on its own.
    Parts(Parts),
    /// One after the other along an axis.
    Axis(usize),
}

/// Parts of a parameter that are cut over the ranks each on its own, as a fused q, k and v are.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// Axes of the parameter.
    pub axes: usize,
    /// The axis along which the parts lie.
    pub axis: usize,
    /// The extents of the parts.
    pub extents: PartExtents,
    /// For each part its width on each rank; `None` before version 0.4, which cut evenly.
    pub widths: Option<Vec<Vec<u64>>>,
}

/// The extents of parts.
#[derive(Clone, Debug, PartialEq)]
pub enum PartExtents {
    /// One a part.
    Each(Vec<u64>),
    /// So many equal ones.
    Equal(u64),
}

/// What a trainer says about joining shards.
#[derive(Clone, Debug)]
pub struct UniversalInfo {
    affine: Patterns<AffineMap>,
    whole: Patterns<()>,
    averaged: Patterns<()>,
    halves: Patterns<()>,
    parts: Patterns<Parts>,
    row: Patterns<()>,
    vocabulary: Patterns<()>,
    not_joinable: Patterns<String>,
    vocabulary_rows: Option<u64>,
}

impl UniversalInfo {
    pub(super) fn read(info: &Field<'_>) -> Result<Self, ZeroFault> {
        let version = info.find("universal_checkpoint_version")?;
        let version = version.map_or(Ok(0.0), |version| version.float())?;
        if version.is_nan() || version > VERSION_MAX {
            let (found, known) = (version.to_string(), VERSION_MAX.to_string());
            return Err(ZeroFault::Newer { key: "universal_checkpoint_version".to_owned(), found, known });
        }
        for key in ["ds_autoep_layers", "autoep_layers", "expert_parameter_patterns"] {
            if info
                .find(key)?
                .is_some_and(|value| value.value().items().is_none_or(|items| !items.is_empty()))
            {
                return Err(ZeroFault::Experts { key: format!("{}.{key}", info.key()) });
            }
        }
        let list = |key: &'static str| Patterns::new(key, names(info, key)?);
        Ok(Self {
            affine: affine_maps(info)?,
            whole: list("tp_replicated_parameter_patterns")?,
            averaged: list("parameter_to_average_patterns")?,
            halves: list("parameter_with_2_sub_params_cat_dim_0")?,
            parts: parts(info, version)?,
            row: list("parameter_with_row_parallelism_patterns")?,
            vocabulary: list("vocabulary_parameter_patterns")?,
            not_joinable: not_joinable(info)?,
            vocabulary_rows: info.find("original_vocab_size")?.map(|rows| rows.number()).transpose()?,
        })
    }

    /// How the shards of a parameter join; `empty` where no rank has an element of it.
    ///
    /// # Errors
    /// [`ZeroFault`] where the trainer says that they cannot, or two patterns of a list name it.
    pub fn join(&self, name: &str, empty: bool) -> Result<Join, ZeroFault> {
        if let Some(reason) = self.not_joinable.find(name)? {
            return Err(ZeroFault::CannotJoin { parameter: name.to_owned(), reason: reason.clone() });
        }
        // Under zero.Init the trainer describes placeholders, which have no element; the map says nothing then.
        let map = self.affine.find(name)?.filter(|map| empty || !is_placeholder(map));
        if let Some(map) = map {
            return Ok(Join::Affine(map.clone()));
        }
        if self.whole.find(name)?.is_some() || self.averaged.find(name)?.is_some() {
            return Ok(Join::Whole);
        }
        if self.halves.find(name)?.is_some() {
            return Ok(Join::Halves);
        }
        if let Some(parts) = self.parts.find(name)? {
            return Ok(Join::Parts(parts.clone()));
        }
        Ok(Join::Axis(usize::from(self.is_row_parallel(name)?)))
    }

    /// Whether the input side of a matrix is cut.
    pub(super) fn is_row_parallel(&self, name: &str) -> Result<bool, ZeroFault> {
        Ok(self.row.find(name)?.is_some())
    }

    /// The rows of a vocabulary without its padding, if `name` is one.
    ///
    /// # Errors
    /// [`ZeroFault`], if it is one and nothing says how many.
    pub fn vocabulary_rows(&self, name: &str) -> Result<Option<u64>, ZeroFault> {
        match (self.vocabulary.find(name)?, self.vocabulary_rows) {
            (None, _) => Ok(None),
            (Some(()), Some(rows)) => Ok(Some(rows)),
            (Some(()), None) => Err(ZeroFault::Missing { key: "original_vocab_size".to_owned() }),
        }
    }

    /// Whether the model was built under `zero.Init`: then parameters that tensor parallelism leaves alone are
    /// published as placeholders.
    #[must_use]
    pub fn has_placeholders(&self) -> bool {
        self.affine.values().any(is_placeholder)
    }
}

fn is_placeholder(map: &AffineMap) -> bool {
    map.logical_shape == [0]
}

fn names(info: &Field<'_>, key: &str) -> Result<Vec<(String, ())>, ZeroFault> {
    let Some(list) = info.find(key)? else { return Ok(Vec::new()) };
    Ok(list.texts()?.into_iter().map(|pattern| (pattern.to_owned(), ())).collect())
}

fn not_joinable(info: &Field<'_>) -> Result<Patterns<String>, ZeroFault> {
    const KEY: &str = "autotp_unsupported_parameter_patterns";
    let entries = info.find(KEY)?.map_or(Ok(Vec::new()), |reasons| reasons.entries())?;
    let reasons = entries.into_iter().map(|(pattern, reason)| Ok((pattern, reason.text()?.to_owned())));
    Patterns::new(KEY, reasons.collect::<Result<_, ZeroFault>>()?)
}

fn parts(info: &Field<'_>, version: f64) -> Result<Patterns<Parts>, ZeroFault> {
    const KEY: &str = "parameter_with_sub_params";
    const WIDTHS: &str = "sub_param_shard_widths";
    let recorded = info.find(WIDTHS)?;
    let mut entries = Vec::new();
    for part in info.find(KEY)?.map_or(Ok(Vec::new()), |list| list.items())? {
        let shape = part.get("shape")?.items()?;
        let axis = part.get("partition_dim")?;
        let at = usize::try_from(axis.number()?).ok().filter(|at| *at < shape.len());
        let at = at.ok_or_else(|| axis.wrong("axis of the shape"))?;
        let extents = match shape[at].value().as_u64() {
            Some(count) => PartExtents::Equal(count),
            None => PartExtents::Each(shape[at].numbers()?),
        };
        for pattern in part.get("patterns")?.texts()? {
            let widths = match &recorded {
                _ if version < VERSION_OF_WIDTHS => None,
                Some(recorded) => {
                    let widths = recorded.get(pattern)?.items()?;
                    Some(widths.iter().map(Field::numbers).collect::<Result<Vec<_>, _>>()?)
                }
                None => return Err(ZeroFault::Missing { key: format!("{}.{WIDTHS}", info.key()) }),
            };
            let parts = Parts { axes: shape.len(), axis: at, extents: extents.clone(), widths };
            entries.push((pattern.to_owned(), parts));
        }
    }
    Patterns::new(KEY, entries)
}

fn affine_maps(info: &Field<'_>) -> Result<Patterns<AffineMap>, ZeroFault> {
    const KEY: &str = "affine_map";
    let Some(affine) = info.find(KEY)? else { return Patterns::new(KEY, Vec::new()) };
    if let Some(version) = affine.find("version")? {
        let found = version.number()?;
        if found > AFFINE_VERSION_MAX {
            let (found, known) = (found.to_string(), AFFINE_VERSION_MAX.to_string());
            return Err(ZeroFault::Newer { key: "affine_map.version".to_owned(), found, known });
        }
    }
    let maps = affine.find("params")?.map_or(Ok(Vec::new()), |maps| maps.entries())?;
    let maps = maps.into_iter().map(|(pattern, map)| Ok((pattern, affine_map(&map)?)));
    Patterns::new(KEY, maps.collect::<Result<_, ZeroFault>>()?)
}

fn affine_map(map: &Field<'_>) -> Result<AffineMap, ZeroFault> {
    let mut ranks = IndexMap::new();
    for (rank, shard) in map.get("ranks")?.entries()? {
        let pieces = shard.get("pieces")?.items()?.iter().map(affine_piece).collect::<Result<_, _>>()?;
        ranks.insert(rank, AffineShard { shard_shape: shard.get("shard_shape")?.shape()?, pieces });
    }
    Ok(AffineMap { logical_shape: map.get("logical_shape")?.shape()?, ranks })
}

fn affine_piece(piece: &Field<'_>) -> Result<AffinePiece, ZeroFault> {
    let integers = |field: &Field<'_>| -> Result<Vec<i64>, ZeroFault> {
        let integer = |item: &Field<'_>| item.value().as_i64().ok_or_else(|| item.wrong("whole number"));
        field.items()?.iter().map(integer).collect()
    };
    let address = |key: &str| -> Result<(i64, Vec<i64>), ZeroFault> {
        let field = piece.get(key)?;
        let [offset, strides] = &field.items()?[..] else {
            return Err(field.wrong("pair of offset and strides"));
        };
        let offset = offset.value().as_i64().ok_or_else(|| offset.wrong("whole number"))?;
        Ok((offset, integers(strides)?))
    };
    let locations = piece.get("locations")?;
    let ranks = locations.numbers()?.into_iter().map(u32::try_from).collect::<Result<_, _>>();
    Ok(AffinePiece {
        shape: integers(&piece.get("shape")?)?,
        source: address("source")?,
        dest: address("dest")?,
        locations: ranks.map_err(|_| locations.wrong("list of ranks"))?,
        scale: piece.find("scale")?.map(|scale| scale.float()).transpose()?,
    })
}

//! Layouts and what they are made of.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyBytes, PyTuple};
use reshard_layout::affine::AffineFile;
use reshard_layout::{Layout as Inner, Places, Rank};

use crate::shape::Shape;
use crate::{affine, errors, portable, topology};

/// A logical tensor: its name, extents and element type, such as ``"bf16"``.
#[pyclass(frozen, get_all, eq, hash, module = "reshard")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Parameter {
    name: String,
    shape: Shape,
    dtype: String,
}

#[pymethods]
impl Parameter {
    fn __repr__(&self) -> String {
        format!("Parameter({:?}, {}, {:?})", self.name, self.shape.text(), self.dtype)
    }
}

/// An allocation that one rank owns: what is bound to a tensor when a plan is executed. Names are unique on a rank.
#[pyclass(frozen, get_all, eq, hash, module = "reshard")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Storage {
    id: u32,
    rank: u32,
    name: String,
    bytes: u64,
}

#[pymethods]
impl Storage {
    fn __repr__(&self) -> String {
        format!("Storage({}, rank={}, name={:?}, bytes={})", self.id, self.rank, self.name, self.bytes)
    }
}

/// A typed window of a storage: ``offset`` in bytes, ``length`` in elements of ``dtype``.
#[pyclass(frozen, get_all, eq, hash, module = "reshard")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Buffer {
    id: u32,
    storage: u32,
    offset: u64,
    dtype: String,
    length: u64,
}

#[pymethods]
impl Buffer {
    fn __repr__(&self) -> String {
        format!(
            "Buffer({}, storage={}, offset={}, dtype={:?}, length={})",
            self.id, self.storage, self.offset, self.dtype, self.length
        )
    }
}

/// A box of a parameter and where it lies: ``offset`` and ``strides`` count elements of the buffer.
#[pyclass(frozen, get_all, eq, module = "reshard")]
#[derive(Clone, PartialEq)]
pub(crate) struct Piece {
    parameter: String,
    rank: u32,
    origin: Shape,
    shape: Shape,
    buffer: u32,
    offset: u64,
    strides: Shape,
    scale: f64,
}

#[pymethods]
impl Piece {
    fn __repr__(&self) -> String {
        format!(
            "Piece({:?}, rank={}, origin={}, shape={}, buffer={}, offset={}, strides={}, scale={})",
            self.parameter,
            self.rank,
            self.origin.text(),
            self.shape.text(),
            self.buffer,
            self.offset,
            self.strides.text(),
            self.scale
        )
    }
}

pub(crate) fn storages_of(places: &Places, rank: Option<u32>) -> Vec<Storage> {
    let wanted = |storage: &&Storage| rank.is_none_or(|rank| storage.rank == rank);
    let storage = |(id, storage): (u32, &reshard_layout::Storage)| Storage {
        id,
        rank: storage.rank.0,
        name: storage.name.clone(),
        bytes: storage.length.0,
    };
    let all: Vec<Storage> = (0u32..).zip(&places.storages).map(storage).collect();
    all.iter().filter(wanted).cloned().collect()
}

pub(crate) fn buffers_of(places: &Places) -> Vec<Buffer> {
    let buffer = |(id, buffer): (u32, &reshard_layout::Buffer)| Buffer {
        id,
        storage: buffer.storage.0,
        offset: buffer.offset.0,
        dtype: buffer.dtype.name().to_owned(),
        length: buffer.length.0,
    };
    (0u32..).zip(&places.buffers).map(buffer).collect()
}

/// Which box of which parameter lies where in which buffer of which rank, for all ranks; immutable.
///
/// Made by ``LayoutBuilder``, ``Layout.autotp``, ``Layout.from_affine_maps``, or from a live engine by
/// ``reshard.deepspeed``. Two layouts are equal if they say the same of every parameter, storage, buffer and box.
#[pyclass(frozen, eq, module = "reshard")]
#[derive(Clone, PartialEq)]
pub(crate) struct Layout(pub(crate) Arc<Inner>);

impl Layout {
    pub(crate) fn wrap(inner: Inner) -> Self {
        Self(Arc::new(inner))
    }
}

#[pymethods]
impl Layout {
    /// The layout of parameters given as affine maps, each rank's shard a storage of its own named after its parameter.
    ///
    /// ``maps``: name -> DeepSpeed ``ParamAffineMap``, or its dictionary form. ``dtype``: one for all, or name -> dtype.
    /// Raises ``AffineMapError`` naming parameter and rank if a map contradicts itself.
    #[staticmethod]
    #[pyo3(signature = (maps: "Mapping[str, Any]", dtype: "str | Mapping[str, str]") -> "Layout")]
    fn from_affine_maps(maps: &Bound<'_, PyAny>, dtype: &Bound<'_, PyAny>) -> PyResult<Self> {
        affine::layout_of(maps, dtype).map(Self::wrap)
    }

    /// Every parameter as an affine map in dictionary form, which ``ParamAffineMap.from_dict`` of DeepSpeed reads.
    ///
    /// Addresses count from the first element of a rank's shard. Raises ``LayoutError`` if a rank keeps pieces of one
    /// parameter with gaps between them: such a shard cannot be said in this form.
    #[pyo3(signature = () -> "dict[str, dict[str, Any]]")]
    fn to_affine_maps<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        affine::maps_of(py, &self.0)
    }

    /// Reads a layout file: ``{"version": 1, "dtype": ..., "parameters": {name: affine map}}``.
    #[staticmethod]
    fn from_json(py: Python<'_>, text: &str) -> PyResult<Self> {
        py.detach(|| AffineFile::from_json(text).and_then(|file| file.to_layout()))
            .map(Self::wrap)
            .map_err(|error| errors::layout(py, &error))
    }

    /// Writes a layout file, for parameters of one dtype; see ``to_affine_maps``.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        let file = affine::file_of(py, &self.0)?;
        serde_json::to_string(&file).map_err(|error| errors::usage(py, error))
    }

    /// What a DeepSpeed engine stores, from the Hugging Face ``config`` (a dictionary or the text of config.json)
    /// and a topology such as ``"autotp:tp=2,dp=4,zero=3"``; of the weights, or of an optimizer ``state``
    /// (``"fp32"``, ``"exp_avg"``, ``"exp_avg_sq"``). ``options``: DeepSpeed's ``parameter_alignment``,
    /// ``round_robin_gradients``, ``tp_grain_size``, ``sub_group_size``; ``two_groups`` (matrices, then vectors);
    /// ``config_optimizer`` (made by DeepSpeed, not by the caller).
    ///
    /// Raises ``UsageError`` for a topology or option that cannot be read, ``LayoutError`` for a model that cannot be
    /// laid out.
    #[staticmethod]
    #[pyo3(signature = (config: "str | Mapping[str, Any]", topology, *, state=None, **options: "bool | int") -> "Layout")]
    fn autotp(
        py: Python<'_>,
        config: &Bound<'_, PyAny>,
        topology: &str,
        state: Option<&str>,
        options: Option<&Bound<'_, pyo3::types::PyDict>>,
    ) -> PyResult<Self> {
        topology::layout_of(py, config, topology, state, options).map(Self::wrap)
    }

    /// The parameters, in order.
    #[getter]
    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |parameter: &reshard_layout::Parameter| Parameter {
            name: parameter.name.clone(),
            shape: Shape(parameter.shape.clone()),
            dtype: parameter.dtype.name().to_owned(),
        };
        self.0.parameters().map(|(_, of)| parameter(of)).collect()
    }

    /// Second names (tied weights): alias -> parameter.
    #[getter]
    fn aliases(&self) -> std::collections::HashMap<String, String> {
        self.0.aliases().map(|(alias, id)| (alias.to_owned(), self.0.parameter(id).name.clone())).collect()
    }

    /// Every storage of every rank, by id.
    #[getter]
    fn storages(&self) -> Vec<Storage> {
        storages_of(self.0.places(), None)
    }

    /// Every buffer, by id.
    #[getter]
    fn buffers(&self) -> Vec<Buffer> {
        buffers_of(self.0.places())
    }

    /// The pieces of one parameter (a name or an alias), or of all, by rank, buffer and offset.
    #[pyo3(signature = (parameter=None))]
    fn pieces(&self, py: Python<'_>, parameter: Option<&str>) -> PyResult<Vec<Piece>> {
        let piece = |piece: reshard_layout::Piece<'_>| Piece {
            parameter: self.0.parameter(piece.parameter).name.clone(),
            rank: piece.rank.0,
            origin: Shape::of(piece.region.origin()),
            shape: Shape::of(piece.region.extent()),
            buffer: piece.buffer.0,
            offset: piece.offset.0,
            strides: Shape(piece.strides.clone()),
            scale: piece.scale,
        };
        let Some(name) = parameter else {
            return Ok(self.0.pieces().map(piece).collect());
        };
        let id = self.0.find(name).ok_or_else(|| {
            let nearest =
                self.0.nearest_name(name).map_or_else(String::new, |near| format!(", the nearest is {near}"));
            errors::usage(py, format!("the layout has no parameter {name}{nearest}"))
        })?;
        Ok(self.0.pieces_of(id).map(piece).collect())
    }

    /// The storages of one rank.
    fn storages_of(&self, rank: u32) -> Vec<Storage> {
        storages_of(self.0.places(), Some(Rank(rank).0))
    }

    /// One past the highest rank that owns a storage.
    #[getter]
    fn world(&self) -> u32 {
        self.0.world()
    }

    /// How many pieces all ranks hold.
    #[getter]
    fn piece_count(&self) -> u64 {
        self.0.piece_count()
    }

    /// A hash of all that the layout says, equal on every machine for layouts that were built alike.
    #[getter]
    fn fingerprint(&self) -> u64 {
        self.0.fingerprint()
    }

    fn __hash__(&self) -> u64 {
        self.0.piece_count() ^ u64::from(self.0.world()).rotate_left(32)
    }

    fn __repr__(&self) -> String {
        format!(
            "<Layout: {} parameters, {} pieces on {} ranks>",
            self.0.parameters().len(),
            self.0.piece_count(),
            self.0.world()
        )
    }

    #[pyo3(signature = () -> "tuple[Any, ...]")]
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let py = slf.py();
        let bytes = portable::to_bytes(py, &*slf.get().0)?;
        Ok((py.get_type::<Self>().getattr("_from_bytes")?, PyTuple::new(py, [bytes])?))
    }

    #[staticmethod]
    fn _from_bytes(py: Python<'_>, bytes: &Bound<'_, PyBytes>) -> PyResult<Self> {
        portable::from_bytes(py, "layout", bytes.as_bytes()).map(Self::wrap)
    }
}

//! Plans, and the choice of sources by a Python function.

use std::collections::BTreeMap;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyBytes, PyDict, PyInt, PyList, PyTuple};
use reshard_layout::{Places, Rank};
use reshard_plan::{Copy as InnerCopy, Options, Plan as Inner, PlanError, Policy};

use crate::layout::{Buffer, Layout, Storage, buffers_of, storages_of};
use crate::schedule::Schedule;
use crate::shape::Shape;
use crate::{errors, portable};

/// Bytes of staging that are enough for good speed on most machines: 256 MiB.
const STAGING_DEFAULT: u64 = reshard_plan::Schedule::STAGING_DEFAULT.0;

/// One question to a policy of the caller's: which of ``candidates``, the ranks that hold all of the box, shall send
/// it to ``target_rank``?
#[pyclass(frozen, get_all, module = "reshard")]
pub(crate) struct Request {
    parameter: String,
    target_rank: u32,
    origin: Shape,
    shape: Shape,
    bytes: u64,
    candidates: Shape,
}

#[pymethods]
impl Request {
    fn __repr__(&self) -> String {
        format!(
            "Request({:?}, target_rank={}, origin={}, shape={}, bytes={}, candidates={})",
            self.parameter,
            self.target_rank,
            self.origin.text(),
            self.shape.text(),
            self.bytes,
            self.candidates.text()
        )
    }
}

/// One end of a copy: where a box lies in a storage of a rank. ``offset`` and ``strides`` count elements of ``dtype``
/// in buffer number ``buffer``.
#[pyclass(frozen, get_all, eq, hash, module = "reshard")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct End {
    rank: u32,
    storage: String,
    buffer: u32,
    dtype: String,
    offset: u64,
    strides: Shape,
}

#[pymethods]
impl End {
    fn __repr__(&self) -> String {
        format!(
            "End(rank={}, storage={:?}, buffer={}, dtype={:?}, offset={}, strides={})",
            self.rank,
            self.storage,
            self.buffer,
            self.dtype,
            self.offset,
            self.strides.text()
        )
    }
}

/// One strided box copy: ``shape`` elements of ``parameter`` at ``origin``, from ``source`` to ``target``.
#[pyclass(frozen, get_all, eq, hash, module = "reshard")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Copy {
    parameter: String,
    origin: Shape,
    shape: Shape,
    source: End,
    target: End,
}

#[pymethods]
impl Copy {
    fn __repr__(&self) -> String {
        format!(
            "Copy({:?}, origin={}, shape={}, source={}, target={})",
            self.parameter,
            self.origin.text(),
            self.shape.text(),
            self.source.__repr__(),
            self.target.__repr__()
        )
    }
}

/// What a plan adds up to. Bytes are those that travel: local ones stay on their rank.
#[pyclass(frozen, get_all, eq, module = "reshard")]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Statistics {
    source_pieces: u64,
    target_pieces: u64,
    copies: u64,
    bytes_local: u64,
    bytes_sent: u64,
    sent_by_rank: Vec<u64>,
    received_by_rank: Vec<u64>,
}

#[pymethods]
impl Statistics {
    fn __repr__(&self) -> String {
        format!(
            "Statistics(copies={}, bytes_local={}, bytes_sent={}, sent_by_rank={:?}, received_by_rank={:?})",
            self.copies, self.bytes_local, self.bytes_sent, self.sent_by_rank, self.received_by_rank
        )
    }
}

/// The copies that turn what a source layout holds into what a target layout holds; immutable, without any address.
///
/// The same layouts and policy give the same plan on every rank: make it once, use it for every sync.
#[pyclass(frozen, eq, module = "reshard")]
#[derive(Clone, PartialEq)]
pub(crate) struct Plan(pub(crate) Arc<Inner>);

/// Plans how every element of ``target`` is filled from ``source``; both layouts number the same processes.
///
/// ``policy`` says who sends a box that several ranks hold: ``"lowest"`` (the lowest rank), ``"local"`` (the target rank
/// itself if it holds the box, else the lowest), ``"balanced"`` (itself, else who sends least so far), or a function
/// that answers a ``Request`` with one of its candidates, and must answer alike on every rank. With ``cast`` the two
/// sides may have different float dtypes of a parameter, so that values are rounded to the target's.
///
/// Raises ``PlanError`` naming the parameter and both sides if one is missing or its shape, dtype or scale disagrees.
#[pyfunction]
#[pyo3(signature = (source, target, policy: "str | Callable[[Request], int] | None" = None, *, cast: "bool" = false) -> "Plan")]
pub(crate) fn plan(
    py: Python<'_>,
    source: &Layout,
    target: &Layout,
    policy: Option<&Bound<'_, PyAny>>,
    cast: bool,
) -> PyResult<Plan> {
    let (source, target) = (&*source.0, &*target.0);
    let name = policy.map_or(Ok("balanced".to_owned()), |policy| policy.extract::<String>());
    let made = match (name, policy) {
        (Ok(name), _) => {
            let policy = policy_of(py, &name)?;
            py.detach(|| Options::new(policy).cast(cast).plan(source, target))
        }
        (Err(_), Some(function)) => asked(function, source, target, cast)?,
        (Err(error), None) => return Err(error),
    };
    made.map(|plan| Plan(Arc::new(plan))).map_err(|error| errors::plan(py, &error))
}

/// Plans with a Python function as policy. What it raises is raised.
fn asked(
    function: &Bound<'_, PyAny>,
    source: &reshard_layout::Layout,
    target: &reshard_layout::Layout,
    cast: bool,
) -> PyResult<Result<Inner, PlanError>> {
    let mut failure = None;
    let options = Options::ask(|request| match ask(function, request) {
        Ok(rank) => rank,
        Err(error) => {
            failure.get_or_insert(error);
            request.candidates[0]
        }
    });
    let made = options.cast(cast).plan(source, target);
    failure.map_or(Ok(made), Err)
}

/// The parameters of ``source`` that ``target`` does not take: a plan leaves them out without an error.
#[pyfunction]
pub(crate) fn unused_parameters(py: Python<'_>, source: &Layout, target: &Layout) -> Vec<String> {
    py.detach(|| reshard_plan::unused_parameters(&source.0, &target.0))
}

fn policy_of(py: Python<'_>, name: &str) -> PyResult<Policy> {
    Policy::parse(name).ok_or_else(|| {
        errors::usage(py, format!("there is no policy {name:?}: lowest, local, balanced, or a function"))
    })
}

/// Asks a Python function. An answer that is not exactly an integer is refused: `True` is not rank 1.
fn ask(function: &Bound<'_, PyAny>, request: &reshard_plan::Request<'_>) -> PyResult<Rank> {
    let py = function.py();
    let question = Request {
        parameter: request.parameter.to_owned(),
        target_rank: request.target_rank.0,
        origin: Shape::of(request.region.origin()),
        shape: Shape::of(request.region.extent()),
        bytes: request.bytes.0,
        candidates: Shape(request.candidates.iter().map(|rank| u64::from(rank.0)).collect()),
    };
    let answer = function.call1((question,))?;
    let number = answer.cast_exact::<PyInt>().ok().and_then(|number| number.extract::<u32>().ok());
    number.map(Rank).ok_or_else(|| {
        errors::usage(py, format!("{}: the policy answered {answer:?}, which is no rank", request.parameter))
    })
}

impl Plan {
    fn end(places: &Places, end: &reshard_plan::End) -> End {
        let buffer = places.buffer(end.buffer);
        let storage = places.storage(buffer.storage);
        End {
            rank: storage.rank.0,
            storage: storage.name.clone(),
            buffer: end.buffer.0,
            dtype: buffer.dtype.name().to_owned(),
            offset: end.offset.0,
            strides: Shape(end.strides.clone()),
        }
    }

    fn copy(&self, copy: &InnerCopy) -> Copy {
        Copy {
            parameter: self.0.parameters[copy.parameter.index()].name.clone(),
            origin: Shape(copy.origin.clone()),
            shape: Shape(copy.shape.clone()),
            source: Self::end(&self.0.source, &copy.source),
            target: Self::end(&self.0.target, &copy.target),
        }
    }
}

#[pymethods]
impl Plan {
    /// Version of the plan's form.
    #[getter]
    fn version(&self) -> u32 {
        self.0.version
    }

    /// Hash of both layouts, the policy and the copies: equal on every rank that planned from the same inputs.
    #[getter]
    fn fingerprint(&self) -> u64 {
        self.0.fingerprint
    }

    /// How sources were chosen.
    #[getter]
    fn policy(&self) -> &'static str {
        self.0.policy.name()
    }

    /// Whether copies may cast from one float dtype to another.
    #[getter]
    fn cast(&self) -> bool {
        self.0.cast
    }

    /// One past the highest rank that owns a storage on either side.
    #[getter]
    fn world(&self) -> usize {
        self.0.statistics.sent_by_rank.len()
    }

    /// Names of the target's parameters.
    #[getter]
    fn parameters(&self) -> Vec<String> {
        self.0.parameters.iter().map(|parameter| parameter.name.clone()).collect()
    }

    /// What it adds up to.
    #[getter]
    fn statistics(&self) -> Statistics {
        let of = &self.0.statistics;
        Statistics {
            source_pieces: of.source_pieces,
            target_pieces: of.target_pieces,
            copies: of.copies,
            bytes_local: of.bytes_local.0,
            bytes_sent: of.bytes_sent.0,
            sent_by_rank: of.sent_by_rank.iter().map(|bytes| bytes.0).collect(),
            received_by_rank: of.received_by_rank.iter().map(|bytes| bytes.0).collect(),
        }
    }

    /// Every copy, by target buffer and offset. A list is made at each call.
    #[getter]
    fn copies(&self) -> Vec<Copy> {
        self.0.copies.iter().map(|copy| self.copy(copy)).collect()
    }

    /// The storages of one rank that are read.
    fn source_storages(&self, rank: u32) -> Vec<Storage> {
        storages_of(&self.0.source, Some(rank))
    }

    /// The storages of one rank that are written.
    fn target_storages(&self, rank: u32) -> Vec<Storage> {
        storages_of(&self.0.target, Some(rank))
    }

    /// Every buffer of the source, by number.
    #[getter]
    fn source_buffers(&self) -> Vec<Buffer> {
        buffers_of(&self.0.source)
    }

    /// Every buffer of the target, by number.
    #[getter]
    fn target_buffers(&self) -> Vec<Buffer> {
        buffers_of(&self.0.target)
    }

    /// When each message goes, so that no rank needs more than ``staging`` bytes for what it sends and receives. Raises
    /// ``ScheduleError`` if that is too little.
    #[pyo3(signature = (staging=STAGING_DEFAULT))]
    fn schedule(&self, py: Python<'_>, staging: u64) -> PyResult<Schedule> {
        Schedule::new(py, &self.0, staging)
    }

    /// The plan in the form of DeepSpeed's ``TransferPlan.to_dict()``: parameter -> ``{"logical_shape": [...],
    /// "segments": [{"shape": [...], "source": [rank, offset, strides], "target": [rank, offset, strides]}]}``. Offsets
    /// count elements of the rank's shard where the layouts came from affine maps, of its buffer otherwise.
    #[pyo3(signature = () -> "dict[str, dict[str, Any]]")]
    fn to_transfer_plans<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let mut segments: BTreeMap<u32, Bound<'py, PyList>> = BTreeMap::new();
        for copy in &self.0.copies {
            let end = |places: &Places, end: &reshard_plan::End| {
                (places.rank_of(end.buffer).0, end.offset.0, end.strides.to_vec())
            };
            let segment = PyDict::new(py);
            segment.set_item("shape", copy.shape.to_vec())?;
            segment.set_item("source", end(&self.0.source, &copy.source))?;
            segment.set_item("target", end(&self.0.target, &copy.target))?;
            segments.entry(copy.parameter.0).or_insert_with(|| PyList::empty(py)).append(segment)?;
        }
        let plans = PyDict::new(py);
        for (id, parameter) in (0u32..).zip(&self.0.parameters) {
            let plan = PyDict::new(py);
            plan.set_item("logical_shape", parameter.shape.to_vec())?;
            plan.set_item("segments", segments.remove(&id).unwrap_or_else(|| PyList::empty(py)))?;
            plans.set_item(&parameter.name, plan)?;
        }
        Ok(plans)
    }

    /// Writes the whole plan as JSON, for other programs to read.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        let plan = &self.0;
        py.detach(|| serde_json::to_string(&**plan)).map_err(|error| errors::usage(py, error))
    }

    fn __hash__(&self) -> u64 {
        self.0.fingerprint
    }

    fn __repr__(&self) -> String {
        let of = &self.0.statistics;
        format!(
            "<Plan: {} copies, {} bytes local, {} bytes sent, policy {}, fingerprint {:016x}>",
            of.copies,
            of.bytes_local.0,
            of.bytes_sent.0,
            self.0.policy.name(),
            self.0.fingerprint
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
        portable::from_bytes(py, "plan", bytes.as_bytes()).map(|plan| Self(Arc::new(plan)))
    }
}

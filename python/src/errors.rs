//! Rust errors as the exceptions of `reshard.errors`, with the facts as attributes.
//!
//! ```text
//!   PlanError::ShapesDiffer { parameter, .. }   ->   reshard.PlanError(text, kind="invalid", parameter="up.weight",
//!                                                                      expected=(18, 4), found=(4, 18))
//! ```

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use reshard_layout::affine::AffineFault;
use reshard_layout::{Dims, Finding, Kind, LayoutError};
use reshard_parallel::{Category, ParallelError};
use reshard_plan::{PlanError, ScheduleError, VerifyError};

/// What an exception is made of. Facts that an error does not have stay `None` in Python.
pub(crate) struct Facts<'py> {
    class: &'static str,
    message: String,
    facts: Bound<'py, PyDict>,
}

impl<'py> Facts<'py> {
    pub(crate) fn new(py: Python<'py>, class: &'static str, message: impl ToString) -> Self {
        Self { class, message: message.to_string(), facts: PyDict::new(py) }
    }

    pub(crate) fn with(self, name: &str, value: impl IntoPyObject<'py>) -> PyResult<Self> {
        self.facts.set_item(name, value)?;
        Ok(self)
    }

    pub(crate) fn into_error(self) -> PyResult<PyErr> {
        let py = self.facts.py();
        let class = py.import("reshard.errors")?.getattr(self.class)?;
        Ok(PyErr::from_value(class.call((self.message,), Some(&self.facts))?))
    }
}

fn flatten(error: PyResult<PyErr>) -> PyErr {
    error.unwrap_or_else(|failure| failure)
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Invalid => "invalid",
        Kind::Unsupported => "unsupported",
        Kind::OverBudget => "over budget",
    }
}

fn dims<'py>(py: Python<'py>, dims: &[u64]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, dims)
}

/// A wrong argument.
pub(crate) fn usage(py: Python<'_>, message: impl ToString) -> PyErr {
    flatten(Facts::new(py, "UsageError", message).with("kind", "usage").and_then(Facts::into_error))
}

/// A layout that cannot be said in a form.
pub(crate) fn unsupported_layout(py: Python<'_>, message: impl ToString) -> PyErr {
    flatten(Facts::new(py, "LayoutError", message).with("kind", "unsupported").and_then(Facts::into_error))
}

pub(crate) fn layout(py: Python<'_>, error: &LayoutError) -> PyErr {
    let make = || {
        let class = match error {
            LayoutError::AffineMap { .. } => "AffineMapError",
            _ => "LayoutError",
        };
        let facts = Facts::new(py, class, error).with("kind", kind_name(error.kind()))?;
        match error {
            LayoutError::Findings { findings } => {
                let all: Vec<String> = findings.iter().map(ToString::to_string).collect();
                finding(facts.with("findings", all)?, &findings[0])
            }
            LayoutError::AffineMap { parameter, fault } => {
                affine_fault(facts.with("parameter", parameter)?, fault)
            }
            _ => Ok(facts),
        }?
        .into_error()
    };
    flatten(make())
}

fn finding<'py>(facts: Facts<'py>, finding: &Finding) -> PyResult<Facts<'py>> {
    let py = facts.facts.py();
    match finding {
        Finding::BufferOutOfStorage { rank, end, length, .. } => {
            facts.with("rank", rank.0)?.with("expected", length.0)?.with("found", end.0)
        }
        Finding::RepeatedStorage { rank, .. } => facts.with("rank", rank.0),
        Finding::RunOutOfShard { parameter, rank, end, shard, .. } => facts
            .with("parameter", parameter)?
            .with("rank", rank.0)?
            .with("expected", dims(py, shard)?)?
            .with("found", *end),
        Finding::ShardNotRowMajor { parameter, rank, .. }
        | Finding::HeldTwice { parameter, rank, .. }
        | Finding::PieceOutOfBuffer { parameter, rank, .. } => {
            facts.with("parameter", parameter)?.with("rank", rank.0)
        }
        Finding::Hole { parameter, .. }
        | Finding::DtypeDisagrees { parameter, .. }
        | Finding::WrongAxes { parameter, .. }
        | Finding::ShapeDisagrees { parameter, .. }
        | Finding::RegionOutOfParameter { parameter, .. }
        | Finding::SelfOverlap { parameter, .. }
        | Finding::BadScale { parameter, .. } => facts.with("parameter", parameter),
        _ => Ok(facts),
    }
}

fn affine_fault<'py>(facts: Facts<'py>, fault: &AffineFault) -> PyResult<Facts<'py>> {
    match fault {
        AffineFault::Holders { rank, declared, found } => {
            facts.with("rank", *rank)?.with("expected", declared)?.with("found", found)
        }
        AffineFault::ShardNotFilled { rank, expected, found } => {
            facts.with("rank", *rank)?.with("expected", *expected)?.with("found", *found)
        }
        AffineFault::Axes { rank, expected, found, .. } => {
            facts.with("rank", *rank)?.with("expected", *expected)?.with("found", *found)
        }
        AffineFault::Negative { rank, value, .. } => facts.with("rank", *rank)?.with("found", *value),
        AffineFault::NoHolder { rank }
        | AffineFault::Leaves { rank, .. }
        | AffineFault::NotABox { rank, .. }
        | AffineFault::TooManyBoxes { rank, .. } => facts.with("rank", *rank),
        _ => Ok(facts),
    }
}

pub(crate) fn plan(py: Python<'_>, error: &PlanError) -> PyErr {
    let pair = |facts: Facts<'_>, source: &Dims, target: &Dims| -> PyResult<PyErr> {
        facts.with("expected", dims(py, target)?)?.with("found", dims(py, source)?)?.into_error()
    };
    let make = || {
        let facts = Facts::new(py, "PlanError", error).with("kind", kind_name(error.kind()))?;
        match error {
            PlanError::MissingParameter { parameter, nearest } => {
                facts.with("parameter", parameter)?.with("hint", nearest)?.into_error()
            }
            PlanError::ShapesDiffer { parameter, source_shape, target_shape } => {
                pair(facts.with("parameter", parameter)?, source_shape, target_shape)
            }
            PlanError::DtypesDiffer { parameter, source_dtype, target_dtype } => facts
                .with("parameter", parameter)?
                .with("expected", target_dtype.name())?
                .with("found", source_dtype.name())?
                .with("hint", error.wants_cast().then_some("plan with cast=True to permit rounding"))?
                .into_error(),
            PlanError::ScalesDiffer { parameter, rank, source_scale, target_scale, .. } => facts
                .with("parameter", parameter)?
                .with("rank", rank.0)?
                .with("expected", *target_scale)?
                .with("found", *source_scale)?
                .into_error(),
            PlanError::NotACandidate { parameter, answer, candidates, .. } => facts
                .with("parameter", parameter)?
                .with("expected", candidates.iter().map(|rank| rank.0).collect::<Vec<_>>())?
                .with("found", answer.0)?
                .into_error(),
            PlanError::UntiedOntoTied { parameter, .. } | PlanError::NotHeld { parameter, .. } => {
                facts.with("parameter", parameter)?.into_error()
            }
            _ => facts.into_error(),
        }
    };
    flatten(make())
}

pub(crate) fn verify(py: Python<'_>, error: &VerifyError) -> PyErr {
    let make = || {
        let facts = Facts::new(py, "VerifyError", error).with("kind", "invalid")?;
        match error {
            VerifyError::NotWritten { parameter, rank, expected, written } => facts
                .with("parameter", parameter)?
                .with("rank", rank.0)?
                .with("expected", expected.0)?
                .with("found", written.0)?
                .into_error(),
            VerifyError::WrongPlace { parameter, rank, .. }
            | VerifyError::WrittenTwice { parameter, rank, .. } => {
                facts.with("parameter", parameter)?.with("rank", rank.0)?.into_error()
            }
            VerifyError::UnknownParameter { parameter, .. }
            | VerifyError::SidesDiffer { parameter, .. }
            | VerifyError::Malformed { parameter, .. } => facts.with("parameter", parameter)?.into_error(),
            VerifyError::OtherVersion { expected, found } => {
                facts.with("expected", *expected)?.with("found", *found)?.into_error()
            }
            _ => facts.into_error(),
        }
    };
    flatten(make())
}

pub(crate) fn schedule(py: Python<'_>, error: &ScheduleError) -> PyErr {
    let make = || {
        let facts = Facts::new(py, "ScheduleError", error).with("kind", kind_name(error.kind()))?;
        match error {
            ScheduleError::StagingTooSmall { expected, found } => {
                facts.with("expected", expected.0)?.with("found", found.0)?.into_error()
            }
            ScheduleError::PlanVersion { expected, found } => {
                facts.with("expected", *expected)?.with("found", *found)?.into_error()
            }
            ScheduleError::TooManyMessages { expected, found, .. } => {
                facts.with("expected", *expected)?.with("found", *found)?.into_error()
            }
            _ => facts.into_error(),
        }
    };
    flatten(make())
}

pub(crate) fn parallel(py: Python<'_>, error: &ParallelError) -> PyErr {
    let (class, kind) = match error.category() {
        Category::Usage => ("UsageError", "usage"),
        Category::Unsupported => ("LayoutError", "unsupported"),
        Category::Invalid => ("LayoutError", "invalid"),
    };
    flatten(Facts::new(py, class, error).with("kind", kind).and_then(Facts::into_error))
}

//! Schedules: what each rank sends and receives, round by round, under a staging limit.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use reshard_layout::{BufferId, Bytes, DType, Elements, Fill, Places, Rank};
use reshard_plan as planner;

use crate::errors;
use crate::shape::Shape;

/// A box of a buffer. In a message it begins at byte ``position`` and its elements follow each other row-major as
/// ``wire``; where that is not the buffer's own ``dtype``, the buffer's owner converts. A box that stays on its rank has
/// position 0 and its own dtype as ``wire``.
#[pyclass(frozen, get_all, eq, hash, module = "reshard")]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Box {
    buffer: u32,
    offset: u64,
    shape: Shape,
    strides: Shape,
    position: u64,
    dtype: &'static str,
    wire: &'static str,
}

#[pymethods]
impl Box {
    fn __repr__(&self) -> String {
        format!(
            "Box(buffer={}, offset={}, shape={}, strides={}, position={}, dtype={:?}, wire={:?})",
            self.buffer,
            self.offset,
            self.shape.text(),
            self.strides.text(),
            self.position,
            self.dtype,
            self.wire
        )
    }
}

/// What goes to or comes from one ``peer`` in one round: ``boxes``, one after another, ``bytes`` in all.
#[pyclass(frozen, get_all, eq, module = "reshard")]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Message {
    peer: u32,
    bytes: u64,
    boxes: Vec<Box>,
}

#[pymethods]
impl Message {
    fn __repr__(&self) -> String {
        format!("<Message: peer {}, {} bytes in {} boxes>", self.peer, self.bytes, self.boxes.len())
    }
}

/// What one rank does: ``local`` pairs of a source and a target box of its own; ``fills`` of padding; and in each of ``rounds`` a message to send and one to receive, or ``None``.
#[pyclass(frozen, module = "reshard")]
pub(crate) struct Share {
    #[pyo3(get)]
    local: Vec<(Box, Box)>,
    fills: Vec<(Box, Vec<u8>)>,
    #[pyo3(get)]
    rounds: Vec<(Option<Message>, Option<Message>)>,
}

#[pymethods]
impl Share {
    /// Padding of this rank's target buffers: a box, and the bytes of one element.
    #[getter]
    fn fills<'py>(&self, py: Python<'py>) -> Vec<(Box, Bound<'py, PyBytes>)> {
        self.fills.iter().map(|(at, value)| (at.clone(), PyBytes::new(py, value))).collect()
    }

    fn __repr__(&self) -> String {
        format!(
            "<Share: {} local copies, {} fills, {} rounds>",
            self.local.len(),
            self.fills.len(),
            self.rounds.len()
        )
    }
}

/// When each message of a plan goes: in ``rounds``, in each of which a rank sends at most one message and receives at
/// most one, of at most ``chunk`` bytes. There are ``bound`` rounds, the fewest that are possible.
#[pyclass(frozen, module = "reshard")]
pub(crate) struct Schedule {
    plan: Arc<planner::Plan>,
    inner: planner::Schedule,
}

impl Schedule {
    pub(crate) fn new(py: Python<'_>, plan: &Arc<planner::Plan>, staging: u64) -> PyResult<Self> {
        py.detach(|| planner::Schedule::new(plan, Bytes(staging)))
            .map(|inner| Self { plan: plan.clone(), inner })
            .map_err(|error| errors::schedule(py, &error))
    }
}

#[pymethods]
impl Schedule {
    /// The number of rounds.
    #[getter]
    fn rounds(&self) -> u32 {
        self.inner.rounds()
    }

    /// The number that rounds cannot be below: the most messages that one rank sends, or receives.
    #[getter]
    fn bound(&self) -> u32 {
        self.inner.bound()
    }

    /// The most bytes of a message: a quarter of the staging limit, as a multiple of 16.
    #[getter]
    fn chunk(&self) -> u64 {
        self.inner.chunk().0
    }

    /// The most bytes that a rank keeps for what it sends and receives.
    #[getter]
    fn staging(&self) -> u64 {
        self.inner.staging().0
    }

    /// The number of messages, over all ranks.
    #[getter]
    fn messages(&self) -> u64 {
        self.inner.messages()
    }

    /// Hash of the plan's fingerprint, the staging limit and every message's round.
    #[getter]
    fn fingerprint(&self) -> u64 {
        self.inner.fingerprint()
    }

    /// What one rank does.
    fn share(&self, py: Python<'_>, rank: u32) -> PyResult<Share> {
        let plan = &self.plan;
        let share =
            py.detach(|| self.inner.share(plan, Rank(rank))).map_err(|error| errors::schedule(py, &error))?;
        let message = |places: &Places, message: planner::Message| Message {
            peer: message.peer.0,
            bytes: message.bytes.0,
            boxes: message.boxes.iter().map(|at| wire_box(places, at)).collect(),
        };
        let local = |copy: &planner::Copy| {
            (end_box(&plan.source, &copy.source, copy), end_box(&plan.target, &copy.target, copy))
        };
        let fill = |fill: &Fill| (fill_box(&plan.target, fill), fill.value.clone());
        let round = |round: planner::Round| {
            (
                round.send.map(|sent| message(&plan.source, sent)),
                round.receive.map(|received| message(&plan.target, received)),
            )
        };
        Ok(Share {
            local: share.local.iter().map(local).collect(),
            fills: share.fills.iter().map(fill).collect(),
            rounds: share.rounds.into_iter().map(round).collect(),
        })
    }

    fn __repr__(&self) -> String {
        format!(
            "<Schedule: {} messages in {} rounds, staging {} bytes>",
            self.inner.messages(),
            self.inner.rounds(),
            self.inner.staging().0
        )
    }
}

fn box_of(places: &Places, buffer: BufferId, offset: Elements, shape: Shape, strides: Shape) -> Box {
    let dtype = places.buffer(buffer).dtype.name();
    Box { buffer: buffer.0, offset: offset.0, shape, strides, position: 0, dtype, wire: dtype }
}

fn wire_box(places: &Places, at: &planner::WireBox) -> Box {
    let wire: DType = at.wire;
    Box {
        position: at.position.0,
        wire: wire.name(),
        ..box_of(places, at.buffer, at.offset, Shape(at.shape.clone()), Shape(at.strides.clone()))
    }
}

fn end_box(places: &Places, end: &planner::End, copy: &planner::Copy) -> Box {
    box_of(places, end.buffer, end.offset, Shape(copy.shape.clone()), Shape(end.strides.clone()))
}

fn fill_box(places: &Places, fill: &Fill) -> Box {
    box_of(places, fill.buffer, fill.offset, Shape(fill.shape.clone()), Shape(fill.strides.clone()))
}

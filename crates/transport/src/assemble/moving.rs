//! A copy or fill in bytes, and the parts of it that lie in a window.
//!
//! ```text
//!   target rows of 6 bytes, 8 apart        window [11, 29)
//!     0 . . . . . 6 | 8 . . (11 . . 14 | 16 . . . . . 22 | 24 . . . . 29) 30
//!     steps of the outermost axis:  inside the window 16..22, one box;  at its edges 8..14 and 24..30, cut again
//! ```

use std::ops::Range;

use reshard_layout::{Buffer, Bytes, DType, Fill, StorageId};
use reshard_plan::{Copy, Plan};
use smallvec::SmallVec;

use super::FillError;
use crate::kernel::{Axis, merged};

/// Axes of a box in bytes; inline for all that tensors have.
pub(super) type Axes = SmallVec<[Axis; 6]>;

/// A box in bytes: where it begins on both sides, and its axes, largest target stride first.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) source: u64,
    pub(super) target: u64,
    pub(super) axes: Axes,
}

/// A copy or fill in bytes. What is not cast moves byte by byte, as far as its axes are concerned: a last axis
/// goes through the bytes of an element.
#[derive(Clone, Debug)]
pub(super) struct Moving {
    /// The storage that is read.
    pub(super) storage: StorageId,
    /// Source and target type, if they differ.
    pub(super) cast: Option<(DType, DType)>,
    whole: Part,
}

impl Moving {
    /// A copy of a plan whose numbers of axes agree. `None` if an address does not fit in 63 bits.
    pub(super) fn of_copy(plan: &Plan, copy: &Copy) -> Option<Self> {
        let source = plan.source.buffer(copy.source.buffer);
        let target = plan.target.buffer(copy.target.buffer);
        let steps = copy.source.strides.iter().zip(&copy.target.strides);
        let begin = |buffer: &Buffer, offset: u64| byte(buffer.offset.0, offset, buffer.dtype.size());
        let (from, to) = (begin(source, copy.source.offset.0)?, begin(target, copy.target.offset.0)?);
        let cast = (source.dtype != target.dtype).then_some((source.dtype, target.dtype));
        let sizes = (source.dtype.size(), target.dtype.size());
        Self::new(source.storage, cast, (from, to), copy.shape.iter().zip(steps), sizes)
    }

    /// A fill of a buffer. Its source is the value, which stands still. `None` if an address does not fit.
    pub(super) fn of_fill(fill: &Fill, buffer: &Buffer) -> Option<Self> {
        let size = buffer.dtype.size();
        let to = byte(buffer.offset.0, fill.offset.0, size)?;
        let steps = fill.strides.iter().map(|stride| (&0, stride));
        Self::new(buffer.storage, None, (0, to), fill.shape.iter().zip(steps), (size, size))
    }

    fn new<'a>(
        storage: StorageId,
        cast: Option<(DType, DType)>,
        (source, target): (u64, u64),
        steps: impl Iterator<Item = (&'a u64, (&'a u64, &'a u64))>,
        (source_size, target_size): (u64, u64),
    ) -> Option<Self> {
        let axis = |(&extent, (source, target)): (&u64, (&u64, &u64))| {
            Some(Axis {
                extent,
                source_stride: source.checked_mul(source_size)?,
                target_stride: target.checked_mul(target_size)?,
            })
        };
        let mut axes: Axes = steps.filter(|(extent, _)| **extent > 1).map(axis).collect::<Option<_>>()?;
        if cast.is_none() {
            axes.push(Axis { extent: source_size, source_stride: 1, target_stride: 1 });
        }
        let axes: Axes = merged(&axes).into_iter().collect();
        let moving = Self { storage, cast, whole: Part { source, target, axes } };
        let units = (moving.source_unit(), moving.target_unit());
        let (axes, fits) = (&moving.whole.axes, |end: &u64| i64::try_from(*end).is_ok());
        checked_end(source, axes, units.0, |axis| axis.source_stride).filter(fits)?;
        checked_end(target, axes, units.1, |axis| axis.target_stride).filter(fits)?;
        Some(moving)
    }

    /// The least that is read of the source: an element that is cast, a byte of others.
    pub(super) fn source_unit(&self) -> u64 {
        self.cast.map_or(1, |(source, _)| source.size())
    }

    fn target_unit(&self) -> u64 {
        self.cast.map_or(1, |(_, target)| target.size())
    }

    /// The first byte of the target.
    pub(super) fn target(&self) -> u64 {
        self.whole.target
    }

    /// One past the last byte of the target.
    pub(super) fn target_end(&self) -> u64 {
        self.whole.target + span(&self.whole.axes, self.target_unit(), |axis| axis.target_stride)
    }

    /// One past the last byte of the source.
    pub(super) fn source_end(&self) -> u64 {
        self.whole.source + span(&self.whole.axes, self.source_unit(), |axis| axis.source_stride)
    }

    /// Calls `each` with the parts that together make up what lies in the window.
    pub(super) fn clip(
        &self,
        window: &Range<u64>,
        each: &mut dyn FnMut(Part) -> Result<(), FillError>,
    ) -> Result<(), FillError> {
        let clip = Clip { window, unit: self.target_unit() };
        clip.steps((self.whole.source, self.whole.target), &self.whole.axes, each)
    }
}

struct Clip<'a> {
    window: &'a Range<u64>,
    unit: u64,
}

impl Clip<'_> {
    /// The box at two addresses with these axes, cut to the window.
    fn steps(
        &self,
        (source, target): (u64, u64),
        axes: &[Axis],
        each: &mut dyn FnMut(Part) -> Result<(), FillError>,
    ) -> Result<(), FillError> {
        let Some((outer, inner)) = axes.split_first() else {
            return self.one((source, target), each);
        };
        let (begin, end) = (self.window.start, self.window.end);
        let stride = outer.target_stride;
        let step_end = target + span(inner, self.unit, |axis| axis.target_stride);
        // Steps that share a byte with the window, and among them those that lie in it whole.
        let meets_from = if begin < step_end { 0 } else { (begin - step_end) / stride + 1 };
        let meets_to = end.saturating_sub(target).div_ceil(stride).min(outer.extent);
        let inside_from = begin.saturating_sub(target).div_ceil(stride).max(meets_from);
        let inside_to = if end < step_end { 0 } else { (end - step_end) / stride + 1 }.min(meets_to);
        let inside_from = inside_from.min(meets_to.max(meets_from));
        let inside_to = inside_to.max(inside_from);
        let address = |step: u64| (source + step * outer.source_stride, target + step * stride);
        for step in meets_from..inside_from {
            self.steps(address(step), inner, each)?;
        }
        if inside_from < inside_to {
            let (source, target) = address(inside_from);
            let first = Axis { extent: inside_to - inside_from, ..*outer };
            let axes = std::iter::once(first).chain(inner.iter().copied()).collect();
            each(Part { source, target, axes })?;
        }
        for step in inside_to..meets_to {
            self.steps(address(step), inner, each)?;
        }
        Ok(())
    }

    /// One element that is cast, or one byte.
    fn one(
        &self,
        (source, target): (u64, u64),
        each: &mut dyn FnMut(Part) -> Result<(), FillError>,
    ) -> Result<(), FillError> {
        let (begin, end) = (self.window.start, self.window.end);
        if target >= end || target + self.unit <= begin {
            return Ok(());
        }
        if target < begin || target + self.unit > end {
            return Err(FillError::WindowCutsElement {
                begin: Bytes(begin),
                end: Bytes(end),
                at: Bytes(target),
                size: Bytes(self.unit),
            });
        }
        each(Part { source, target, axes: Axes::new() })
    }
}

/// The bytes from the first to the last of a box that is known to fit.
pub(super) fn span(axes: &[Axis], unit: u64, stride: impl Fn(&Axis) -> u64) -> u64 {
    unit + axes.iter().map(|axis| (axis.extent - 1) * stride(axis)).sum::<u64>()
}

fn checked_end(begin: u64, axes: &[Axis], unit: u64, stride: impl Fn(&Axis) -> u64) -> Option<u64> {
    axes.iter().try_fold(begin.checked_add(unit)?, |end, axis| {
        end.checked_add((axis.extent - 1).checked_mul(stride(axis))?)
    })
}

/// The byte of an element of a buffer.
fn byte(begin: u64, element: u64, size: u64) -> Option<u64> {
    begin.checked_add(element.checked_mul(size)?)
}

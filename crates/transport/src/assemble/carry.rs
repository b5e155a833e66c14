//! Carries out one box of a window: from a source that is read by position, in as few reads as pay.
//!
//! ```text
//!   source   ██··██··██··██    span 14, 8 bytes wanted in 4 blocks
//!            gaps cheaper than reads   ──► one read of the span into scratch, cut along the outermost axis to fit
//!            gaps dearer than reads    ──► a read a block, straight into the window
//! ```

use reshard_layout::{Bytes, Places, StorageId};

use super::moving::{Axes, Moving, Part, span};
use super::{FillError, ReadAt, cast};
use crate::kernel::{Axis, BoxCopy};
use crate::view::ReadView;

/// One read costs about as much as reading this many bytes more: a system call beside a copy from the page cache.
const READ_COST_BYTES: u64 = 4096;

/// A copy out of scratch costs about this part of a read of the same bytes.
const SCRATCH_COST: u64 = 4;

/// The memory of one window, and where its bytes come from.
pub(super) struct Carrier<'a> {
    places: &'a Places,
    sources: &'a dyn ReadAt,
    begin: u64,
    into: &'a mut [u8],
    scratch: &'a mut [u8],
}

impl<'a> Carrier<'a> {
    /// `into` is the window that begins at byte `begin` of its storage.
    pub(super) fn new(
        places: &'a Places,
        sources: &'a dyn ReadAt,
        begin: u64,
        into: &'a mut [u8],
        scratch: &'a mut [u8],
    ) -> Self {
        Self { places, sources, begin, into, scratch }
    }

    /// Writes a value to every element of a part of a fill.
    pub(super) fn repeat(&mut self, value: &[u8], part: Part) {
        self.copy(value.into(), part.source, &part);
    }

    /// Reads a part of a copy and puts it in place.
    pub(super) fn read(&mut self, moving: &Moving, part: Part) -> Result<(), FillError> {
        let Part { source, target, mut axes } = part;
        axes.retain(|axis| axis.extent > 1);
        let part = Part { source, target, axes };
        let unit = moving.source_unit();
        let span_bytes = span(&part.axes, unit, |axis| axis.source_stride);
        let (block_axes, block) = source_block(&part.axes, moving);
        let blocks: u64 = part.axes[..part.axes.len() - block_axes].iter().map(|axis| axis.extent).product();
        if moving.cast.is_none() && blocks == 1 {
            let into = window_part(self.into, part.target - self.begin, block);
            return read_at(self.places, self.sources, moving.storage, source, into);
        }
        let bytes = blocks * block;
        let extra = (span_bytes - bytes) + bytes / SCRATCH_COST;
        let pays = blocks == 1 || extra <= (blocks - 1).saturating_mul(READ_COST_BYTES);
        if pays && span_bytes <= self.scratch.len() as u64 {
            return self.through_scratch(moving, &part, span_bytes as usize);
        }
        self.cut(moving, part, pays)
    }

    /// The box in parts along its outermost axis in the source: as many steps as fit into scratch, or single ones.
    fn cut(&mut self, moving: &Moving, part: Part, pays: bool) -> Result<(), FillError> {
        let outermost = (0..part.axes.len()).max_by_key(|&at| part.axes[at].source_stride);
        let Some(outermost) = outermost else { return Ok(()) };
        let axis = part.axes[outermost];
        let mut step = part.axes.clone();
        step[outermost].extent = 1;
        let step_bytes = span(&step, moving.source_unit(), |axis| axis.source_stride);
        let room = (self.scratch.len() as u64).saturating_sub(step_bytes);
        let fitting = if pays { room / axis.source_stride + 1 } else { 1 };
        let mut at = 0;
        while at < axis.extent {
            let mut axes = part.axes.clone();
            axes[outermost].extent = fitting.min(axis.extent - at);
            let source = part.source + at * axis.source_stride;
            let target = part.target + at * axis.target_stride;
            at += axes[outermost].extent;
            self.read(moving, Part { source, target, axes })?;
        }
        Ok(())
    }

    fn through_scratch(&mut self, moving: &Moving, part: &Part, span_bytes: usize) -> Result<(), FillError> {
        let (scratch, _) = self.scratch.split_at_mut(span_bytes);
        read_at(self.places, self.sources, moving.storage, part.source, scratch)?;
        let target = part.target - self.begin;
        match moving.cast {
            Some((from, to)) => cast::cast_box((from, scratch), (to, self.into), target, &part.axes),
            None => copy_box((&*scratch).into(), 0, self.into, target, &part.axes),
        }
        Ok(())
    }

    fn copy(&mut self, from: ReadView<'_>, source: u64, part: &Part) {
        copy_box(from, source, self.into, part.target - self.begin, &part.axes);
    }
}

fn copy_box(from: ReadView<'_>, source: u64, into: &mut [u8], target: u64, axes: &Axes) {
    let copy = BoxCopy::new(Bytes(source), Bytes(target), axes, Bytes(1));
    // The ends were found to fit when the plan was taken in.
    if let Some(copy) = copy {
        copy.run(from, &mut into.into());
    }
}

/// How many of the last axes are one block on both sides, and its bytes in the source.
fn source_block(axes: &[Axis], moving: &Moving) -> (usize, u64) {
    let (source, target) = moving.cast.map_or((1, 1), |(from, to)| (from.size(), to.size()));
    match axes.last() {
        Some(axis) if axis.source_stride == source && axis.target_stride == target => {
            (1, axis.extent * source)
        }
        _ => (0, source),
    }
}

fn window_part(into: &mut [u8], begin: u64, length: u64) -> &mut [u8] {
    &mut into[begin as usize..(begin + length) as usize]
}

fn read_at(
    places: &Places,
    sources: &dyn ReadAt,
    storage: StorageId,
    offset: u64,
    into: &mut [u8],
) -> Result<(), FillError> {
    sources.read_at(storage, Bytes(offset), into).map_err(|cause| {
        let known = places.storage(storage);
        FillError::SourceUnreadable {
            rank: known.rank,
            name: known.name.clone(),
            offset: Bytes(offset),
            cause,
        }
    })
}

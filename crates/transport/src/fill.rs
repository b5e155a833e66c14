//! Target padding: one value, written to every element of a box.
//!
//! ```text
//!   value "00 00 80 3f"  ── a source that stands still (stride 0) ──►  box of the target
//! ```

use reshard_layout::{Bytes, Fill, Rank, StorageId};
use reshard_plan::Plan;

use crate::error::TransportError;
use crate::kernel::{Axis, BoxCopy};
use crate::view::{ReadView, WriteView};

/// One fill of a plan, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct CompiledFill {
    /// The storage that is written.
    pub(crate) target: StorageId,
    value: Vec<u8>,
    written: BoxCopy,
}

impl CompiledFill {
    /// Writes the value to every element of the box.
    pub(crate) fn run(&self, target: &mut WriteView<'_>) {
        self.written.run(ReadView::from(self.value.as_slice()), target);
    }
}

/// Compiles the fills of a plan whose rank is `wanted`, in plan order.
///
/// # Errors
/// [`TransportError::FillMalformed`], for the first fill that is wrong.
pub(crate) fn compile_fills(
    plan: &Plan,
    wanted: impl Fn(Rank) -> bool,
) -> Result<Vec<CompiledFill>, TransportError> {
    let mut compiled = Vec::new();
    for (index, fill) in plan.fills.iter().enumerate() {
        let malformed = |cause: &str| TransportError::FillMalformed { fill: index, cause: cause.to_owned() };
        let known = plan.target.buffers.get(fill.buffer.index());
        let buffer = known.ok_or_else(|| malformed("there is no such buffer"))?;
        if buffer.storage.index() >= plan.target.storages.len() {
            return Err(malformed("there is no such storage"));
        }
        let storage = plan.target.storage(buffer.storage);
        if !wanted(storage.rank) {
            continue;
        }
        let size = buffer.dtype.size();
        if fill.value.len() as u64 != size || fill.shape.len() != fill.strides.len() {
            return Err(malformed("value, shape and strides do not fit together"));
        }
        let written =
            box_of(fill, buffer.offset, size).ok_or_else(|| malformed("an address does not fit"))?;
        let length = buffer.length.0.checked_mul(size).and_then(|bytes| bytes.checked_add(buffer.offset.0));
        if written.target_end() > storage.length || length.is_none_or(|end| written.target_end().0 > end) {
            return Err(malformed("it leaves its buffer"));
        }
        compiled.push(CompiledFill { target: buffer.storage, value: fill.value.clone(), written });
    }
    Ok(compiled)
}

fn box_of(fill: &Fill, begin: Bytes, size: u64) -> Option<BoxCopy> {
    let axis = |(&extent, &target_stride)| Axis { extent, source_stride: 0, target_stride };
    let axes: Vec<Axis> = fill.shape.iter().zip(&fill.strides).map(axis).collect();
    let target = begin.0.checked_add(fill.offset.0.checked_mul(size)?)?;
    BoxCopy::new(Bytes(0), Bytes(target), &axes, Bytes(size))
}

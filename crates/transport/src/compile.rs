//! A plan's copies, checked against its places and turned into box copies, once a plan.
//!
//! ```text
//!   Copy { buffer, element offset, strides }  +  Places { buffer -> storage, byte offset, dtype }
//!      ──► CompiledCopy { storage ids, BoxCopy { byte offsets, pitches } }
//! ```
//!
//! After this every copy is known to lie inside its buffers and storages; a binding then only has to show that its
//! memory is as long as the storage says.

use reshard_layout::{Buffer, Bytes, Elements, Places, Rank, StorageId};
use reshard_plan::{Copy, End, Plan};

use crate::error::TransportError;
use crate::kernel::{Axis, BoxCopy};

/// One copy of a plan, ready to run between two storages.
#[derive(Clone, Debug)]
pub struct CompiledCopy {
    /// The rank that is read.
    pub source_rank: Rank,
    /// The storage that is read.
    pub source: StorageId,
    /// The rank that is written.
    pub target_rank: Rank,
    /// The storage that is written.
    pub target: StorageId,
    /// What moves.
    pub moved: BoxCopy,
}

/// Compiles the copies of a plan whose target rank is `wanted`, in plan order.
///
/// # Errors
/// [`TransportError::PlanVersion`]; [`TransportError::CastUnsupported`], for the first copy of any rank that
/// casts, so that all ranks refuse alike; [`TransportError::CopyMalformed`] and
/// [`TransportError::CopyOutOfBounds`], for the first copy that is wrong.
pub fn compile(plan: &Plan, wanted: impl Fn(Rank) -> bool) -> Result<Vec<CompiledCopy>, TransportError> {
    if plan.version != Plan::VERSION {
        return Err(TransportError::PlanVersion { expected: Plan::VERSION, found: plan.version });
    }
    let mut compiled = Vec::new();
    for (index, copy) in plan.copies.iter().enumerate() {
        let source = find_buffer(index, &plan.source, &copy.source)?;
        let target = find_buffer(index, &plan.target, &copy.target)?;
        if plan.cast && source.dtype != target.dtype {
            return Err(casts(plan, copy));
        }
        let (source_rank, target_rank) = (plan.source_rank(copy), plan.target_rank(copy));
        if !wanted(target_rank) {
            continue;
        }
        let moved = compile_one(index, copy, source, target)?;
        let (source, target) = (source.storage, target.storage);
        check_end(index, "source", &plan.source, &copy.source, &moved.source_end())?;
        check_end(index, "target", &plan.target, &copy.target, &moved.target_end())?;
        compiled.push(CompiledCopy { source_rank, source, target_rank, target, moved });
    }
    Ok(compiled)
}

pub(crate) fn casts(plan: &Plan, copy: &Copy) -> TransportError {
    let (source_dtype, target_dtype) = plan.types(copy);
    let name = plan.parameters.get(copy.parameter.index()).map(|parameter| parameter.name.clone());
    let parameter = name.unwrap_or_else(|| format!("parameter {}", copy.parameter.0));
    TransportError::CastUnsupported { parameter, source_dtype, target_dtype }
}

pub(crate) fn malformed(copy: usize, cause: impl Into<String>) -> TransportError {
    TransportError::CopyMalformed { copy, cause: cause.into() }
}

pub(crate) fn find_buffer<'a>(
    copy: usize,
    places: &'a Places,
    end: &End,
) -> Result<&'a Buffer, TransportError> {
    let buffer = places.buffers.get(end.buffer.index());
    let buffer = buffer.ok_or_else(|| malformed(copy, format!("there is no buffer {}", end.buffer.0)))?;
    if buffer.storage.index() >= places.storages.len() {
        return Err(malformed(copy, format!("there is no storage {}", buffer.storage.0)));
    }
    Ok(buffer)
}

fn compile_one(
    index: usize,
    copy: &Copy,
    source: &Buffer,
    target: &Buffer,
) -> Result<BoxCopy, TransportError> {
    if source.dtype != target.dtype {
        return Err(malformed(index, format!("it would turn {} into {}", source.dtype, target.dtype)));
    }
    let axes = copy.shape.len();
    if copy.source.strides.len() != axes || copy.target.strides.len() != axes {
        return Err(malformed(index, "shape and strides have different numbers of axes"));
    }
    let axes: Vec<Axis> = (0..axes)
        .map(|axis| Axis {
            extent: copy.shape[axis],
            source_stride: copy.source.strides[axis],
            target_stride: copy.target.strides[axis],
        })
        .collect();
    let repeats = |axis: &Axis| axis.extent > 1 && (axis.source_stride == 0 || axis.target_stride == 0);
    if axes.iter().any(repeats) && axes.iter().all(|axis| axis.extent > 0) {
        return Err(malformed(index, "a stride is 0 along an axis of several elements"));
    }
    let begin = |buffer: &Buffer, offset: Elements| {
        let inside = offset.0.checked_mul(buffer.dtype.size())?;
        buffer.offset.0.checked_add(inside).map(Bytes)
    };
    begin(source, copy.source.offset)
        .zip(begin(target, copy.target.offset))
        .and_then(|(source_at, target_at)| {
            BoxCopy::new(source_at, target_at, &axes, Bytes(source.dtype.size()))
        })
        .ok_or_else(|| malformed(index, "an address does not fit in 63 bits"))
}

/// A copy ends inside its buffer, and its buffer inside its storage.
pub(crate) fn check_end(
    copy: usize,
    side: &str,
    places: &Places,
    end: &End,
    found: &Bytes,
) -> Result<(), TransportError> {
    let buffer = places.buffer(end.buffer);
    let storage = places.storage(buffer.storage);
    let length = buffer.length.0.checked_mul(buffer.dtype.size());
    // A buffer whose end does not fit has no end inside any storage: then the storage is the bound.
    let buffer_end = length.and_then(|length| buffer.offset.0.checked_add(length)).unwrap_or(u64::MAX);
    let expected = Bytes(buffer_end.min(storage.length.0));
    if *found <= expected {
        return Ok(());
    }
    Err(TransportError::CopyOutOfBounds {
        copy,
        side: side.to_owned(),
        rank: storage.rank,
        name: storage.name.clone(),
        expected,
        found: *found,
    })
}

//! Fills a window of a target storage from sources that are read by position: what files are moved with.
//!
//! ```text
//!   target storage  |......[ window ]..........|      entries by first byte   0..40  8..48  48..60  ...
//!                      ^ copies that reach in         cut to the window: boxes, at most 2 x axes - 1 a copy
//!   each box:   one block on both sides   ──► read straight into the window
//!               dense, or small blocks    ──► its span read into scratch, then the box copied
//!               large blocks far apart    ──► read block by block
//! ```
//!
//! Copies are cut in bytes, so that a window may begin and end anywhere; only where elements are cast must its
//! edges lie between elements. Any order of the target's strides is carried out, interleaved ones too.

mod carry;
mod cast;
mod moving;

use std::ops::Range;

use reshard_layout::{Buffer, Bytes, Rank, StorageId};
use reshard_plan::{Copy, Plan};

use crate::compile::{casts, check_end, find_buffer, malformed};
use crate::error::TransportError;
use carry::Carrier;
use moving::Moving;

/// Storages that are read by position.
pub trait ReadAt: Sync {
    /// Fills `into` with the bytes of a storage from `offset` on.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read_at(&self, storage: StorageId, offset: Bytes, into: &mut [u8]) -> std::io::Result<()>;
}

/// The least working memory: the widest element.
pub const SCRATCH_BYTES_MIN: usize = 8;

/// Why a window is not filled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FillError {
    /// A source cannot be read.
    #[error("storage {name} of rank {rank} cannot be read at byte {offset}: {cause}")]
    SourceUnreadable {
        /// Its owner.
        rank: Rank,
        /// Its name.
        name: String,
        /// The first byte that was asked for.
        offset: Bytes,
        /// What the reader said.
        cause: std::io::Error,
    },
    /// A window that is no part of its storage, or memory that is not as long as the window.
    #[error(
        "a window of bytes {begin} to {end} does not fit a storage of {length} bytes and {found} of memory"
    )]
    WindowMisplaced {
        /// Where it begins.
        begin: Bytes,
        /// Where it ends.
        end: Bytes,
        /// The length of the storage; 0 if there is no such storage.
        length: Bytes,
        /// The length of the memory.
        found: Bytes,
    },
    /// A window whose edge lies inside an element that is cast.
    #[error(
        "a window of bytes {begin} to {end} cuts the element of {size} bytes at byte {at}, which is cast"
    )]
    WindowCutsElement {
        /// Where the window begins.
        begin: Bytes,
        /// Where it ends.
        end: Bytes,
        /// Where the element begins.
        at: Bytes,
        /// The bytes of the element.
        size: Bytes,
    },
    /// Less working memory than one element takes.
    #[error("{found} bytes of working memory are too few, {} are needed", SCRATCH_BYTES_MIN)]
    ScratchTooSmall {
        /// What was passed.
        found: Bytes,
    },
}

/// A copy or fill of the plan, by the bytes between its first and its last.
#[derive(Clone, Copy, Debug)]
struct Entry {
    first: u64,
    end: u64,
    /// The furthest end of this entry and those before it in its storage.
    reach: u64,
    task: Task,
}

#[derive(Clone, Copy, Debug)]
enum Task {
    Copy(u32),
    Fill(u32),
}

/// The copies of a plan, ready to be carried out window by window.
///
/// Invariants: the entries of a storage are in order of their first byte; every copy and fill lies inside its
/// buffers and storages.
#[derive(Debug)]
pub struct Assembly<'p> {
    plan: &'p Plan,
    entries: Vec<Entry>,
    /// Where the entries of each storage begin; one more than there are storages.
    begins: Vec<usize>,
}

impl<'p> Assembly<'p> {
    /// Checks every copy and fill of the plan against its places.
    ///
    /// # Errors
    /// [`TransportError::PlanVersion`]; [`TransportError::CopyMalformed`], [`TransportError::CopyOutOfBounds`],
    /// [`TransportError::FillMalformed`] and [`TransportError::CastUnsupported`], for the first copy or fill that
    /// is wrong. Casts between f64, f32, f16 and bf16 are carried out.
    pub fn new(plan: &'p Plan) -> Result<Self, TransportError> {
        if plan.version != Plan::VERSION {
            return Err(TransportError::PlanVersion { expected: Plan::VERSION, found: plan.version });
        }
        let mut found: Vec<(StorageId, Entry)> = Vec::with_capacity(plan.copies.len() + plan.fills.len());
        for (index, copy) in plan.copies.iter().enumerate() {
            found.extend(copy_entry(plan, index, copy)?);
        }
        for index in 0..plan.fills.len() {
            found.extend(fill_entry(plan, index)?);
        }
        found.sort_by_key(|(storage, entry)| (*storage, entry.first, entry.end));
        let mut begins = vec![0; plan.target.storages.len() + 1];
        for (storage, _) in &found {
            begins[storage.index() + 1] += 1;
        }
        for storage in 1..begins.len() {
            begins[storage] += begins[storage - 1];
        }
        let mut entries: Vec<Entry> = found.into_iter().map(|(_, entry)| entry).collect();
        for ends in begins.windows(2) {
            let mut reach = 0;
            for entry in &mut entries[ends[0]..ends[1]] {
                reach = entry.end.max(reach);
                entry.reach = reach;
            }
        }
        Ok(Self { plan, entries, begins })
    }

    /// The plan that is carried out.
    #[must_use]
    pub fn plan(&self) -> &'p Plan {
        self.plan
    }

    /// Whether a copy or fill may write into a part of a storage: false only if none does.
    #[must_use]
    pub fn reaches(&self, storage: StorageId, window: Range<u64>) -> bool {
        self.entries_in(storage, &window).next().is_some()
    }

    /// Writes the part `window` (bytes of the target storage) into `into`, which is as long as the window. What no
    /// copy and no fill reaches stays as it is. `scratch`, of [`SCRATCH_BYTES_MIN`] or more, is working memory:
    /// beside it only descriptions of boxes are allocated, of a few words each.
    ///
    /// # Errors
    /// [`FillError`], after which `into` holds anything.
    pub fn fill(
        &self,
        storage: StorageId,
        window: Range<u64>,
        sources: &dyn ReadAt,
        into: &mut [u8],
        scratch: &mut [u8],
    ) -> Result<(), FillError> {
        let length = self.plan.target.storages.get(storage.index()).map_or(Bytes(0), |known| known.length);
        let fits = window.start <= window.end && window.end <= length.0;
        if !fits || window.end - window.start != into.len() as u64 {
            return Err(FillError::WindowMisplaced {
                begin: Bytes(window.start),
                end: Bytes(window.end),
                length,
                found: Bytes(into.len() as u64),
            });
        }
        if scratch.len() < SCRATCH_BYTES_MIN {
            return Err(FillError::ScratchTooSmall { found: Bytes(scratch.len() as u64) });
        }
        let mut carrier = Carrier::new(&self.plan.source, sources, window.start, into, scratch);
        for entry in self.entries_in(storage, &window) {
            let Some(moving) = self.moving(entry.task) else { continue };
            let value = match entry.task {
                Task::Copy(_) => None,
                Task::Fill(index) => Some(self.plan.fills[index as usize].value.as_slice()),
            };
            moving.clip(&window, &mut |part| match value {
                None => carrier.read(&moving, part),
                Some(value) => {
                    carrier.repeat(value, part);
                    Ok(())
                }
            })?;
        }
        Ok(())
    }

    fn entries_in(&self, storage: StorageId, window: &Range<u64>) -> impl Iterator<Item = &Entry> {
        let range = match self.begins.get(storage.index()..=storage.index() + 1) {
            Some(ends) => ends[0]..ends[1],
            None => 0..0,
        };
        let entries = &self.entries[range];
        let from = entries.partition_point(|entry| entry.reach <= window.start);
        let to = entries.partition_point(|entry| entry.first < window.end);
        let begin = window.start;
        entries[from.min(to)..to].iter().filter(move |entry| entry.end > begin)
    }

    fn moving(&self, task: Task) -> Option<Moving> {
        match task {
            Task::Copy(index) => Moving::of_copy(self.plan, &self.plan.copies[index as usize]),
            Task::Fill(index) => {
                let fill = &self.plan.fills[index as usize];
                Moving::of_fill(fill, self.plan.target.buffer(fill.buffer))
            }
        }
    }
}

/// The place of a copy in its target storage; `None` if it moves nothing.
fn copy_entry(plan: &Plan, index: usize, copy: &Copy) -> Result<Option<(StorageId, Entry)>, TransportError> {
    let source = find_buffer(index, &plan.source, &copy.source)?;
    let target = find_buffer(index, &plan.target, &copy.target)?;
    let axes = copy.shape.len();
    if copy.source.strides.len() != axes || copy.target.strides.len() != axes {
        return Err(malformed(index, "shape and strides have different numbers of axes"));
    }
    if source.dtype != target.dtype {
        check_cast(plan, index, copy, source, target)?;
    }
    if copy.shape.contains(&0) {
        return Ok(None);
    }
    let stands = |axis: usize| copy.source.strides[axis] == 0 || copy.target.strides[axis] == 0;
    if (0..axes).any(|axis| copy.shape[axis] > 1 && stands(axis)) {
        return Err(malformed(index, "a stride is 0 along an axis of several elements"));
    }
    let moving = Moving::of_copy(plan, copy);
    let moving = moving.ok_or_else(|| malformed(index, "an address does not fit in 63 bits"))?;
    check_end(index, "source", &plan.source, &copy.source, &Bytes(moving.source_end()))?;
    check_end(index, "target", &plan.target, &copy.target, &Bytes(moving.target_end()))?;
    let task = Task::Copy(u32::try_from(index).map_err(|_| malformed(index, "there are too many copies"))?);
    let entry = Entry { first: moving.target(), end: moving.target_end(), reach: 0, task };
    Ok(Some((target.storage, entry)))
}

fn check_cast(
    plan: &Plan,
    index: usize,
    copy: &Copy,
    source: &Buffer,
    target: &Buffer,
) -> Result<(), TransportError> {
    if !plan.cast {
        return Err(malformed(index, format!("it would turn {} into {}", source.dtype, target.dtype)));
    }
    if cast::is_float(source.dtype) && cast::is_float(target.dtype) {
        return Ok(());
    }
    Err(casts(plan, copy))
}

/// The place of a fill in its storage; `None` if it fills nothing.
fn fill_entry(plan: &Plan, index: usize) -> Result<Option<(StorageId, Entry)>, TransportError> {
    let malformed = |cause: &str| TransportError::FillMalformed { fill: index, cause: cause.to_owned() };
    let fill = &plan.fills[index];
    let known = plan.target.buffers.get(fill.buffer.index());
    let buffer = known.ok_or_else(|| malformed("there is no such buffer"))?;
    let storage = plan.target.storages.get(buffer.storage.index());
    let storage = storage.ok_or_else(|| malformed("there is no such storage"))?;
    if fill.value.len() as u64 != buffer.dtype.size() || fill.shape.len() != fill.strides.len() {
        return Err(malformed("value, shape and strides do not fit together"));
    }
    if fill.shape.contains(&0) {
        return Ok(None);
    }
    let moving = Moving::of_fill(fill, buffer).ok_or_else(|| malformed("an address does not fit"))?;
    let bytes = buffer.length.0.checked_mul(buffer.dtype.size());
    let end = bytes.and_then(|bytes| bytes.checked_add(buffer.offset.0));
    if moving.target_end() > storage.length.0 || end.is_none_or(|end| moving.target_end() > end) {
        return Err(malformed("it leaves its buffer"));
    }
    let task = Task::Fill(u32::try_from(index).map_err(|_| malformed("there are too many fills"))?);
    let entry = Entry { first: moving.target(), end: moving.target_end(), reach: 0, task };
    Ok(Some((buffer.storage, entry)))
}

//! Fingerprints of parameters, each side read once and in the order of its own files.
//!
//! ```text
//!   file  | box of w | box of v | box of w |  ──►  F(w) += F(box)   F(v) += F(box)   F(w) += F(box)
//! ```

use std::sync::{Mutex, PoisonError};

use reshard_layout::{
    Buffer, BufferId, Bytes, Elements, Layout, Places, Rank, Region, Storage, StorageId, boxes_of_run,
    row_major,
};
use reshard_plan::{Copy, End, Plan};
use reshard_transport::{Assembly, Fingerprint, Fingerprinter};

use super::{Common, Side};
use crate::counted::Counted;
use crate::dense::{dense_layout, windows};
use crate::error::FormatError;
use crate::write::{Crew, Progress};

/// Whether each parameter's sums differ, and the bytes that were read.
pub(super) fn differing(
    sides: [Side<'_>; 2],
    commons: &[Common],
    crew: Crew,
    progress: &dyn Progress,
) -> Result<(Vec<bool>, Bytes), FormatError> {
    let parameters = commons.iter().map(|common| (common.name.as_str(), &common.shape, common.dtype));
    let dense = dense_layout(&sides[0].checkpoint.root, parameters)?;
    let (first, first_bytes) = sums(sides[0], &dense, commons, crew, progress)?;
    let (second, second_bytes) = sums(sides[1], &dense, commons, crew, progress)?;
    let differs = first.iter().zip(&second).map(|(first, second)| first != second);
    Ok((differs.collect(), first_bytes + second_bytes))
}

/// The fingerprint of each parameter, and the bytes that were read.
fn sums(
    side: Side<'_>,
    dense: &Layout,
    commons: &[Common],
    crew: Crew,
    progress: &dyn Progress,
) -> Result<(Vec<Fingerprint>, Bytes), FormatError> {
    let packed = packed(side, side.plan(dense)?);
    let assembly = Assembly::new(&packed)?;
    let reader = side.checkpoint.reader(side.part);
    let sources = Counted::new(&reader);
    let weights: Vec<Fingerprinter> =
        commons.iter().map(|common| Fingerprinter::new(&common.name, &common.shape, common.dtype)).collect();
    let windows = windows(&packed.target.storages, crew.window as u64);
    let totals = Mutex::new(vec![Fingerprint::default(); commons.len()]);
    crew.each(windows.len(), |item, memory, scratch| {
        let window = &windows[item];
        let length = window.range.end - window.range.start;
        let bytes = &mut memory[..length as usize];
        assembly.fill(window.storage, window.range.clone(), &sources, bytes, scratch)?;
        let copy = &packed.copies[window.storage.index()];
        let size = commons[copy.parameter.index()].dtype.size();
        let run = window.range.start / size..window.range.end / size;
        let sum = of_run(&weights[copy.parameter.index()], copy, run, size, bytes);
        totals.lock().unwrap_or_else(PoisonError::into_inner)[copy.parameter.index()] += sum;
        progress.advance(Bytes(length));
        Ok(())
    })?;
    Ok((totals.into_inner().unwrap_or_else(PoisonError::into_inner), sources.bytes()))
}

/// The fingerprint of a run of a copy's box.
fn of_run(
    weights: &Fingerprinter,
    copy: &Copy,
    run: std::ops::Range<u64>,
    size: u64,
    bytes: &[u8],
) -> Fingerprint {
    let mut sum = Fingerprint::default();
    let mut left = bytes;
    for region in boxes_of_run(&copy.shape, run) {
        let (now, later) = left.split_at((region.volume() * size) as usize);
        let origin = region.origin().iter().zip(&copy.origin).map(|(at, from)| at + from);
        sum += weights.of_box(&Region::new(origin, region.extent().iter().copied()), now);
        left = later;
    }
    sum
}

/// The copies of a plan in the order of the files that they are read from, each into a dense storage of its own:
/// storage `i` is copy `i`.
fn packed(side: Side<'_>, plan: Plan) -> Plan {
    let mut copies = plan.copies;
    let place = |copy: &Copy| {
        let buffer = plan.source.buffer(copy.source.buffer);
        let span = side.part.spans[buffer.storage.index()];
        (span.file, span.offset + buffer.offset + copy.source.offset.bytes(buffer.dtype))
    };
    copies.sort_by_cached_key(place);
    let mut target = Places::default();
    for (index, copy) in (0u32..).zip(&mut copies) {
        let dtype = plan.target.buffer(copy.target.buffer).dtype;
        let length = copy.elements();
        // A name for each would be most of their memory, and nobody asks for it.
        target.storages.push(Storage { rank: Rank(0), name: String::new(), length: length.bytes(dtype) });
        target.buffers.push(Buffer { storage: StorageId(index), offset: Bytes(0), dtype, length });
        copy.target = End { buffer: BufferId(index), offset: Elements(0), strides: row_major(&copy.shape) };
    }
    Plan { copies, target, ..plan }
}

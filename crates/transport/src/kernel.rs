//! Moves one strided box. Everything is decided before the first byte moves.
//!
//! ```text
//!   shape (2,3,4), source (24,8,1), target (12,4,1)       axes as (count, source pitch, target pitch)
//!   drop axes of 1, order by target pitch, merge:         (6, 8, 4) blocks of 4     uniform blocks
//!   one block       ████████████████
//!   uniform blocks  ████····████····████····              count, block, a pitch on each side
//!   many blocks     uniform blocks, inside nested loops
//! ```
//!
//! Offsets, pitches and the two ends are checked numbers of bytes from the beginning of each storage, so that the
//! loops need no check: [`BoxCopy::run`] compares the two ends with the lengths of the two views and goes.
#![allow(unsafe_code)]

use reshard_layout::Bytes;

use crate::view::{ReadView, WriteView};

/// One axis of a box: how many steps, and how far apart on each side, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Elements along the axis.
    pub extent: u64,
    /// Elements between neighbours in the source.
    pub source_stride: u64,
    /// Elements between neighbours in the target.
    pub target_stride: u64,
}

/// An axis in bytes, after merging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Loop {
    count: usize,
    source_pitch: usize,
    target_pitch: usize,
}

/// How a box is walked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Case {
    One,
    Uniform(Loop),
    Many { outer: Vec<Loop>, inner: Loop },
}

/// Steps along either side of a tile: 64 elements of two bytes are two cache lines.
const TILE: usize = 64;

/// A box copy, ready to run.
///
/// Invariants: every block that the loops reach lies before `source_end` and `target_end`, and both ends fit
/// in `isize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxCopy {
    source_offset: usize,
    target_offset: usize,
    source_end: usize,
    target_end: usize,
    block: usize,
    blocks: u64,
    case: Case,
}

impl BoxCopy {
    /// A box from the offsets of its first element on each side, in bytes, its axes, and the size of an
    /// element. `None` if an address or a length does not fit; a box without elements moves nothing.
    #[must_use]
    pub fn new(source: Bytes, target: Bytes, axes: &[Axis], element: Bytes) -> Option<Self> {
        if axes.iter().any(|axis| axis.extent == 0) {
            let case = Case::One;
            let (source_offset, target_offset, source_end, target_end) = (0, 0, 0, 0);
            return Some(Self {
                source_offset,
                target_offset,
                source_end,
                target_end,
                block: 0,
                blocks: 0,
                case,
            });
        }
        let source_end = end(source, axes, element, |axis| axis.source_stride)?;
        let target_end = end(target, axes, element, |axis| axis.target_stride)?;
        let mut loops = merged(axes);
        let contiguous = loops.pop_if(|axis| axis.source_stride == 1 && axis.target_stride == 1);
        let block = contiguous.map_or(1, |axis| axis.extent).checked_mul(element.0)?;
        let blocks = loops.iter().try_fold(1u64, |blocks, axis| blocks.checked_mul(axis.extent))?;
        let to_loop = |axis: &Axis| {
            Some(Loop {
                count: usize::try_from(axis.extent).ok()?,
                source_pitch: usize::try_from(axis.source_stride.checked_mul(element.0)?).ok()?,
                target_pitch: usize::try_from(axis.target_stride.checked_mul(element.0)?).ok()?,
            })
        };
        let mut outer: Vec<Loop> = loops.iter().map(to_loop).collect::<Option<_>>()?;
        let case = match outer.pop() {
            None => Case::One,
            Some(inner) if outer.is_empty() => Case::Uniform(inner),
            Some(inner) => Case::Many { outer, inner },
        };
        Some(Self {
            source_offset: usize::try_from(source.0).ok()?,
            target_offset: usize::try_from(target.0).ok()?,
            source_end,
            target_end,
            block: usize::try_from(block).ok()?,
            blocks,
            case,
        })
    }

    /// The first byte of the source storage that it never reads.
    #[must_use]
    pub fn source_end(&self) -> Bytes {
        Bytes(self.source_end as u64)
    }

    /// The first byte of the target storage that it never writes.
    #[must_use]
    pub fn target_end(&self) -> Bytes {
        Bytes(self.target_end as u64)
    }

    /// How many contiguous blocks it moves.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How many bytes it moves.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.blocks * self.block as u64)
    }

    /// Moves the box from one storage to the other.
    ///
    /// # Panics
    /// If a storage is shorter than the box needs: a bug of the caller, who compares the ends first.
    pub fn run(&self, source: ReadView<'_>, target: &mut WriteView<'_>) {
        assert!(self.source_end() <= source.length(), "a copy reads inside its source");
        assert!(self.target_end() <= target.length(), "a copy writes inside its target");
        if self.blocks == 0 {
            return;
        }
        // SAFETY: by the invariant and the two comparisons, both sides of every block lie in their view; the target
        // view is the only access to its bytes, so the source lies elsewhere.
        unsafe {
            let source = source.address().add(self.source_offset);
            let target = target.address_mut().add(self.target_offset);
            match self.block {
                1 => self.walk(source, target, |source, target| move_sized::<1>(source, target)),
                2 => self.walk(source, target, |source, target| move_sized::<2>(source, target)),
                4 => self.walk(source, target, |source, target| move_sized::<4>(source, target)),
                8 => self.walk(source, target, |source, target| move_sized::<8>(source, target)),
                16 => self.walk(source, target, |source, target| move_sized::<16>(source, target)),
                block => self.walk(source, target, |source, target| {
                    std::ptr::copy_nonoverlapping(source, target, block);
                }),
            }
        }
    }

    /// # Safety
    /// Every block reachable from the two addresses must be valid for `move_block`.
    unsafe fn walk(&self, source: *const u8, target: *mut u8, move_block: impl Fn(*const u8, *mut u8)) {
        match &self.case {
            Case::One => move_block(source, target),
            // SAFETY: passed on.
            Case::Uniform(inner) => unsafe { walk_uniform(*inner, source, target, &move_block) },
            // SAFETY: passed on.
            Case::Many { outer, inner } => unsafe { walk_many(outer, *inner, source, target, &move_block) },
        }
    }
}

/// # Safety
/// Every block that the loop reaches must be valid for `move_block`.
unsafe fn walk_uniform(
    inner: Loop,
    source: *const u8,
    target: *mut u8,
    move_block: &impl Fn(*const u8, *mut u8),
) {
    for index in 0..inner.count {
        // SAFETY: by the caller, in bounds.
        unsafe { move_block(source.add(index * inner.source_pitch), target.add(index * inner.target_pitch)) };
    }
}

/// # Safety
/// Every block that the loops reach must be valid for `move_block`.
unsafe fn walk_many(
    outer: &[Loop],
    inner: Loop,
    source: *const u8,
    target: *mut u8,
    move_block: &impl Fn(*const u8, *mut u8),
) {
    let (first, rest) = match outer {
        [] => return,
        // SAFETY: passed on.
        [plane] => return unsafe { walk_plane(*plane, inner, source, target, move_block) },
        [first, rest @ ..] => (first, rest),
    };
    for index in 0..first.count {
        // SAFETY: by the caller, in bounds.
        unsafe {
            let source = source.add(index * first.source_pitch);
            let target = target.add(index * first.target_pitch);
            walk_many(rest, inner, source, target, move_block);
        }
    }
}

/// Two loops, in tiles where they run across each other: a transpose then reads whole cache lines.
///
/// # Safety
/// Every block that the loops reach must be valid for `move_block`.
unsafe fn walk_plane(
    outer: Loop,
    inner: Loop,
    source: *const u8,
    target: *mut u8,
    move_block: &impl Fn(*const u8, *mut u8),
) {
    // Loops are ordered by target pitch; the source runs across if its pitches are ordered the other way.
    let is_across = outer.source_pitch < inner.source_pitch;
    let (outer_tile, inner_tile) = if is_across { (TILE, TILE) } else { (1, inner.count) };
    for outer_begin in (0..outer.count).step_by(outer_tile) {
        for inner_begin in (0..inner.count).step_by(inner_tile) {
            let tile = Loop { count: inner_tile.min(inner.count - inner_begin), ..inner };
            for index in outer_begin..(outer_begin + outer_tile).min(outer.count) {
                // SAFETY: by the caller, in bounds: the tiles cut the two loops into parts.
                unsafe {
                    let source = source.add(index * outer.source_pitch + inner_begin * inner.source_pitch);
                    let target = target.add(index * outer.target_pitch + inner_begin * inner.target_pitch);
                    walk_uniform(tile, source, target, move_block);
                }
            }
        }
    }
}

/// A block of a size known to the compiler: one load and one store.
///
/// # Safety
/// Both addresses must be valid for `BYTES` bytes, which do not overlap.
unsafe fn move_sized<const BYTES: usize>(source: *const u8, target: *mut u8) {
    // SAFETY: by the caller; an array of bytes needs no alignment.
    unsafe { std::ptr::copy_nonoverlapping(source.cast::<[u8; BYTES]>(), target.cast::<[u8; BYTES]>(), 1) };
}

/// The byte after the last element of a box that has one.
fn end(offset: Bytes, axes: &[Axis], element: Bytes, stride: impl Fn(&Axis) -> u64) -> Option<usize> {
    let last = axes.iter().try_fold(0u64, |last, axis| {
        (axis.extent - 1).checked_mul(stride(axis)).and_then(|distance| last.checked_add(distance))
    })?;
    let end = last.checked_add(1)?.checked_mul(element.0)?.checked_add(offset.0)?;
    isize::try_from(end).ok().map(isize::cast_unsigned)
}

/// The fewest axes that reach the same pairs of elements, the one with the smallest target stride last.
pub(crate) fn merged(axes: &[Axis]) -> Vec<Axis> {
    let mut left: Vec<Axis> = axes.iter().copied().filter(|axis| axis.extent != 1).collect();
    left.sort_by_key(|axis| std::cmp::Reverse((axis.target_stride, axis.source_stride)));
    let mut merged: Vec<Axis> = Vec::with_capacity(left.len());
    for axis in left {
        let continues = |above: &mut Axis| {
            axis.source_stride.checked_mul(axis.extent) == Some(above.source_stride)
                && axis.target_stride.checked_mul(axis.extent) == Some(above.target_stride)
        };
        match merged.pop_if(continues) {
            // Counts that do not fit are found by the ends before this.
            Some(above) => merged.push(Axis { extent: above.extent.saturating_mul(axis.extent), ..axis }),
            None => merged.push(axis),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(axes: &[(u64, u64, u64)]) -> BoxCopy {
        let axes: Vec<Axis> = axes
            .iter()
            .map(|&(extent, source_stride, target_stride)| Axis { extent, source_stride, target_stride })
            .collect();
        BoxCopy::new(Bytes(0), Bytes(0), &axes, Bytes(2)).unwrap()
    }

    #[test]
    fn cases_are_as_few_as_can_be() {
        let is_many = |copy: &BoxCopy| matches!(copy.case, Case::Many { .. });
        assert_eq!(copy(&[]).case, Case::One);
        assert_eq!(copy(&[(3, 8, 8), (2, 4, 4), (4, 1, 1)]).case, Case::One);
        // Columns first on both sides is still one block.
        assert_eq!(copy(&[(3, 1, 1), (5, 3, 3)]).case, Case::One);
        let slice = copy(&[(2, 24, 12), (3, 8, 4), (4, 1, 1)]);
        assert_eq!(slice.case, Case::Uniform(Loop { count: 6, source_pitch: 16, target_pitch: 8 }));
        assert_eq!((slice.blocks(), slice.bytes()), (6, Bytes(48)));
        let transposed = copy(&[(3, 1, 5), (5, 3, 1)]);
        assert!(is_many(&transposed));
        assert_eq!((transposed.blocks(), transposed.bytes()), (15, Bytes(30)));
    }

    #[test]
    fn ends_that_do_not_fit_are_refused() {
        let axis = |extent, stride| Axis { extent, source_stride: stride, target_stride: 1 };
        for (offset, axis) in [(0, axis(3, u64::MAX / 2)), (u64::MAX, axis(2, 1)), (0, axis(u64::MAX, 1))] {
            assert_eq!(BoxCopy::new(Bytes(offset), Bytes(0), &[axis], Bytes(2)), None);
        }
        let nothing = BoxCopy::new(Bytes(u64::MAX), Bytes(0), &[axis(0, u64::MAX)], Bytes(8)).unwrap();
        assert_eq!((nothing.blocks(), nothing.bytes()), (0, Bytes(0)));
        nothing.run((&[][..]).into(), &mut (&mut [][..]).into());
    }
}

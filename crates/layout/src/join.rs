//! Which boxes of two sets overlap, without looking at all pairs; and the common refinement of one set.
//!
//! ```text
//!   left  +-------+----+      right  +---+--------+     split both sets along a plane, recurse on each side;
//!         |   a   | b  |             | x |   y    |     a pair is reported by the one cell that holds the
//!         +-------+----+             +---+--------+     lowest corner of its common part
//! ```

use crate::region::Region;

/// Below this many pairs, looking at all of them is faster than splitting further.
const ALL_PAIRS: usize = 64;

/// Calls `found(i, j)` once for every `left[i]` and `right[j]` that share an element, in no order.
/// All boxes have the same number of axes.
pub fn overlapping_pairs(left: &[&Region], right: &[&Region], found: &mut impl FnMut(usize, usize)) {
    let Some(first) = left.first() else { return };
    let all = |boxes: &[&Region]| (0..boxes.len()).filter(|&i| !boxes[i].is_empty()).collect::<Vec<_>>();
    let world = Region::new(
        first.origin().iter().map(|_| 0).collect::<crate::Dims>(),
        first.origin().iter().map(|_| u64::MAX).collect::<crate::Dims>(),
    );
    Join { left, right }.cell(&world, all(left), all(right), found);
}

/// For each box of `left`, the positions in `right` of those that share an element with it, ascending.
#[must_use]
pub fn overlapping(left: &[&Region], right: &[&Region]) -> Vec<Vec<usize>> {
    let mut overlapping = vec![Vec::new(); left.len()];
    overlapping_pairs(left, right, &mut |i, j| overlapping[i].push(j));
    for positions in &mut overlapping {
        positions.sort_unstable();
    }
    overlapping
}

struct Join<'a> {
    left: &'a [&'a Region],
    right: &'a [&'a Region],
}

impl Join<'_> {
    fn cell(&self, cell: &Region, left: Vec<usize>, right: Vec<usize>, found: &mut impl FnMut(usize, usize)) {
        if left.is_empty() || right.is_empty() {
            return;
        }
        if left.len() * right.len() > ALL_PAIRS
            && let Some((axis, at)) = self.plane(cell, &left, &right)
        {
            let (low, high) = cell.split(axis, at);
            let below = |boxes: &[&Region], chosen: &[usize]| -> Vec<usize> {
                chosen.iter().copied().filter(|&i| boxes[i].origin()[axis] < at).collect()
            };
            let above = |boxes: &[&Region], chosen: &[usize]| -> Vec<usize> {
                chosen.iter().copied().filter(|&i| boxes[i].end(axis) > at).collect()
            };
            self.cell(&low, below(self.left, &left), below(self.right, &right), found);
            self.cell(&high, above(self.left, &left), above(self.right, &right), found);
            return;
        }
        for &i in &left {
            for &j in &right {
                if self.left[i].overlaps(self.right[j])
                    && owns_lowest_corner(cell, self.left[i], self.right[j])
                {
                    found(i, j);
                }
            }
        }
    }

    /// A plane that leaves each side with clearly less work than the cell, if there is one. Without the
    /// bounds, boxes that cross every plane would be copied to both sides again and again.
    fn plane(&self, cell: &Region, left: &[usize], right: &[usize]) -> Option<(usize, u64)> {
        let work = left.len() + right.len();
        let mut best: Option<(usize, usize, u64)> = None;
        let mut cuts = Vec::with_capacity(2 * work);
        for axis in 0..cell.axes() {
            cuts.clear();
            let boxes = || left.iter().map(|&i| self.left[i]).chain(right.iter().map(|&j| self.right[j]));
            for region in boxes() {
                cuts.extend([region.origin()[axis], region.end(axis)]);
            }
            cuts.retain(|&cut| cut > cell.origin()[axis] && cut < cell.end(axis));
            if cuts.is_empty() {
                continue;
            }
            let middle = cuts.len() / 2;
            let at = *cuts.select_nth_unstable(middle).1;
            let below = boxes().filter(|region| region.origin()[axis] < at).count();
            let above = boxes().filter(|region| region.end(axis) > at).count();
            let shrinks = below.max(above) * 8 <= work * 7 && (below + above) * 2 <= work * 3;
            if shrinks && best.is_none_or(|(least, ..)| below + above < least) {
                best = Some((below + above, axis, at));
            }
        }
        best.map(|(_, axis, at)| (axis, at))
    }
}

fn owns_lowest_corner(cell: &Region, left: &Region, right: &Region) -> bool {
    (0..cell.axes()).all(|axis| {
        let corner = left.origin()[axis].max(right.origin()[axis]);
        cell.origin()[axis] <= corner && corner < cell.end(axis)
    })
}

/// Cuts `region` into cells so that each of `boxes` holds all of a cell or none of it, and calls
/// `cell(cell, holders)` with the positions in `boxes` that hold it (none: a hole).
///
/// Where no box has a face inside `region` it is one cell. Cells come in no particular order.
pub fn refine(region: &Region, boxes: &[&Region], cell: &mut impl FnMut(&Region, &[usize])) {
    let holders = (0..boxes.len()).filter(|&i| boxes[i].overlaps(region)).collect();
    if !region.is_empty() {
        refine_cell(region, boxes, holders, cell);
    }
}

fn refine_cell(
    region: &Region,
    boxes: &[&Region],
    holders: Vec<usize>,
    emit: &mut impl FnMut(&Region, &[usize]),
) {
    let mut best: Option<(usize, usize, u64)> = None;
    let mut cuts = Vec::new();
    for axis in 0..region.axes() {
        cuts.clear();
        for &i in &holders {
            cuts.extend([boxes[i].origin()[axis], boxes[i].end(axis)]);
        }
        cuts.retain(|&cut| cut > region.origin()[axis] && cut < region.end(axis));
        if cuts.is_empty() {
            continue;
        }
        let middle = cuts.len() / 2;
        let at = *cuts.select_nth_unstable(middle).1;
        let crossing =
            holders.iter().filter(|&&i| boxes[i].origin()[axis] < at && boxes[i].end(axis) > at).count();
        if best.is_none_or(|(least, ..)| crossing < least) {
            best = Some((crossing, axis, at));
        }
    }
    let Some((_, axis, at)) = best else {
        emit(region, &holders);
        return;
    };
    let (low, high) = region.split(axis, at);
    let inside =
        |half: &Region| holders.iter().copied().filter(|&i| boxes[i].overlaps(half)).collect::<Vec<_>>();
    refine_cell(&low, boxes, inside(&low), emit);
    refine_cell(&high, boxes, inside(&high), emit);
}

//! Copies that continue each other become one.
//!
//! ```text
//!   rows  a a a  -> x x x       the box continues, and so do both addresses:   a a a      x x x
//!         b b b  -> y y y       one copy of shape (2, 3)                       b b b  ->  y y y
//! ```
//!
//! Two copies merge along an axis if they share ranks and all other extents, the logical box of one begins
//! where the other's ends, and *both* addresses go on with one stride. Merging by address alone could join
//! boxes that are no box of the parameter.

use reshard_layout::{Dims, Elements, Region};

/// A copy between two instances, with offsets relative to their bases.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) target_instance: u32,
    pub(crate) source_instance: u32,
    pub(crate) region: Region,
    pub(crate) target_offset: Elements,
    pub(crate) source_offset: Elements,
    /// Strides along axes of extent 1 are 0.
    pub(crate) target_strides: Dims,
    pub(crate) source_strides: Dims,
}

/// Rounds over all axes. Grids, rows and runs take one or two; shapes that peel off layer by layer would take
/// as many as they have layers, and are left in a few more copies instead.
const ROUNDS_MAX: usize = 8;

/// Merges along the innermost axis first, then outwards, until nothing merges any more.
pub(crate) fn coalesce(mut drafts: Vec<Draft>) -> Vec<Draft> {
    let axes = drafts.first().map_or(0, |draft| draft.region.axes());
    for _ in 0..ROUNDS_MAX {
        let before = drafts.len();
        for axis in (0..axes).rev() {
            if drafts.len() > 1 {
                drafts = merge_along(axis, drafts);
            }
        }
        if drafts.len() == before {
            break;
        }
    }
    drafts
}

fn merge_along(axis: usize, mut drafts: Vec<Draft>) -> Vec<Draft> {
    let others = |dims: &[u64]| -> Dims {
        dims.iter().enumerate().filter(|(at, _)| *at != axis).map(|(_, value)| *value).collect()
    };
    drafts.sort_by_cached_key(|draft| {
        let region = &draft.region;
        (
            draft.target_instance,
            draft.source_instance,
            others(region.extent()),
            others(region.origin()),
            region.origin()[axis],
        )
    });
    let mut merged: Vec<Draft> = Vec::with_capacity(drafts.len());
    for draft in drafts {
        if let Some(last) = merged.last_mut()
            && let Some(joined) = join(axis, last, &draft)
        {
            *last = joined;
        } else {
            merged.push(draft);
        }
    }
    merged
}

fn join(axis: usize, low: &Draft, high: &Draft) -> Option<Draft> {
    let same_ranks =
        low.target_instance == high.target_instance && low.source_instance == high.source_instance;
    let (first, second) = (&low.region, &high.region);
    let continues = (0..first.axes()).all(|at| {
        if at == axis {
            first.end(at) == second.origin()[at]
        } else {
            first.origin()[at] == second.origin()[at] && first.extent()[at] == second.extent()[at]
        }
    });
    if !same_ranks || !continues {
        return None;
    }
    let extents = (first.extent()[axis], second.extent()[axis]);
    let target_strides = joined_strides(
        axis,
        extents,
        (low.target_offset, &low.target_strides),
        (high.target_offset, &high.target_strides),
    )?;
    let source_strides = joined_strides(
        axis,
        extents,
        (low.source_offset, &low.source_strides),
        (high.source_offset, &high.source_strides),
    )?;
    let mut extent = Dims::from_slice(first.extent());
    extent[axis] += second.extent()[axis];
    Some(Draft {
        region: Region::new(first.origin().iter().copied(), extent),
        target_strides,
        source_strides,
        ..low.clone()
    })
}

/// The strides of both together, if the second goes on where the first ends.
fn joined_strides(
    axis: usize,
    extents: (u64, u64),
    low: (Elements, &Dims),
    high: (Elements, &Dims),
) -> Option<Dims> {
    let same = (0..low.1.len()).all(|at| at == axis || low.1[at] == high.1[at]);
    let distance = high.0.0.checked_sub(low.0.0)?;
    if !same || distance == 0 || !distance.is_multiple_of(extents.0) {
        return None;
    }
    let stride = distance / extents.0;
    let agrees = |extent: u64, own: u64| extent == 1 || own == stride;
    if !agrees(extents.0, low.1[axis]) || !agrees(extents.1, high.1[axis]) {
        return None;
    }
    let mut strides = low.1.clone();
    strides[axis] = stride;
    Some(strides)
}

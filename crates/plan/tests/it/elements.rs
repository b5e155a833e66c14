//! The dumb way: walk every element of every piece and copy.

use std::collections::BTreeMap;

use reshard_layout::{Layout, coordinate};
use reshard_plan::Plan;

/// A place: (rank, storage, element of the storage).
pub(crate) type Place = (u32, u32, u64);

fn place(places: &reshard_layout::Places, buffer: reshard_layout::BufferId, offset: u64) -> Place {
    let window = places.buffer(buffer);
    (places.rank_of(buffer).0, window.storage.0, window.offset.0 / window.dtype.size() + offset)
}

fn walk(shape: &[u64]) -> impl Iterator<Item = reshard_layout::Dims> {
    let shape = shape.to_vec();
    (0..shape.iter().product::<u64>()).map(move |index| coordinate(index, &shape))
}

fn step(at: &[u64], strides: &[u64]) -> u64 {
    at.iter().zip(strides).map(|(at, stride)| at * stride).sum()
}

/// Every place of a layout, and the (parameter, flat element) that lies there.
pub(crate) fn held(layout: &Layout) -> BTreeMap<Place, (String, u64)> {
    let mut all = BTreeMap::new();
    for piece in layout.pieces() {
        let parameter = layout.parameter(piece.parameter);
        for within in walk(piece.region.extent()) {
            let flat = within
                .iter()
                .zip(piece.region.origin())
                .zip(&parameter.shape)
                .fold(0, |sum, ((at, from), extent)| sum * extent + at + from);
            let at = place(layout.places(), piece.buffer, piece.offset.0 + step(&within, piece.strides));
            assert!(all.insert(at, (parameter.name.clone(), flat)).is_none(), "{at:?} is held twice");
        }
    }
    all
}

/// Every place that a plan writes, and the place that it reads for it.
pub(crate) fn moved(plan: &Plan) -> BTreeMap<Place, Place> {
    let mut all = BTreeMap::new();
    for copy in &plan.copies {
        for within in walk(&copy.shape) {
            let end = |places, end: &reshard_plan::End| {
                place(places, end.buffer, end.offset.0 + step(&within, &end.strides))
            };
            let to = end(&plan.target, &copy.target);
            assert!(all.insert(to, end(&plan.source, &copy.source)).is_none(), "{to:?} is written twice");
        }
    }
    all
}

/// Whether a plan, however wrong, writes every target place exactly once, with its own element.
pub(crate) fn is_right(plan: &Plan, source: &Layout, target: &Layout) -> bool {
    let (from, to) = (held(source), held(target));
    let mut left = to.clone();
    for copy in &plan.copies {
        for within in walk(&copy.shape) {
            let end = |places, end: &reshard_plan::End| {
                place(places, end.buffer, end.offset.0 + step(&within, &end.strides))
            };
            let (read, written) = (end(&plan.source, &copy.source), end(&plan.target, &copy.target));
            let element = left.remove(&written);
            if element.is_none() || element.as_ref() != from.get(&read) {
                return false;
            }
        }
    }
    left.is_empty()
}

/// Every target place is written exactly once, with its own element.
pub(crate) fn assert_right(plan: &Plan, source: &Layout, target: &Layout) {
    let (from, to, moved) = (held(source), held(target), moved(plan));
    assert_eq!(moved.keys().collect::<Vec<_>>(), to.keys().collect::<Vec<_>>(), "written places");
    for (written, read) in &moved {
        assert_eq!(from.get(read), to.get(written), "{written:?} is read from {read:?}");
    }
}

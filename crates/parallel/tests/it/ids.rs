//! Every element that lay in the buffers of a live engine, by value.
//!
//! The dumps of these engines were made with every logical element set to its own number, so they say
//! which element lies at each position, whatever any rule says. Here each is walked to, one by one.
//!
//! Padding holds zeros at stages 1 and 2. At stage 3 it holds whatever the memory held before, and some of that
//! reads as the number of an element: there the engine's own record says what is padding.

use std::collections::BTreeMap;

use reshard_layout::{Layout, Rank};
use reshard_parallel::RankStorage;
use reshard_parallel::engine::State;
use serde_json::Value;

use crate::support::{Case, list, number, numbers};

/// A parameter and the flat index of an element in the whole of it; `None` is padding.
type Element = Option<(usize, u64)>;

/// The buffers of a rank, each element derived from cuts and runs.
fn derived(case: &Case, storage: &RankStorage) -> Vec<Vec<Element>> {
    let lengths = storage.storages.iter().map(|spec| usize::try_from(spec.length.0).unwrap());
    let mut buffers: Vec<Vec<Element>> = lengths.map(|length| vec![None; length]).collect();
    for run in &storage.runs {
        let shape = &case.engine.parameters()[run.parameter].shape;
        let shard = case.engine.shard_shape(run.parameter, storage.tp_rank);
        let origin = case.engine.cuts()[run.parameter].origin(shape.len(), storage.tp_rank);
        for step in 0..run.length.0 {
            let position = usize::try_from(run.offset.0 + step).unwrap();
            let logical = logical(run.first.0 + step, &shard, &origin, shape);
            let before = buffers[run.storage][position].replace((run.parameter, logical));
            assert_eq!(before, None, "two runs hold position {position}");
        }
    }
    buffers
}

/// The buffers of a rank, each element walked to through the pieces of a layout.
fn laid_out(case: &Case, layout: &Layout, rank: Rank) -> Vec<Vec<Element>> {
    let mut buffers = BTreeMap::new();
    for (storage, _) in layout.places().of_rank(rank) {
        let (id, buffer) =
            layout.places().buffers.iter().enumerate().find(|(_, buffer)| buffer.storage == storage).unwrap();
        buffers.insert(id, vec![None; usize::try_from(buffer.length.0).unwrap()]);
    }
    for piece in layout.pieces().filter(|piece| piece.rank == rank) {
        let shape = &case.engine.parameters()[piece.parameter.index()].shape;
        for step in 0..piece.region.volume() {
            let (mut rest, mut index, mut stride, mut address) = (step, 0, 1, piece.offset.0);
            for axis in (0..shape.len()).rev() {
                let at = rest % piece.region.extent()[axis];
                rest /= piece.region.extent()[axis];
                index += (piece.region.origin()[axis] + at) * stride;
                stride *= shape[axis];
                address += at * piece.strides[axis];
            }
            let buffer = buffers.get_mut(&piece.buffer.index()).unwrap();
            buffer[usize::try_from(address).unwrap()] = Some((piece.parameter.index(), index));
        }
    }
    buffers.into_values().collect()
}

/// The flat index, in the whole parameter, of a flat index in a shard.
fn logical(mut flat: u64, shard: &[u64], origin: &[u64], shape: &[u64]) -> u64 {
    let (mut index, mut stride) = (0, 1);
    for axis in (0..shape.len()).rev() {
        index += (flat % shard[axis] + origin[axis]) * stride;
        flat /= shard[axis];
        stride *= shape[axis];
    }
    index
}

/// A buffer of a group as the engine's values show it.
fn dumped(case: &Case, group: &Value, runs: &str) -> Vec<Element> {
    let mut buffer = Vec::new();
    for run in list(&group[runs]) {
        assert_eq!(buffer.len() as u64, number(&run[0]), "runs follow each other");
        for step in 0..number(&run[1]) {
            let known = (!run[2].is_null()).then(|| (case.parameter(&run[2]), number(&run[3]) + step));
            buffer.push(known);
        }
    }
    let slices = list(&group["entries"]).iter().filter(|entry| entry.get("param_range").is_some());
    for entry in slices {
        let (range, offset) = (numbers(&entry["param_range"]), number(&entry["flat_offset"]));
        let (held, slot) = (range[1] - range[0], number(&entry["partition_numel"]));
        for position in offset + held..offset + slot {
            buffer[usize::try_from(position).unwrap()] = None;
        }
    }
    buffer
}

/// Names the first position that differs, and not a hundred thousand that do not.
fn compare(derived: &[Vec<Element>], dumped: &[Vec<Element>], at: &str) {
    assert_eq!(derived.len(), dumped.len(), "buffers: {at}");
    for (index, (derived, dumped)) in derived.iter().zip(dumped).enumerate() {
        assert_eq!(derived.len(), dumped.len(), "length of buffer {index}: {at}");
        for (position, (derived, dumped)) in derived.iter().zip(dumped).enumerate() {
            assert_eq!(derived, dumped, "position {position} of buffer {index}: {at}");
        }
    }
}

#[test]
fn every_element_lies_where_the_engine_had_it() {
    let mut compared = 0;
    for case in Case::all().iter().filter(|case| case.dump["config"]["ids"] == true) {
        let weights_layout = case.engine.layout().unwrap();
        let states_layout = case.engine.optimizer_layout(State::Fp32).unwrap();
        for (slot, rank, at) in case.ranks() {
            let weights = derived(case, &case.engine.weights(slot));
            let states = derived(case, &case.engine.optimizer(slot, State::Fp32));
            let sliced = case.stage() == 3;
            let groups = list(&rank[if sliced { "sub_groups" } else { "groups" }]);
            // At stage 3 the buffers of the sub-groups are windows of one, which follow each other.
            let low: Vec<_> = groups.iter().map(|group| dumped(case, group, "bit16_runs")).collect();
            let low = if sliced { vec![low.concat()] } else { low };
            let high: Vec<_> = groups.iter().map(|group| dumped(case, group, "fp32_runs")).collect();
            compare(&weights, &low, &format!("weights of {at}"));
            compare(&states, &high, &format!("masters of {at}"));
            let rank = case.engine.topology().rank(slot);
            compare(&laid_out(case, &weights_layout, rank), &low, &format!("layout of weights of {at}"));
            compare(&laid_out(case, &states_layout, rank), &high, &format!("layout of masters of {at}"));
            compared += low.iter().chain(&high).map(Vec::len).sum::<usize>();
        }
    }
    assert!(compared > 50_000, "only {compared} elements were compared");
}

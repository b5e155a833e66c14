//! Every length, offset and range that a live engine recorded, on every rank.

use reshard_layout::{DType, Elements};
use reshard_parallel::engine::State;
use reshard_parallel::model::Role;
use reshard_parallel::tensor::{Cut, replaced};
use reshard_parallel::topology::Slot;
use reshard_parallel::zero::PartitionOver;
use reshard_parallel::{Run, StorageSpec};
use serde_json::Value;

use crate::support::{Case, elements, list, number, numbers, ranks, string};

#[test]
fn parameters_and_cuts_are_those_of_the_engine() {
    for case in Case::all() {
        let tp = case.engine.topology().tp();
        for (slot, rank, at) in case.ranks() {
            let place = case.engine.topology().place(slot);
            assert_eq!(u64::from(place.tp_rank), number(&rank["tp_rank"]), "{at}");
            assert_eq!(u64::from(place.dp_rank), number(&rank["dp_rank"]), "{at}");
            assert_eq!(case.engine.tp_group(slot), ranks(&rank["tp_group"]), "{at}");
            assert_eq!(case.engine.dp_group(slot), ranks(&rank["dp_group"]), "{at}");

            let (first, tied): (Vec<&Value>, Vec<&Value>) =
                list(&rank["params"]).iter().partition(|parameter| parameter["shared_with"].is_null());
            assert_eq!(first.len(), case.engine.parameters().len(), "{at}");
            for (index, (parameter, dumped)) in case.engine.parameters().iter().zip(&first).enumerate() {
                let at = format!("{at} {}", parameter.name);
                assert_eq!(parameter.name, string(&dumped["name"]), "{at}");
                assert_eq!(DType::parse(string(&dumped["dtype"])), Some(case.config.dtype()), "{at}");
                let shape = case.engine.shard_shape(index, place.tp_rank);
                assert_eq!(shape, numbers(&dumped["local_shape"]), "{at}");
                let autotp = &dumped["autotp"];
                assert_eq!(replaced(&case.config, parameter, tp), !autotp.is_null(), "{at}");
                check_cut(&case.engine.cuts()[index], autotp, &at);
                if !autotp.is_null() {
                    assert_eq!(parameter.shape, numbers(&autotp["logical_shape"]), "{at}");
                }
            }
            let aliases: Vec<&String> = case.engine.parameters().iter().flat_map(|p| &p.aliases).collect();
            let dumped: Vec<&str> = tied.iter().map(|parameter| string(&parameter["name"])).collect();
            assert_eq!(aliases, dumped, "{at}");
            for parameter in tied {
                let owner = case.parameter(&parameter["shared_with"]);
                assert_eq!(case.engine.parameters()[owner].role, Role::Embedding, "{at}");
            }
        }
    }
}

fn check_cut(cut: &Cut, autotp: &Value, at: &str) {
    match cut {
        Cut::Whole => assert!(autotp.is_null() || autotp["replicated"] == true, "{at}"),
        Cut::Axis { axis, widths } => {
            assert_eq!(*axis as u64, number(&autotp["partition_dim"]), "{at}");
            assert_eq!(*widths, numbers(&autotp["partition_sizes"]), "{at}");
        }
    }
}

#[test]
fn flat_groups_are_those_of_the_engine() {
    for case in Case::all().iter().filter(|case| case.stage() < 3) {
        for (slot, rank, at) in case.ranks() {
            let place = case.engine.topology().place(slot);
            let groups = case.engine.flat_groups(place.tp_rank);
            let dumped = list(&rank["groups"]);
            assert_eq!(groups.len(), dumped.len(), "{at}");
            for (group, dumped) in groups.iter().zip(dumped) {
                let own = u64::from(place.dp_rank);
                assert_eq!(group.length(), elements(&dumped["bit16_flat_numel"]), "{at}");
                assert_eq!(group.partition_length(), elements(&dumped["partition_size"]), "{at}");
                assert_eq!(own, number(&dumped["partition_id"]), "{at}");
                assert_eq!(group.length().0 % number(&dumped["alignment_elems"]), 0, "{at}");
                assert_eq!(group.length() - group.unpadded(), elements(&dumped["tail_padding"]), "{at}");
                assert_eq!(group.padding(own), elements(&dumped["groups_padding"]), "{at}");
                let sum: Elements = group.entries().iter().map(|entry| entry.numel).sum();
                assert_eq!(sum, elements(&dumped["unpadded_numel"]), "{at}");

                let entries = list(&dumped["entries"]);
                assert_eq!(group.entries().len(), entries.len(), "{at}");
                for (entry, dumped) in group.entries().iter().zip(entries) {
                    assert_eq!(entry.parameter, case.parameter(&dumped["name"]), "{at}");
                    assert_eq!(entry.numel, elements(&dumped["numel"]), "{at}");
                    assert_eq!(entry.offset, elements(&dumped["flat_offset"]), "{at}");
                    let mut owners = Vec::new();
                    for partition in 0..u64::from(case.engine.topology().dp().get()) {
                        let held = group.fragments(partition).find(|f| f.parameter == entry.parameter);
                        owners.extend(held.map(|f| vec![partition, f.first.0, f.first.0 + f.length.0]));
                    }
                    let dumped: Vec<Vec<u64>> = list(&dumped["owners"]).iter().map(numbers).collect();
                    assert_eq!(owners, dumped, "{at}");
                }
            }
        }
    }
}

#[test]
fn flat_storage_is_that_of_the_engine() {
    for case in Case::all().iter().filter(|case| case.stage() < 3) {
        for (slot, rank, at) in case.ranks() {
            let (mut weights, mut states) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
            for (storage, group) in list(&rank["groups"]).iter().enumerate() {
                weights.0.push(elements(&group["bit16_flat_numel"]));
                states.0.push(elements(&group["fp32_partition"]["numel"]));
                for entry in list(&group["entries"]) {
                    let parameter = case.parameter(&entry["name"]);
                    let (offset, length) = (elements(&entry["flat_offset"]), elements(&entry["numel"]));
                    weights.1.push(Run { parameter, storage, offset, first: Elements(0), length });
                    let mine = &entry["mine"];
                    if mine.is_null() {
                        continue;
                    }
                    let range = numbers(&mine["param_range"]);
                    let (first, length) = (Elements(range[0]), Elements(range[1] - range[0]));
                    let offset = elements(&mine["fp32_offset"]);
                    states.1.push(Run { parameter, storage, offset, first, length });
                    // DeepSpeed keeps its own record of the same.
                    let mapping = &entry["hp_mapping"];
                    assert_eq!(numbers(&mapping["lp_fragment"]), [first.0, length.0], "{at}");
                    assert_eq!(numbers(&mapping["hp_fragment"]), [offset.0, length.0], "{at}");
                }
            }
            check_storage(case, slot, &weights, &states, &at);
        }
    }
}

/// Lengths and runs.
type Stored = (Vec<Elements>, Vec<Run>);

fn check_storage(case: &Case, slot: Slot, weights: &Stored, states: &Stored, at: &str) {
    let derived = case.engine.weights(slot);
    assert_eq!(derived.rank.0, slot.0, "{at}");
    assert_eq!(derived.storages, specs("weights", case.config.dtype(), &weights.0), "{at}");
    assert_eq!(derived.runs, weights.1, "{at}");
    for state in State::ALL {
        let derived = case.engine.optimizer(slot, state);
        assert_eq!(derived.storages, specs(state.name(), DType::F32, &states.0), "{at}");
        assert_eq!(derived.runs, states.1, "{at}");
    }
}

fn specs(name: &str, dtype: DType, lengths: &[Elements]) -> Vec<StorageSpec> {
    let spec = |(index, &length)| StorageSpec { name: format!("{name}.{index}"), dtype, length };
    lengths.iter().enumerate().map(spec).collect()
}

#[test]
fn sub_groups_are_those_of_the_engine() {
    for case in Case::all().iter().filter(|case| case.stage() == 3) {
        for (slot, rank, at) in case.ranks() {
            let place = case.engine.topology().place(slot);
            let groups = case.engine.sub_groups(place.tp_rank);
            let dumped = list(&rank["sub_groups"]);
            assert_eq!(groups.len(), dumped.len(), "{at}");
            for (group, dumped) in groups.iter().zip(dumped) {
                assert_eq!(group.group as u64, number(&dumped["param_group"]), "{at}");
                assert_eq!(group.length, elements(&dumped["flat_numel"]), "{at}");
                assert_eq!(group.offset, elements(&dumped["offset_in_lp_param_buffer"]), "{at}");
                assert_eq!(group.partitions.get(), number(&dumped["partition_count"]), "{at}");
                let position = match group.over {
                    PartitionOver::World => slot.0,
                    PartitionOver::DataParallel => place.dp_rank,
                };
                assert_eq!(u64::from(position), number(&dumped["partition_rank"]), "{at}");
                let entries = list(&dumped["entries"]);
                assert_eq!(group.entries.len(), entries.len(), "{at}");
                for (entry, dumped) in group.entries.iter().zip(entries) {
                    let at = format!("{at} {}", dumped["name"]);
                    assert_eq!(entry.parameter, case.parameter(&dumped["name"]), "{at}");
                    assert_eq!(entry.numel, elements(&dumped["ds_numel"]), "{at}");
                    assert_eq!(entry.slot, elements(&dumped["partition_numel"]), "{at}");
                    assert_eq!(entry.offset, elements(&dumped["flat_offset"]), "{at}");
                    let aligned = entry.slot.0 * group.partitions.get();
                    assert_eq!(aligned, number(&dumped["ds_numel_aligned"]), "{at}");
                    assert_eq!(aligned - entry.numel.0, number(&dumped["padding_size"]), "{at}");
                    let shape = case.engine.shard_shape(entry.parameter, place.tp_rank);
                    assert_eq!(shape, numbers(&dumped["ds_shape"]), "{at}");
                    let stays = case.engine.persistent(entry.parameter, place.tp_rank);
                    assert_eq!(stays, dumped["persist"] == true, "{at}");
                    let partition = case.engine.partition(entry.parameter, slot);
                    assert_eq!(partition.slot, entry.slot, "{at}");
                    assert_eq!(partition.position, position, "{at}");
                    assert_eq!(partition.ranks.len() as u64, group.partitions.get(), "{at}");
                    assert_eq!(partition.ranks[position as usize].0, slot.0, "{at}");
                }
            }
        }
    }
}

#[test]
fn sliced_storage_is_that_of_the_engine() {
    for case in Case::all().iter().filter(|case| case.stage() == 3) {
        for (slot, rank, at) in case.ranks() {
            let mut weights = (vec![elements(&rank["lp_param_buffer"]["numel"])], Vec::new());
            let mut states = (Vec::new(), Vec::new());
            for (storage, group) in list(&rank["sub_groups"]).iter().enumerate() {
                states.0.push(elements(&group["fp32_partition"]["numel"]));
                let base = elements(&group["offset_in_lp_param_buffer"]);
                for entry in list(&group["entries"]) {
                    let parameter = case.parameter(&entry["name"]);
                    let range = numbers(&entry["param_range"]);
                    let (first, length) = (Elements(range[0]), Elements(range[1] - range[0]));
                    let offset = elements(&entry["flat_offset"]);
                    if length.0 > 0 {
                        let weight = base + offset;
                        weights.1.push(Run { parameter, storage: 0, offset: weight, first, length });
                        states.1.push(Run { parameter, storage, offset, first, length });
                    }
                }
            }
            check_storage(case, slot, &weights, &states, &at);
            let place = case.engine.topology().place(slot);
            let count = 0..case.engine.parameters().len();
            let persistent: Vec<&str> = count
                .filter(|index| case.engine.persistent(*index, place.tp_rank))
                .map(|index| case.engine.parameters()[index].name.as_str())
                .collect();
            let dumped: Vec<&str> = list(&rank["persistent_parameters"]).iter().map(string).collect();
            assert_eq!(persistent, dumped, "{at}");
        }
    }
}

//! Optimizer files put together by hand: order, padding, and states that no engine of the fixtures has.

use reshard_formats::Kept;
use serde_json::{Value, json};

use super::made::{Made, numbers, numbers_of};

/// Three parameters that count up from 0, 100 and 200.
const PARAMETERS: [(&str, u64, u64); 3] = [("a", 5, 0), ("b", 4, 100), ("c", 8, 200)];

/// A stage-1 checkpoint of two data-parallel ranks with this order of the flat buffer, cut into windows of 10.
/// 5 + 4 + 8 elements, padded to a multiple of 4.
pub(super) fn stage_1(order: [usize; 3]) -> Made {
    let of =
        |(name, count, first): (&str, u64, u64)| (name.to_owned(), numbers(&[count], &values(count, first)));
    let module: serde_json::Map<String, Value> = PARAMETERS.into_iter().map(of).collect();
    let shapes = |at: &usize| (PARAMETERS[*at].0.to_owned(), json!([PARAMETERS[*at].1]));
    let model = json!({
        "module": module,
        "param_shapes": [order.iter().map(shapes).collect::<serde_json::Map<_, _>>()],
        "dp_world_size": 2,
        "mp_world_size": 1,
        "global_steps": 7,
        "ds_config": {"zero_optimization": {"stage": 1}},
    });
    let mut made = Made::models([model]);
    let flat: Vec<u64> = order.iter().flat_map(|at| values(PARAMETERS[*at].1, PARAMETERS[*at].2)).collect();
    for rank in 0..2 {
        let window: Vec<u64> =
            (10 * rank..10 * rank + 10).map(|at| flat.get(at).copied().unwrap_or(0)).collect();
        let unpadded = if rank == 0 { 10 } else { 7 };
        let shifted: Vec<u64> = window.iter().map(|value| value + 1000).collect();
        let states = json!({
            "zero_stage": 1,
            "partition_count": [2],
            "single_partition_of_fp32_groups": [numbers(&[unpadded], &window[..unpadded as usize])],
            "base_optimizer_state": {
                "state": {"0": {"step": 7, "exp_avg": numbers(&[10], &shifted)}},
                "param_groups": [{"lr": 0.5, "params": [0]}],
            },
        });
        let name = format!("zero_pp_rank_{rank}_mp_rank_00_optim_states.pt");
        made.files.insert(name, json!({"optimizer_state_dict": states}));
    }
    made
}

fn values(count: u64, first: u64) -> Vec<u64> {
    (first..first + count).collect()
}

/// The inner dictionary of a rank's optimizer file.
pub(super) fn states(made: &mut Made, rank: u32) -> &mut Value {
    &mut made.file(&format!("zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"))["optimizer_state_dict"]
}

fn counts_up(made: &Made, kept: &Kept, add: u64) {
    let (opened, _folder) = made.opened();
    let found = numbers_of(&opened.unwrap(), kept);
    for (name, count, first) in PARAMETERS {
        assert_eq!(found[name], (vec![count], values(count, first + add)), "{kept} of {name}");
    }
}

#[test]
fn in_the_order_of_param_shapes() {
    for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
        counts_up(&stage_1(order), &Kept::Master, 0);
        counts_up(&stage_1(order), &Kept::State("exp_avg".to_owned()), 1000);
    }
}

/// The mappings that a file records beside: (start, length) in the window of 10.
fn record(made: &mut Made, rank: u32, fragments: &[(&str, u64, u64)]) {
    let address = |(name, start, length): &(&str, u64, u64)| {
        ((*name).to_owned(), json!({"start": start, "numel": length}))
    };
    let mappings: serde_json::Map<String, Value> = fragments.iter().map(address).collect();
    states(made, rank)["param_slice_mappings"] = json!([mappings]);
}

/// Dealing a, b, c to two ranks puts them in the order a, c, b: the record of DeepSpeed 0.19.8 says a, b, c.
#[test]
fn the_record_of_a_round_robin_is_known_to_be_that_before_dealing() {
    let mut dealt = stage_1([0, 2, 1]);
    dealt.file("mp_rank_00_model_states.pt")["ds_config"]["zero_optimization"]["round_robin_gradients"] =
        json!(true);
    record(&mut dealt, 0, &[("a", 0, 5), ("b", 5, 4), ("c", 9, 1)]);
    record(&mut dealt, 1, &[("c", 0, 7)]);
    counts_up(&dealt, &Kept::Master, 0);
    // The true places are as good.
    record(&mut dealt, 0, &[("a", 0, 5), ("c", 5, 5)]);
    record(&mut dealt, 1, &[("c", 0, 3), ("b", 3, 4)]);
    counts_up(&dealt, &Kept::Master, 0);
    // Anything else is not that defect.
    record(&mut dealt, 1, &[("c", 0, 3), ("b", 4, 3)]);
    let error = dealt.refused().to_string();
    assert!(error.contains("group 0 says that b is at 4, 3 elements long"), "{error}");

    let mut not_dealt = stage_1([0, 2, 1]);
    record(&mut not_dealt, 0, &[("a", 0, 5), ("b", 5, 4), ("c", 9, 1)]);
    let error = not_dealt.refused().to_string();
    assert!(error.contains("group 0 says that c is at 9, 1 elements long, by param_shapes"), "{error}");
}

/// A tied weight is the parameter that the optimizer owns, also where its second name comes first in the module.
#[test]
fn what_is_trained_is_a_first_name() {
    let mut made = stage_1([0, 1, 2]);
    let module = &mut made.file("mp_rank_00_model_states.pt")["module"];
    let mut tied = json!({"+tied": module["a"], "a": {"tensor": [5], "storage": 0}});
    for name in ["b", "c"] {
        tied[name] = module[name].take();
    }
    *module = tied;
    let (opened, _folder) = made.opened();
    let opened = opened.unwrap();
    for part in opened.parts.values() {
        assert_eq!(part.layout.parameters().map(|(_, one)| &one.name).collect::<Vec<_>>(), ["a", "b", "c"]);
        let aliases = part.layout.aliases().map(|(name, of)| (name, part.layout.parameter(of).name.as_str()));
        assert_eq!(aliases.collect::<Vec<_>>(), [("+tied", "a")]);
    }
    counts_up(&made, &Kept::Master, 0);
}

#[test]
fn an_elastic_checkpoint_has_lean_states_in_a_list() {
    let mut made = stage_1([0, 1, 2]);
    for rank in 0..2 {
        let states = states(&mut made, rank);
        let mut state = states["base_optimizer_state"]["state"]["0"].clone();
        if rank == 1 {
            let lean: Vec<u64> = serde_json::from_value(state["exp_avg"]["values"].clone()).unwrap();
            state["exp_avg"] = numbers(&[7], &lean[..7]);
        }
        states["base_optimizer_state"] = json!([state]);
        states["base_optimizer_state_step"] = json!(7);
    }
    counts_up(&made, &Kept::State("exp_avg".to_owned()), 1000);
}

/// Whatever the optimizer calls its states; what is not one element an element is named.
#[test]
fn states_of_any_optimizer() {
    let mut made = stage_1([0, 1, 2]);
    for rank in 0..2 {
        let state = &mut states(&mut made, rank)["base_optimizer_state"]["state"]["0"];
        let window = state["exp_avg"].clone();
        *state = json!({"prodigy_s": window, "row_factors": numbers(&[3], &[1, 2, 3]), "matrix": numbers(&[1, 2], &[1, 2])});
    }
    counts_up(&made, &Kept::State("prodigy_s".to_owned()), 1000);
    let (opened, _folder) = made.opened();
    let opened = opened.unwrap();
    assert_eq!(opened.parts.keys().map(Kept::name).collect::<Vec<_>>(), ["weights", "fp32", "prodigy_s"]);
    let note = "left out, states that have not one element for each of the parameters: row_factors, matrix";
    assert_eq!(opened.facts.notes, [note]);
    assert!(!opened.facts.metadata.contains_key("optimizer steps by group"));
}

#[test]
fn without_optimizer_files_there_are_weights_and_a_note() {
    let mut made = stage_1([0, 1, 2]);
    made.files.retain(|name, _| name.starts_with("mp_rank"));
    let (opened, _folder) = made.opened();
    let opened = opened.unwrap();
    assert_eq!(opened.parts.keys().map(Kept::name).collect::<Vec<_>>(), ["weights"]);
    assert_eq!(opened.facts.notes, ["weights only: no optimizer states of ZeRO are here"]);
    assert_eq!(opened.facts.stage, Some(1));
}

//! What is wrong with a checkpoint, or beyond this library, is said by file and key.

use std::fs;
use std::path::Path;

use reshard_formats::{FormatError, Kept, zero};
use reshard_layout::Kind;
use serde_json::{Value, json};

use super::joins::checkpoint;
use super::made::{Made, counting, numbers};
use super::optimizers::{stage_1, states};
use crate::support::{own, scratch};

/// The error names these words, and has this kind.
fn says(error: &FormatError, kind: Kind, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
    assert_eq!(error.kind(), Some(kind), "{text}");
}

fn shards_refused(info: Value, kind: Kind, words: &[&str]) {
    let shards = vec![counting(&[3, 2], 0), counting(&[3, 2], 6)];
    says(&checkpoint(shards, info).refused(), kind, words);
}

#[test]
fn newer_forms() {
    let info = json!({"universal_checkpoint_version": 0.5});
    shards_refused(info, Kind::Unsupported, &["universal_checkpoint_version is 0.5, newer than 0.4"]);
    let info = json!({"affine_map": {"version": 2, "params": {}}});
    shards_refused(info, Kind::Unsupported, &["affine_map.version is 2, newer than 1"]);
}

#[test]
fn older_forms_that_would_have_to_be_guessed() {
    let uneven = |shape: Value| {
        json!({
            "universal_checkpoint_version": 0.3,
            "parameter_with_sub_params": [{"patterns": ["^w$"], "shape": shape, "partition_dim": 0}],
        })
    };
    let words = ["w: a part of 3 rows does not divide by 2, and no widths are recorded"];
    shards_refused(uneven(json!([2, -1])), Kind::Unsupported, &words);
    shards_refused(uneven(json!([[3, 3], -1])), Kind::Unsupported, &words);
    let words = ["a part of 6 rows does not divide by 4"];
    shards_refused(uneven(json!([4, -1])), Kind::Unsupported, &words);
}

#[test]
fn shards_that_nothing_joins() {
    let words =
        ["mp_rank_00_model_states.pt: no universal_checkpoint_info", "2 tensor-parallel", "client_state"];
    shards_refused(Value::Null, Kind::Invalid, &words);
    let info = json!({"autotp_unsupported_parameter_patterns": {"^w$": "divided bias"}});
    shards_refused(info, Kind::Unsupported, &["w: its shards cannot be joined", "divided bias"]);
    let info = json!({"tp_replicated_parameter_patterns": ["^w$", "w"]});
    shards_refused(info, Kind::Invalid, &["w matches both \"^w$\" and \"w\""]);
    let info = json!({"tp_replicated_parameter_patterns": ["(?<=x)w"]});
    shards_refused(info, Kind::Unsupported, &["the pattern \"(?<=x)w\" is not understood"]);
    let info = json!({"vocabulary_parameter_patterns": ["^w$"]});
    shards_refused(info, Kind::Invalid, &["no original_vocab_size"]);
    let info = json!({"expert_parameter_patterns": ["experts"]});
    shards_refused(info, Kind::Unsupported, &["expert parallel"]);
}

#[test]
fn shards_that_do_not_fit() {
    let info = json!({"universal_checkpoint_version": 0.4});
    let uneven = checkpoint(vec![counting(&[3, 2], 0), counting(&[3, 3], 6)], info.clone());
    says(
        &uneven.refused(),
        Kind::Invalid,
        &["w: tensor-parallel rank 1 has a shard of shape [3, 3]", "[3, 2]"],
    );
    let replicas = json!({"tp_replicated_parameter_patterns": ["^w$"]});
    let replicas = checkpoint(vec![counting(&[3], 0), counting(&[2], 0)], replicas);
    says(&replicas.refused(), Kind::Invalid, &["rank 1 has a shard of shape [2]", "all should be equal"]);
    let mut lonely = checkpoint(vec![counting(&[3, 2], 0), counting(&[3, 2], 6)], info);
    lonely.file("mp_rank_01_model_states.pt")["module"] = json!({"v": counting(&[3], 0)});
    says(&lonely.refused(), Kind::Invalid, &["w: tensor-parallel rank 1 does not have it"]);
    let widths = json!({
        "universal_checkpoint_version": 0.4,
        "parameter_with_sub_params": [{"patterns": ["^w$"], "shape": [[4, 2], -1], "partition_dim": 0}],
        "sub_param_shard_widths": {"^w$": [[2, 2], [2, 0]]},
    });
    shards_refused(widths, Kind::Invalid, &["rank 0 has a shard of shape [3, 2]", "[4, 2]"]);
    for (widths, words) in [
        (json!([[2, 1], [1, 2]]), "is 3, expected 4 (the widths of a part add up to its extent)"),
        (json!([[3, 3]]), "is 1, expected 2 (a list of widths a part)"),
        (json!([[4], [2]]), "is 1, expected 2 (one width a tensor-parallel rank)"),
    ] {
        let info = json!({
            "universal_checkpoint_version": 0.4,
            "parameter_with_sub_params": [{"patterns": ["^w$"], "shape": [[4, 2], -1], "partition_dim": 0}],
            "sub_param_shard_widths": {"^w$": widths},
        });
        shards_refused(info, Kind::Invalid, &["sub_param_shard_widths of w", words]);
    }
    let huge = json!({
        "universal_checkpoint_version": 0.4,
        "parameter_with_sub_params": [{"patterns": ["^w$"], "shape": [1_u64 << 62, -1], "partition_dim": 0}],
        "sub_param_shard_widths": {"^w$": [[1_u64 << 62, 1_u64 << 62], [1_u64 << 62, 1_u64 << 62]]},
    });
    shards_refused(huge, Kind::Invalid, &["w"]);
}

#[test]
fn pipelines_and_experts() {
    let mut pipeline = stage_1([0, 1, 2]);
    pipeline.file("mp_rank_00_model_states.pt")["checkpoint_parallel_dimensions"] = json!({"pp_degree": 2});
    says(&pipeline.refused(), Kind::Unsupported, &["pp_degree is 2"]);
    let mut experts = stage_1([0, 1, 2]);
    experts.file("mp_rank_00_model_states.pt")["ds_autoep_layers"] = json!([{}]);
    says(&experts.refused(), Kind::Unsupported, &["ds_autoep_layers", "expert parallel"]);
    for name in ["layer_00-model_00-model_states.pt", "layer_00_expert_3_mp_rank_00_model_states.pt"] {
        let folder = stage_1([0, 1, 2]).written();
        fs::write(folder.path().join(name), []).unwrap();
        says(&zero::open(folder.path()).unwrap_err(), Kind::Unsupported, &[name]);
    }
}

/// A run with more ranks left a file, or a rank failed to save one.
#[test]
fn another_number_of_files() {
    let mut more = stage_1([0, 1, 2]);
    let stale = more.files["zero_pp_rank_1_mp_rank_00_optim_states.pt"].clone();
    more.files.insert("zero_pp_rank_2_mp_rank_00_optim_states.pt".to_owned(), stale);
    let words = [
        "expected 2 optimizer files",
        "found 3",
        "data-parallel rank 2 and tensor-parallel rank 0 is too much",
    ];
    says(&more.refused(), Kind::Invalid, &words);
    let mut fewer = stage_1([0, 1, 2]);
    fewer.files.remove("zero_pp_rank_1_mp_rank_00_optim_states.pt");
    let words = [
        "expected 2 optimizer files",
        "found 1",
        "data-parallel rank 1 and tensor-parallel rank 0 is missing",
    ];
    says(&fewer.refused(), Kind::Invalid, &words);

    let mut models = checkpoint(vec![counting(&[3, 2], 0), counting(&[3, 2], 6)], json!({}));
    models.files.remove("mp_rank_01_model_states.pt");
    let words = ["expected 2 model files", "found 1", "tensor-parallel rank 1 is missing"];
    says(&models.refused(), Kind::Invalid, &words);
}

#[test]
fn a_stage_that_the_names_contradict() {
    let mut made = checkpoint(vec![counting(&[3, 2], 0)], json!({}));
    made.file("mp_rank_00_model_states.pt")["ds_config"] = json!({"zero_optimization": {"stage": 3}});
    let words = ["mp_rank_00_model_states.pt", "stage is 3, expected 2", "as the names of the files say"];
    says(&made.refused(), Kind::Invalid, &words);
}

/// No element, whatever the other axes say.
#[test]
fn huge_axes_beside_one_of_none() {
    let shape = [1 << 46, 1 << 46, 0];
    let (opened, _folder) = checkpoint(vec![numbers(&shape, &[])], json!({})).opened();
    let weights = &opened.unwrap().parts[&Kept::Weights];
    let shapes: Vec<&[u64]> = weights.layout.parameters().map(|(_, one)| &one.shape[..]).collect();
    assert_eq!(shapes, [shape]);
}

#[test]
fn files_of_stage_3_that_are_missing_or_too_many() {
    let without = |name: &str| {
        let folder = copied("zero_init");
        fs::remove_file(folder.path().join(name)).unwrap();
        zero::open(folder.path()).unwrap_err()
    };
    let words =
        ["expected 4 model files", "found 3", "data-parallel rank 1 and tensor-parallel rank 0 is missing"];
    says(&without("zero_pp_rank_1_mp_rank_00_model_states.pt"), Kind::Invalid, &words);
    let words =
        ["expected 2 model files", "found 1", "data-parallel rank 0 and tensor-parallel rank 0 is missing"];
    says(&without("zero_pp_rank_0_mp_rank_00_model_states.pt"), Kind::Invalid, &words);
    let words = ["expected 4 optimizer files", "found 3", "tensor-parallel rank 1 is missing"];
    says(&without("bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt"), Kind::Invalid, &words);

    let folder = copied("zero_init");
    let stale =
        |kind: &str, rank: u32| folder.path().join(format!("{kind}_rank_{rank}_mp_rank_00_model_states.pt"));
    fs::copy(stale("zero_pp", 0), stale("zero_pp", 5)).unwrap();
    let words = ["found 5", "data-parallel rank 5 and tensor-parallel rank 0 is too much"];
    says(&zero::open(folder.path()).unwrap_err(), Kind::Invalid, &words);
}

/// A copy of the files of a fixture.
fn copied(fixture: &str) -> tempfile::TempDir {
    let folder = scratch();
    for entry in fs::read_dir(own(&format!("zero/{fixture}/step2"))).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    folder
}

#[test]
fn files_of_two_steps() {
    let info = json!({"universal_checkpoint_version": 0.4});
    let mut torn = checkpoint(vec![counting(&[3, 2], 0), counting(&[3, 2], 6)], info);
    torn.file("mp_rank_01_model_states.pt")["global_steps"] = json!(8);
    says(&torn.refused(), Kind::Invalid, &["mp_rank_01", "global_steps is 8", "absent", "different steps"]);
    let mut torn = stage_1([0, 1, 2]);
    states(&mut torn, 1)["base_optimizer_state"]["state"]["0"]["step"] = json!(8);
    says(&torn.refused(), Kind::Invalid, &["zero_pp_rank_1", "step is 8,", "it is 7:"]);
}

/// A rank of the other group, all of whose files are of another step: each group agrees in itself.
#[test]
fn tensor_parallel_ranks_of_two_steps() {
    let mut made = stage_1([0, 1, 2]);
    let model = made.file("mp_rank_00_model_states.pt");
    model["mp_world_size"] = json!(2);
    model["universal_checkpoint_info"] =
        json!({"universal_checkpoint_version": 0.4, "tp_replicated_parameter_patterns": ["^[abc]$"]});
    let second = |name: &String| name.replace("mp_rank_00", "mp_rank_01");
    let copies: Vec<_> = made.files.iter().map(|(name, value)| (second(name), value.clone())).collect();
    made.files.extend(copies);
    assert!(made.opened().0.is_ok());
    for rank in 0..2 {
        let file = made.file(&format!("zero_pp_rank_{rank}_mp_rank_01_optim_states.pt"));
        file["optimizer_state_dict"]["base_optimizer_state"]["state"]["0"]["step"] = json!(8);
    }
    says(&made.refused(), Kind::Invalid, &["mp_rank_01_optim", "step is 8,", "mp_rank_00_optim", "it is 7:"]);
}

type Damage = fn(&mut Value);

#[test]
fn damaged_optimizer_files() {
    let damages: [(Damage, &[&str]); 14] = [
        (
            |states| drop(states.as_object_mut().unwrap().remove("partition_count")),
            &["no optimizer_state_dict.partition_count"],
        ),
        (
            |states| states["partition_count"] = json!("two"),
            &["optimizer_state_dict.partition_count is no list of numbers"],
        ),
        (|states| states["partition_count"] = json!([3]), &["partition_count is 3, expected 2"]),
        (|states| states["zero_stage"] = json!(4), &["zero_stage is 4, expected 1"]),
        (|states| states["zero_stage"] = json!(3), &["no optimizer_state_dict.fp32_flat_groups"]),
        (|states| *states = json!([]), &["optimizer_state_dict is no dictionary"]),
        (
            |states| states["single_partition_of_fp32_groups"] = json!(5),
            &["single_partition_of_fp32_groups is no list"],
        ),
        (
            |states| states["single_partition_of_fp32_groups"][0] = json!("x"),
            &["fp32_groups.0 is no flat tensor"],
        ),
        (
            |states| states["single_partition_of_fp32_groups"][0] = counting(&[7, 1], 0),
            &["fp32_groups.0 is no flat tensor"],
        ),
        (
            |states| states["single_partition_of_fp32_groups"][0] = counting(&[6], 0),
            &["the length of single_partition_of_fp32_groups.0 is 6, expected 7"],
        ),
        (
            |states| states["single_partition_of_fp32_groups"] = json!([]),
            &["the number of groups", "is 1, expected 0"],
        ),
        (
            |states| states["base_optimizer_state"]["state"]["0"]["exp_avg"] = counting(&[9], 0),
            &["the length of exp_avg of group 0 is 9, expected 10"],
        ),
        (
            |states| states["base_optimizer_state"]["param_groups"][0]["params"] = json!([-1]),
            &["base_optimizer_state.param_groups.0.params is no list of numbers"],
        ),
        (
            |states| states["param_slice_mappings"] = json!([{"c": {"start": 0}}]),
            &["no optimizer_state_dict.param_slice_mappings.0.c.numel"],
        ),
    ];
    for (damage, words) in damages {
        let mut made = stage_1([0, 1, 2]);
        damage(states(&mut made, 1));
        let error = made.refused();
        says(&error, Kind::Invalid, words);
        says(&error, Kind::Invalid, &["zero_pp_rank_1_mp_rank_00_optim_states.pt"]);
    }
    // One rank without a state that the others have leaves a hole.
    let mut made = stage_1([0, 1, 2]);
    states(&mut made, 1)["base_optimizer_state"]["state"] = json!({});
    states(&mut made, 0)["base_optimizer_state"]["state"]["0"]["step"] = Value::Null;
    says(&made.refused(), Kind::Invalid, &["c: no rank holds box"]);
}

#[test]
fn damaged_model_files() {
    let damages: [(Damage, Kind, &[&str]); 8] = [
        (|model| drop(model.as_object_mut().unwrap().remove("module")), Kind::Invalid, &["no module"]),
        (|model| model["module"] = json!(3), Kind::Invalid, &["module is no dictionary"]),
        (|model| model["param_shapes"] = Value::Null, Kind::Invalid, &["no param_shapes in the model file"]),
        (
            |model| model["param_shapes"][0]["a"] = json!([6]),
            Kind::Invalid,
            &["a: ", "shape [5]", "recorded as [6]"],
        ),
        (
            |model| model["param_shapes"][0]["a"] = json!([-1]),
            Kind::Invalid,
            &["param_shapes.0.a is no shape"],
        ),
        (
            |model| model["param_shapes"][0]["a"] = json!([1u64 << 40, 1u64 << 40]),
            Kind::OverBudget,
            &["param_shapes.0.a is"],
        ),
        (
            |model| model["param_shapes"][0]["a"] = json!(vec![1; 33]),
            Kind::OverBudget,
            &["param_shapes.0.a is 33"],
        ),
        (|model| model["dp_world_size"] = json!([]), Kind::Invalid, &["dp_world_size is no whole number"]),
    ];
    for (damage, kind, words) in damages {
        let mut made = stage_1([0, 1, 2]);
        damage(made.file("mp_rank_00_model_states.pt"));
        says(&made.refused(), kind, words);
    }
}

#[test]
fn a_tag_that_climbs_or_is_none() {
    for tag in ["../step2", "/etc", "step2/../..", "", "a\0b", "."] {
        let folder = scratch();
        fs::write(folder.path().join("latest"), tag).unwrap();
        says(
            &zero::open(folder.path()).unwrap_err(),
            Kind::Invalid,
            &["latest", "is no name of a folder below"],
        );
    }
    let folder = scratch();
    fs::write(folder.path().join("latest"), "x".repeat(5000)).unwrap();
    says(&zero::open(folder.path()).unwrap_err(), Kind::OverBudget, &["5000 bytes"]);
    fs::write(folder.path().join("latest"), "step9\n").unwrap();
    assert!(
        matches!(zero::open(folder.path()).unwrap_err(), FormatError::Io { path, .. } if path.ends_with("step9"))
    );
    says(&zero::open(scratch().path()).unwrap_err(), Kind::Invalid, &["no model states here"]);
    assert!(zero::open(Path::new("nowhere/at/all")).unwrap_err().kind().is_none());
}

/// Three elements of a state that is kept scaled cannot be moved as they are.
#[test]
fn states_of_scaled_shards() {
    let mut made = stage_1([0, 1, 2]);
    let whole = |scale: f64, count: u64| {
        json!({"logical_shape": [count], "ranks": {"0": {"shard_shape": [count], "pieces": [
            {"shape": [count], "source": [0, [1]], "dest": [0, [1]], "locations": [0], "scale": scale}]}}})
    };
    made.file("mp_rank_00_model_states.pt")["universal_checkpoint_info"] =
        json!({"affine_map": {"version": 1, "params": {"^b$": whole(0.5, 4), "^a$": whole(1.0, 5)}}});
    says(&made.refused(), Kind::Unsupported, &["b: its shards are scaled", "exp_avg"]);
}

/// A swapped sub-group has no element in its file.
#[test]
fn sub_groups_that_lie_elsewhere() {
    let model = json!({
        "module": {"w": numbers(&[0], &[])},
        "param_shapes": [{"w": [3]}],
        "mp_world_size": 1,
        "ds_config": {"zero_optimization": {"stage": 3}},
    });
    let optimizer = |master: Value| {
        json!({"optimizer_state_dict": {
            "zero_stage": 3, "partition_count": 1, "fp32_flat_groups": [master],
            "optimizer_state_dict": {"state": {}, "param_groups": [{"params": [0]}]},
        }})
    };
    let mut made = Made::default();
    made.files.insert("zero_pp_rank_0_mp_rank_00_model_states.pt".to_owned(), model);
    let name = "zero_pp_rank_0_mp_rank_00_optim_states.pt";
    made.files.insert(name.to_owned(), optimizer(numbers(&[0], &[])));
    says(&made.refused(), Kind::Unsupported, &[name, "sub-group 0 is empty here", "swapped"]);
    made.files.insert(name.to_owned(), optimizer(counting(&[2], 0)));
    says(&made.refused(), Kind::Invalid, &[name, "sub-group 0 has 2 elements a rank", "neither 1"]);
    made.files.insert(name.to_owned(), optimizer(counting(&[3], 0)));
    assert!(made.opened().0.is_ok());
    made.files.remove(name);
    says(&made.refused(), Kind::Invalid, &["no optimizer file"]);
}

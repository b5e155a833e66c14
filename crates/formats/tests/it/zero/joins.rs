//! How tensor-parallel shards join, by every rule: each rank's rows or columns are listed element by element here, and
//! the whole must count up from 0.

use reshard_formats::Kept;
use serde_json::{Value, json};

use super::made::{Made, numbers, numbers_of};

/// The shard that consists of these coordinates along an axis of a matrix that counts up.
fn picked(shape: [u64; 2], axis: usize, picked: &[u64]) -> Value {
    let [rows, columns] = shape;
    let all = |count: u64| (0..count).collect::<Vec<_>>();
    let (kept_rows, kept_columns) =
        if axis == 0 { (picked.to_vec(), all(columns)) } else { (all(rows), picked.to_vec()) };
    let values: Vec<u64> = kept_rows
        .iter()
        .flat_map(|row| kept_columns.iter().map(move |column| row * columns + column))
        .collect();
    numbers(&[kept_rows.len() as u64, kept_columns.len() as u64], &values)
}

/// A stage-0 checkpoint of one parameter `w`, whose shards are these.
pub(super) fn checkpoint(shards: Vec<Value>, info: Value) -> Made {
    let ranks = shards.len();
    let model = |shard| {
        json!({
            "module": {"w": shard},
            "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": ranks},
            "universal_checkpoint_info": info,
        })
    };
    Made::models(shards.into_iter().map(model))
}

fn joins(what: &str, shape: [u64; 2], axis: usize, ranks: &[&[u64]], info: Value) {
    let shards = ranks.iter().map(|rank| picked(shape, axis, rank)).collect();
    let (opened, _folder) = checkpoint(shards, info).opened();
    let opened = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
    let whole = numbers_of(&opened, &Kept::Weights);
    let counted = (0..shape[0] * shape[1]).collect::<Vec<_>>();
    assert_eq!(whole["w"], (shape.to_vec(), counted), "{what}");
}

#[test]
fn along_an_axis() {
    let rows: [&[u64]; 3] = [&[0, 1, 2], &[3, 4], &[]];
    joins("no pattern: rows", [5, 3], 0, &rows, json!({"universal_checkpoint_version": 0.4}));
    let columns: [&[u64]; 2] = [&[0, 1], &[2, 3, 4]];
    let info = json!({"parameter_with_row_parallelism_patterns": ["^w$"]});
    joins("row parallel: columns", [2, 5], 1, &columns, info);
    let info = json!({"parameter_with_row_parallelism_patterns": ["other", r"\w"]});
    joins("a regular expression", [2, 5], 1, &columns, info);
}

#[test]
fn of_replicas() {
    let whole: [&[u64]; 2] = [&[0, 1, 2], &[0, 1, 2]];
    for key in ["tp_replicated_parameter_patterns", "parameter_to_average_patterns"] {
        joins(key, [3, 2], 0, &whole, json!({key: ["^w$"]}));
    }
}

#[test]
fn of_parts_that_are_cut_each_on_its_own() {
    let halves: [&[u64]; 2] = [&[0, 1, 4, 5], &[2, 3, 6, 7]];
    let info = json!({"parameter_with_2_sub_params_cat_dim_0": ["^w$"]});
    joins("gate and up", [8, 3], 0, &halves, info);

    // q of 4, k of 2, v of 2 rows over 3 ranks: 2 1 1, 1 1 0, 1 0 1.
    let fused: [&[u64]; 3] = [&[0, 1, 4, 6], &[2, 5], &[3, 7]];
    let info = json!({
        "universal_checkpoint_version": 0.4,
        "parameter_with_sub_params": [{"patterns": ["^w$"], "shape": [[4, 2, 2], -1], "partition_dim": 0}],
        "sub_param_shard_widths": {"^w$": [[2, 1, 1], [1, 1, 0], [1, 0, 1]]},
    });
    joins("recorded widths", [8, 3], 0, &fused, info);

    let columns: [&[u64]; 2] = [&[0, 1, 4], &[2, 3, 5]];
    let info = json!({
        "universal_checkpoint_version": 0.4,
        "parameter_with_sub_params": [{"patterns": ["^w$"], "shape": [-1, [4, 2]], "partition_dim": 1}],
        "sub_param_shard_widths": {"^w$": [[2, 2], [1, 1]]},
    });
    joins("recorded widths of columns", [2, 6], 1, &columns, info);

    // Before version 0.4 three parts of two rows each, cut evenly.
    let even: [&[u64]; 2] = [&[0, 2, 4], &[1, 3, 5]];
    for shape in [json!([3, -1]), json!([[2, 2, 2], -1])] {
        let info = json!({
            "universal_checkpoint_version": 0.3,
            "parameter_with_sub_params": [{"patterns": ["^w$"], "shape": shape, "partition_dim": 0}],
        });
        joins("no widths", [6, 3], 0, &even, info);
    }
}

/// Box by box, in the shape of the parameter, and in a view of it that splits its rows.
#[test]
fn by_an_affine_map() {
    let piece = |shape: Value, source: Value, dest: Value, rank: u32| json!({"shape": shape, "source": source, "dest": dest, "locations": [rank]});
    let interleaved: [&[u64]; 2] = [&[0, 1, 4, 5], &[2, 3, 6, 7]];
    let info = json!({"affine_map": {"version": 1, "params": {"^w$": {
        "logical_shape": [8, 3],
        "ranks": {
            "0": {"shard_shape": [4, 3], "pieces": [
                piece(json!([2, 3]), json!([0, [3, 1]]), json!([0, [3, 1]]), 0),
                piece(json!([2, 3]), json!([12, [3, 1]]), json!([6, [3, 1]]), 0)]},
            "1": {"shard_shape": [4, 3], "pieces": [
                piece(json!([2, 3]), json!([6, [3, 1]]), json!([0, [3, 1]]), 1),
                piece(json!([2, 3]), json!([18, [3, 1]]), json!([6, [3, 1]]), 1)]},
        },
    }}}, "tp_replicated_parameter_patterns": ["^w$"]});
    joins("a map comes before every pattern", [8, 3], 0, &interleaved, info);

    let info = json!({"affine_map": {"version": 1, "params": {"^w$": {
        "logical_shape": [2, 4, 3],
        "ranks": {
            "0": {"shard_shape": [2, 2, 3], "pieces": [
                piece(json!([2, 2, 3]), json!([0, [12, 3, 1]]), json!([0, [6, 3, 1]]), 0)]},
            "1": {"shard_shape": [2, 2, 3], "pieces": [
                piece(json!([2, 2, 3]), json!([6, [12, 3, 1]]), json!([0, [6, 3, 1]]), 1)]},
        },
    }}}});
    joins("a map of two parts of four rows", [8, 3], 0, &interleaved, info);
}

/// Rows past the original vocabulary are padding, and hold anything: 90 and up here.
#[test]
fn of_a_padded_vocabulary() {
    let info = json!({"vocabulary_parameter_patterns": ["^w$"], "original_vocab_size": 4});
    let shards = vec![
        numbers(&[3, 2], &[0, 1, 2, 3, 4, 5]),
        numbers(&[3, 2], &[6, 7, 90, 91, 92, 93]),
        numbers(&[3, 2], &[94, 95, 96, 97, 98, 99]),
    ];
    let (opened, _folder) = checkpoint(shards, info).opened();
    let whole = numbers_of(&opened.unwrap(), &Kept::Weights);
    assert_eq!(whole["w"], (vec![4, 2], (0..8).collect()));
}

/// The trainer publishes what zero.Init left as a placeholder with no element; the patterns hold then.
#[test]
fn a_map_of_a_placeholder_says_nothing() {
    let none = json!({"shard_shape": [0], "pieces": []});
    let info = json!({
        "affine_map": {"version": 1, "params": {"^w$": {"logical_shape": [0], "ranks": {"0": none, "1": none}}}},
        "tp_replicated_parameter_patterns": ["^w$"],
    });
    joins("replicated", [3, 2], 0, &[&[0, 1, 2], &[0, 1, 2]], info);
}

//! Fused rows, vocabularies and stages against a second implementation, which works on whole tensors with numpy
//! (reshape, split, concatenate) and wrote down what each rank then holds.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::contents::{Cell, contents, engine, llama, rows, try_engine};
use crate::support::{list, number, numbers, string};

fn cases(kind: &str) -> Vec<Value> {
    let text = include_str!("../data/engine_rows.json");
    let all: Value = serde_json::from_str(text).unwrap();
    list(&all[kind]).to_vec()
}

/// The expected cells of a stack of runs `[name, first row, rows]`.
fn stacked(runs: &Value, tensor: &str, columns: u64) -> Vec<Cell> {
    let mut cells = Vec::new();
    for run in list(runs) {
        let [name, first, count] = list(run) else { panic!("not a run: {run}") };
        let module = match string(name) {
            name @ ("q" | "k" | "v") => format!("self_attn.{name}_proj"),
            name => format!("mlp.{name}_proj"),
        };
        let name = format!("model.layers.0.{module}.{tensor}");
        cells.extend(rows(&name, number(first)..number(first) + number(count), columns));
    }
    cells
}

#[test]
fn fused_qkv_lies_as_whole_tensor_operations_put_it() {
    let (mut checked, mut refused) = (0, BTreeSet::new());
    for case in cases("qkv") {
        let (heads, tp) = (number(&case["heads"]), number(&case["tp"]));
        let config = llama(json!({"num_attention_heads": heads, "num_key_value_heads": case["kv_heads"],
            "head_dim": case["head_dim"], "num_hidden_layers": 1, "intermediate_size": 112,
            "hidden_size": 3, "vocab_size": 448, "attention_bias": true, "mlp_bias": true}));
        let engines: &[(&str, &str)] = match string(&case["engine"]) {
            "megatron" => &[("megatron", "decoder.layers.0.self_attention.linear_qkv")],
            _ => &[
                ("vllm", "model.layers.0.self_attn.qkv_proj"),
                ("sglang", "model.layers.0.self_attn.qkv_proj"),
            ],
        };
        for (name, module) in engines {
            let config = if *name == "sglang" { without_mlp_bias(&case) } else { config.clone() };
            let topology = format!("{name}:tp={tp}");
            let made = try_engine(&config, &topology);
            let Some(ranks) = case["ranks"].as_array() else {
                let error = made.expect_err(&topology).to_string();
                assert!(
                    error.contains("num_attention_heads") || error.contains("num_key_value_heads"),
                    "{error}"
                );
                refused.insert((heads, tp));
                continue;
            };
            let found = contents(&made.unwrap().layout().unwrap());
            for (rank, runs) in (0..).zip(ranks) {
                let cells = |tensor: &str| &found[&(rank, format!("{module}.{tensor}"))];
                assert_eq!(*cells("weight"), stacked(runs, "weight", 3), "{case} {topology} rank {rank}");
                assert_eq!(*cells("bias"), stacked(runs, "bias", 1), "{case} {topology} rank {rank}");
            }
            checked += 1;
        }
    }
    assert!(checked >= 90 && refused.len() >= 10, "{checked} checked, refused {refused:?}");
}

fn without_mlp_bias(case: &Value) -> reshard_parallel::model::ModelConfig {
    llama(json!({"num_attention_heads": case["heads"], "num_key_value_heads": case["kv_heads"],
        "head_dim": case["head_dim"], "num_hidden_layers": 1, "intermediate_size": 112,
        "hidden_size": 3, "vocab_size": 448, "attention_bias": true}))
}

#[test]
fn gate_and_up_lie_as_whole_tensor_operations_put_them() {
    for case in cases("gate_up") {
        let (inner, tp) = (number(&case["inner"]), number(&case["tp"]));
        let config = llama(json!({"num_attention_heads": 48, "num_key_value_heads": 48, "head_dim": 1,
            "intermediate_size": inner, "num_hidden_layers": 1, "attention_bias": true, "mlp_bias": true,
            "vocab_size": 192}));
        for (name, up, down) in [
            ("vllm", "model.layers.0.mlp.gate_up_proj", "model.layers.0.mlp.down_proj"),
            ("megatron", "decoder.layers.0.mlp.linear_fc1", "decoder.layers.0.mlp.linear_fc2"),
        ] {
            let made = try_engine(&config, &format!("{name}:tp={tp}"));
            let Some(ranks) = case["ranks"].as_array() else {
                let error = made.expect_err(name).to_string();
                assert!(error.contains(&format!("intermediate_size = {inner} over tp={tp}")), "{error}");
                continue;
            };
            let found = contents(&made.unwrap().layout().unwrap());
            for (rank, runs) in (0..).zip(ranks) {
                assert_eq!(
                    found[&(rank, format!("{up}.weight"))],
                    stacked(runs, "weight", 3),
                    "{case} {name}"
                );
                assert_eq!(found[&(rank, format!("{up}.bias"))], stacked(runs, "bias", 1), "{case} {name}");
                // The matching layer: columns of the weight, all of the bias.
                let (width, first) = (inner / tp, u64::from(rank) * (inner / tp));
                let columns = (0..3).flat_map(|row| row * inner + first..row * inner + first + width);
                let parameter = "model.layers.0.mlp.down_proj.weight";
                let expected: Vec<Cell> = columns.map(|flat| Cell::Element(parameter.into(), flat)).collect();
                assert_eq!(found[&(rank, format!("{down}.weight"))], expected, "{case} {name} rank {rank}");
                let bias = rows("model.layers.0.mlp.down_proj.bias", 0..3, 1);
                assert_eq!(found[&(rank, format!("{down}.bias"))], bias);
            }
        }
    }
}

#[test]
fn vocabularies_are_padded_with_zeros_as_the_engines_pad() {
    let names = |engine: &str| match engine {
        "megatron" => ["embedding.word_embeddings.weight", "output_layer.weight"],
        _ => ["model.embed_tokens.weight", "lm_head.weight"],
    };
    for case in cases("vocabulary") {
        let (vocabulary, tp, name) = (number(&case["vocab"]), number(&case["tp"]), string(&case["engine"]));
        let config = llama(json!({"num_attention_heads": 240, "num_key_value_heads": 240, "head_dim": 1,
            "intermediate_size": 240, "hidden_size": 1, "num_hidden_layers": 1, "vocab_size": vocabulary}));
        let made = try_engine(&config, &format!("{name}:tp={tp}"));
        if case["padded"].is_null() {
            let error = made.expect_err(name).to_string();
            assert!(name == "vllm" && error.contains("vocab_size"), "{error}");
            continue;
        }
        let height = number(&case["padded"]) / tp;
        let found = contents(&made.unwrap().layout().unwrap());
        for (rank, real) in (0..).zip(list(&case["real"])) {
            let real = numbers(real);
            for (tensor, parameter) in
                names(name).into_iter().zip(["model.embed_tokens.weight", "lm_head.weight"])
            {
                let mut expected = rows(parameter, real[0]..real[1], 1);
                expected.resize(height as usize, Cell::Padding(vec![0, 0]));
                assert_eq!(found[&(rank, tensor.to_owned())], expected, "{case} rank {rank} {tensor}");
            }
        }
    }
}

#[test]
fn megatron_stages_hold_the_layers_that_its_offsets_say() {
    for case in cases("stages") {
        let (layers, pp, vp) = (number(&case["layers"]), number(&case["pp"]), number(&case["vp"]));
        let given = case["given"].as_array().map(|_| numbers(&case["given"]));
        let dotted = |given: &Vec<u64>| {
            let sizes: Vec<String> = given.iter().map(u64::to_string).collect();
            format!(",layers={}", sizes.join("."))
        };
        let topology = format!("megatron:pp={pp},vp={vp}{}", given.as_ref().map(dotted).unwrap_or_default());
        let engine = engine(&llama(json!({"num_hidden_layers": layers})), &topology);
        let mut seen = BTreeSet::new();
        for (slot, first) in engine.topology().slots().zip(list(&case["first"])) {
            let found = layer_of_norms(&engine.tensors(slot), engine.parameters());
            for (chunk, first) in numbers(first).into_iter().enumerate() {
                let count = given.as_ref().map_or(layers / pp / vp, |given| given[slot.0 as usize]);
                for local in 0..count {
                    let prefix = if vp > 1 { format!("model{chunk}.") } else { String::new() };
                    let name =
                        format!("{prefix}decoder.layers.{local}.self_attention.linear_qkv.layer_norm_weight");
                    let expected = format!("model.layers.{}.input_layernorm.weight", first + local);
                    assert_eq!(
                        found.iter().find(|(tensor, _)| *tensor == name).unwrap().1,
                        expected,
                        "{case}"
                    );
                    assert!(seen.insert(expected), "{case}");
                }
            }
        }
        assert_eq!(seen.len() as u64, layers, "{case}");
    }
}

/// Each tensor that holds an input normalisation, and which.
fn layer_of_norms(
    tensors: &[reshard_parallel::engine::EngineTensor],
    parameters: &[reshard_parallel::model::ModelParameter],
) -> Vec<(String, String)> {
    let held =
        tensors.iter().map(|tensor| (tensor.name.clone(), parameters[tensor.held[0].parameter].name.clone()));
    held.filter(|(_, parameter)| parameter.contains("input_layernorm")).collect()
}

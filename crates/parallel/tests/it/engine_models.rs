//! Published models at the sizes that people run: every stored row by the formulas, every layout checked.
//!
//! The formulas are written here a second time, from one stored row to the logical row that it holds.

use reshard_parallel::engine::{DenseEngine, EngineTensor};
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::Slot;

use crate::contents::engine;
use crate::support::ground_truth;

const SIZES: [u64; 5] = [1, 2, 4, 8, 16];

fn models() -> Vec<(&'static str, ModelConfig)> {
    let read = |model: &'static str| {
        let config = ModelConfig::from_json(&ground_truth(&format!("models/{model}.json"))?).unwrap();
        Some((model, config))
    };
    let models: Vec<_> = ["Qwen3-8B", "Llama-3.1-70B"].into_iter().filter_map(read).collect();
    assert!(!models.is_empty());
    models
}

/// The parameter and the row that each row of a tensor holds; columns are not looked at.
fn rows(engine: &DenseEngine, tensor: &EngineTensor) -> Vec<Option<(String, u64)>> {
    let mut found = vec![None; tensor.shape[0] as usize];
    for held in &tensor.held {
        let name = &engine.parameters()[held.parameter].name;
        for placed in &held.boxes {
            for row in 0..placed.region.extent()[0] {
                let place = &mut found[(placed.at[0] + row) as usize];
                assert!(place.replace((name.clone(), placed.region.origin()[0] + row)).is_none());
            }
        }
    }
    found
}

fn tensor<'a>(tensors: &'a [EngineTensor], name: &str) -> &'a EngineTensor {
    tensors.iter().find(|tensor| tensor.name == name).unwrap_or_else(|| panic!("no {name}"))
}

fn parameter(layer: u32, module: &str) -> String {
    format!("model.layers.{layer}.{module}.weight")
}

/// Row `row` of rank `rank` of vLLM's and SGLang's `qkv_proj`.
fn engine_qkv_row(config: &ModelConfig, layer: u32, tp: u64, rank: u64, row: u64) -> (String, u64) {
    let (heads, kv, d) = (config.num_attention_heads(), config.num_key_value_heads(), config.head_dim());
    let local_kv = (kv / tp).max(1);
    let (q_rows, kv_rows) = (heads / tp * d, local_kv * d);
    if row < q_rows {
        return (parameter(layer, "self_attn.q_proj"), rank * q_rows + row);
    }
    let module = if row < q_rows + kv_rows { "self_attn.k_proj" } else { "self_attn.v_proj" };
    let within = (row - q_rows) % kv_rows;
    // The head that the first of this rank's query heads attends with.
    let head = rank * (heads / tp) / (heads / kv);
    (parameter(layer, module), head * d + within)
}

/// Row `row` of the whole of Megatron's `linear_qkv`.
fn megatron_qkv_row(config: &ModelConfig, layer: u32, row: u64) -> (String, u64) {
    let (heads, groups, d) = (config.num_attention_heads(), config.num_key_value_heads(), config.head_dim());
    let each = heads / groups;
    let width = (each + 2) * d;
    let (group, offset) = (row / width, row % width);
    if offset < each * d {
        return (parameter(layer, "self_attn.q_proj"), (group * each + offset / d) * d + offset % d);
    }
    let module = if offset < (each + 1) * d { "self_attn.k_proj" } else { "self_attn.v_proj" };
    (parameter(layer, module), group * d + offset % d)
}

fn gate_up_row(config: &ModelConfig, layer: u32, tp: u64, rank: u64, row: u64) -> (String, u64) {
    let own = config.intermediate_size() / tp;
    let module = if row < own { "mlp.gate_proj" } else { "mlp.up_proj" };
    (parameter(layer, module), rank * own + row % own)
}

#[test]
fn every_fused_row_of_published_models_is_where_the_formulas_say() {
    for (model, config) in models() {
        let (hidden, layers) = (config.hidden_size(), config.num_hidden_layers());
        for tp in SIZES {
            for name in ["vllm", "sglang", "megatron"] {
                let engine = engine(&config, &format!("{name}:tp={tp}"));
                for (rank, slot) in (0..).zip(engine.topology().slots()) {
                    let tensors = engine.tensors(slot);
                    for layer in [0, 1, layers - 1] {
                        let (qkv, gate_up) = match name {
                            "megatron" => ("self_attention.linear_qkv", "mlp.linear_fc1"),
                            _ => ("self_attn.qkv_proj", "mlp.gate_up_proj"),
                        };
                        let block = match name {
                            "megatron" => format!("decoder.layers.{layer}"),
                            _ => format!("model.layers.{layer}"),
                        };
                        let found = tensor(&tensors, &format!("{block}.{qkv}.weight"));
                        assert_eq!(found.shape[1], hidden);
                        let first = rank * found.shape[0];
                        for (row, held) in (0..).zip(rows(&engine, found)) {
                            let expected = match name {
                                "megatron" => megatron_qkv_row(&config, layer, first + row),
                                _ => engine_qkv_row(&config, layer, tp, rank, row),
                            };
                            assert_eq!(held, Some(expected), "{model} {name} tp={tp} rank {rank} row {row}");
                        }
                        let found = tensor(&tensors, &format!("{block}.{gate_up}.weight"));
                        assert_eq!(found.shape, [2 * config.intermediate_size() / tp, hidden]);
                        for (row, held) in (0..).zip(rows(&engine, found)) {
                            let expected = gate_up_row(&config, layer, tp, rank, row);
                            assert_eq!(held, Some(expected), "{model} {name} tp={tp} rank {rank} row {row}");
                        }
                    }
                }
            }
        }
    }
}

/// Bytes of all ranks: what is cut once, what is whole or copied as often as it is held, and the padding.
#[test]
fn layouts_of_published_models_hold_together_and_weigh_what_they_should() {
    for (model, config) in models() {
        let volume = |module: &str| -> u64 {
            let of_layer = |p: &&reshard_parallel::model::ModelParameter| p.name.contains(module);
            config.parameters().iter().filter(of_layer).map(|p| p.shape.iter().product::<u64>()).sum()
        };
        let norms = volume("norm");
        let kv = volume("k_proj") + volume("v_proj");
        let vocabulary = 2 * config.vocab_size() * config.hidden_size();
        let cut = volume("") - norms - kv - vocabulary;
        for tp in SIZES {
            for name in ["vllm", "sglang", "megatron"] {
                let engine = engine(&config, &format!("{name}:tp={tp}"));
                let layout = engine.layout().unwrap();
                let stored: u64 = layout.places().storages.iter().map(|storage| storage.length.0).sum();
                let (copies, multiple) = match name {
                    "megatron" => (1, 128 * tp),
                    _ => ((tp / config.num_key_value_heads()).max(1), 64),
                };
                let padded = 2 * config.vocab_size().next_multiple_of(multiple) * config.hidden_size();
                assert_eq!(stored, 2 * (cut + tp * norms + copies * kv + padded), "{model} {name} tp={tp}");
                // One geometry a role and rank, whatever the number of layers.
                assert!(layout.geometry_count() as u64 <= 15 * tp, "{model} {name} tp={tp}");
            }
        }
        assert_eq!(
            engine(&config, "hf").layout().unwrap().places().storages.len(),
            config.parameters().len()
        );
    }
}

#[test]
fn stages_of_published_models_hold_together() {
    for (model, config) in models() {
        for topology in
            ["vllm:tp=4,pp=4,dp=2", "megatron:tp=8,pp=4", "megatron:tp=2,pp=2,vp=2,dp=2", "vllm:tp=16,pp=3"]
        {
            let engine = engine(&config, topology);
            assert_eq!(engine.layout().unwrap().world(), engine.topology().world(), "{model} {topology}");
        }
    }
}

/// Sixteen ranks of Qwen3-8B: 512 rows a rank, query heads 10 and 11 and key-value head 2 on rank 5, and on rank 4.
#[test]
fn the_worked_numbers_of_qwen3_8b() {
    let (_, config) = models().remove(0);
    let vllm = engine(&config, "vllm:tp=16");
    let name = "model.layers.7.self_attn.qkv_proj.weight";
    let held = |engine: &DenseEngine, slot: u32| {
        let tensors = engine.tensors(Slot(slot));
        let found = tensor(&tensors, name);
        let boxes = found
            .held
            .iter()
            .map(|held| (held.boxes[0].region.origin()[0], held.boxes[0].region.extent()[0]));
        (found.shape.clone(), boxes.collect::<Vec<_>>())
    };
    assert_eq!(held(&vllm, 5), (vec![512, 4096], vec![(10 * 128, 256), (2 * 128, 128), (2 * 128, 128)]));
    assert_eq!(held(&vllm, 4).1[1], (2 * 128, 128));
    // The vocabulary: Megatron pads 151936 to 152576 rows over eight ranks, vLLM and SGLang not at all.
    let rank = |engine: &DenseEngine, slot: u32, name: &str| {
        let tensors = engine.tensors(Slot(slot));
        let found = tensor(&tensors, name);
        let region = &found.held[0].boxes[0].region;
        (found.shape[0], found.padding_rows, region.origin()[0], region.end(0))
    };
    let megatron = engine(&config, "megatron:tp=8");
    assert_eq!(rank(&megatron, 7, "output_layer.weight"), (19_072, 640, 133_504, 151_936));
    assert_eq!(rank(&engine(&config, "vllm:tp=8"), 1, "lm_head.weight"), (18_992, 0, 18_992, 37_984));
}

/// 4,096 ranks are laid out and checked in the time of a unit test.
#[test]
fn four_thousand_ranks_are_laid_out() {
    let (_, config) = models().remove(0);
    for topology in ["vllm:tp=16,dp=256", "megatron:tp=8,pp=4,dp=128"] {
        let layout = engine(&config, topology).layout().unwrap();
        assert_eq!(layout.world(), 4096);
    }
}

//! Names, biases, tied heads, stages and refusals of engines, and reported bugs as cases.

use std::collections::BTreeSet;

use reshard_layout::Rank;
use reshard_parallel::Category;
use reshard_parallel::engine::{DenseEngine, Engine};
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::{Slot, Topology};
use reshard_parallel::zero::ZeroOptions;
use serde_json::json;

use crate::contents::{Cell, contents, engine, llama, refusal, rows};

/// `name [shape] <- parameters` of each tensor of a rank.
fn listed(engine: &DenseEngine, slot: u32) -> String {
    let mut text = String::new();
    for tensor in engine.tensors(Slot(slot)) {
        let names = tensor.held.iter().map(|held| engine.parameters()[held.parameter].name.as_str());
        let padding =
            if tensor.padding_rows > 0 { format!(" + {} rows", tensor.padding_rows) } else { String::new() };
        let names = names.collect::<Vec<_>>().join(", ");
        text += &format!("{} {:?} {} <- {names}{padding}\n", tensor.name, tensor.shape, tensor.dtype);
    }
    text
}

fn qwen3(changes: serde_json::Value) -> ModelConfig {
    let mut all = json!({"model_type": "qwen3"});
    all.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    llama(all)
}

#[test]
fn tensors_have_the_names_that_the_engines_give_them() {
    let biases =
        json!({"attention_bias": true, "mlp_bias": true, "num_hidden_layers": 1, "intermediate_size": 8});
    let one = json!({"attention_bias": true, "num_hidden_layers": 1, "intermediate_size": 8});
    let mut text = String::new();
    for (config, topology, slots) in [
        (qwen3(json!({})), "vllm:tp=2,pp=2", vec![0, 3]),
        (llama(biases.clone()), "vllm:tp=2", vec![1]),
        (qwen3(one), "sglang:tp=4", vec![2]),
        (qwen3(json!({})), "megatron:tp=2,pp=2", vec![0, 3]),
        (llama(biases), "megatron:tp=4", vec![1]),
        (qwen3(json!({"num_hidden_layers": 4, "tie_word_embeddings": true})), "megatron:pp=2,vp=2", vec![1]),
        (qwen3(json!({"num_hidden_layers": 1, "tie_word_embeddings": true})), "hf", vec![0]),
    ] {
        let engine = engine(&config, topology);
        for slot in slots {
            text += &format!("{topology} slot {slot}\n{}\n", listed(&engine, slot));
        }
    }
    insta::assert_snapshot!(text);
}

/// A storage a tensor: what a binding looks up is what the list says.
#[test]
fn storages_are_the_listed_tensors() {
    let config = qwen3(json!({"num_hidden_layers": 4, "intermediate_size": 8}));
    for topology in
        ["vllm:tp=4,pp=2,copies=2,first=3", "sglang:tp=2", "megatron:tp=2,pp=2,vp=2,dp=2", "hf:first=5"]
    {
        let engine = engine(&config, topology);
        let layout = engine.layout().unwrap();
        for slot in engine.topology().slots() {
            let rank = engine.topology().rank(slot);
            let stored: Vec<(String, u64)> = layout
                .places()
                .of_rank(rank)
                .map(|(_, storage)| (storage.name.clone(), storage.length.0))
                .collect();
            let tensors = engine.tensors(slot);
            let bytes = |shape: &[u64]| 2 * shape.iter().product::<u64>();
            let expected: Vec<(String, u64)> =
                tensors.iter().map(|tensor| (tensor.name.clone(), bytes(&tensor.shape))).collect();
            assert_eq!(stored, expected, "{topology} rank {rank}");
        }
    }
}

#[test]
fn a_tied_head_is_stored_where_the_engines_store_it() {
    let config = llama(json!({"tie_word_embeddings": true}));
    let holders = |topology: &str| -> BTreeSet<(u32, String)> {
        let found = contents(&engine(&config, topology).layout().unwrap());
        let embedding =
            |cells: &Vec<Cell>| matches!(&cells[0], Cell::Element(name, _) if name.contains("embed"));
        found.into_iter().filter(|(_, cells)| embedding(cells)).map(|(at, _)| at).collect()
    };
    let expected = |list: &[(u32, &str)]| -> BTreeSet<(u32, String)> {
        list.iter().map(|(rank, name)| (*rank, (*name).to_owned())).collect()
    };
    assert_eq!(holders("hf"), expected(&[(0, "model.embed_tokens.weight")]));
    assert_eq!(holders("sglang"), expected(&[(0, "model.embed_tokens.weight")]));
    let vllm = [(0, "model.embed_tokens.weight"), (1, "model.embed_tokens.weight")];
    assert_eq!(holders("vllm:pp=2"), expected(&vllm));
    assert_eq!(holders("megatron"), expected(&[(0, "embedding.word_embeddings.weight")]));
    let megatron = [(0, "embedding.word_embeddings.weight"), (1, "output_layer.weight")];
    assert_eq!(holders("megatron:pp=2"), expected(&megatron));
    // Either name finds the one parameter.
    let layout = engine(&config, "megatron:pp=2").layout().unwrap();
    assert_eq!(layout.find("lm_head.weight"), layout.find("model.embed_tokens.weight"));
}

/// Layers of each stage, by vLLM's rule: its source's own examples, 22 over 4, 5 over 3, 4 over 3, 3 over 2.
#[test]
fn vllm_gives_what_is_over_to_the_middle_stages() {
    for (layers, pp, expected) in [
        (8, "pp=4", vec![2, 2, 2, 2]),
        (22, "pp=4", vec![5, 6, 6, 5]),
        (5, "pp=3", vec![2, 2, 1]),
        (4, "pp=3", vec![1, 2, 1]),
        (3, "pp=2", vec![2, 1]),
        (5, "pp=2,layers=1.4", vec![1, 4]),
    ] {
        let engine = engine(&llama(json!({"num_hidden_layers": layers})), &format!("vllm:{pp}"));
        let count =
            |slot| engine.tensors(slot).iter().filter(|t| t.name.ends_with("qkv_proj.weight")).count();
        assert_eq!(engine.topology().slots().map(count).collect::<Vec<_>>(), expected, "{layers} over {pp}");
    }
}

#[test]
fn what_an_engine_refuses_is_named() {
    let cases = [
        (llama(json!({"num_attention_heads": 6})), "vllm:tp=4"),
        (llama(json!({"num_attention_heads": 12, "num_key_value_heads": 4})), "sglang:tp=6"),
        (llama(json!({"num_attention_heads": 12, "num_key_value_heads": 4})), "megatron:tp=6"),
        (llama(json!({"num_attention_heads": 28, "num_key_value_heads": 4})), "megatron:tp=8"),
        (llama(json!({"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 1})), "megatron:tp=4"),
        (
            llama(json!({"num_attention_heads": 5, "num_key_value_heads": 5, "intermediate_size": 5})),
            "vllm:tp=5",
        ),
        (qwen3(json!({"attention_bias": true})), "vllm"),
        (llama(json!({"mlp_bias": true})), "sglang"),
        (llama(json!({"attention_bias": true})), "megatron"),
        (llama(json!({"mlp_bias": true})), "megatron"),
        (llama(json!({})), "vllm:pp=3"),
        (llama(json!({})), "vllm:pp=2,layers=2.1"),
        (llama(json!({})), "megatron:pp=2,layers=2.2"),
        (llama(json!({"num_hidden_layers": 8})), "megatron:pp=2,vp=3"),
    ];
    let text: Vec<String> =
        cases.iter().map(|(config, topology)| format!("{topology}: {}", refusal(config, topology))).collect();
    insta::assert_snapshot!(text.join("\n"));
}

/// Which rows of q, k and v (of one column) a tensor holds, as `q3.1`: row 1 of query head 3.
fn heads(cells: &[Cell], head_dim: u64, columns: u64) -> Vec<String> {
    let row = |cells: &[Cell]| match &cells[0] {
        Cell::Element(name, flat) => {
            let part = name.split("self_attn.").nth(1).unwrap().chars().next().unwrap();
            let row = flat / columns;
            format!("{part}{}.{}", row / head_dim, row % head_dim)
        }
        Cell::Padding(_) => panic!("padding among heads"),
    };
    cells.chunks(columns as usize).map(row).collect()
}

const MEGATRON_QKV: &str = "decoder.layers.0.self_attention.linear_qkv.weight";

/// L01, also the worked example of four heads and two groups over four ranks.
#[test]
fn l01_query_groups_fewer_than_ranks_are_cut_inside_heads_and_not_copied() {
    let config = llama(json!({"num_attention_heads": 8, "head_dim": 4, "intermediate_size": 8}));
    let found = contents(&engine(&config, "megatron:tp=8").layout().unwrap());
    let expected = [
        "q0.0 q0.1 q0.2 q0.3 q1.0 q1.1",
        "q1.2 q1.3 q2.0 q2.1 q2.2 q2.3",
        "q3.0 q3.1 q3.2 q3.3 k0.0 k0.1",
        "k0.2 k0.3 v0.0 v0.1 v0.2 v0.3",
        "q4.0 q4.1 q4.2 q4.3 q5.0 q5.1",
        "q5.2 q5.3 q6.0 q6.1 q6.2 q6.3",
        "q7.0 q7.1 q7.2 q7.3 k1.0 k1.1",
        "k1.2 k1.3 v1.0 v1.1 v1.2 v1.3",
    ];
    for (rank, expected) in (0..).zip(expected) {
        assert_eq!(heads(&found[&(rank, MEGATRON_QKV.to_owned())], 4, 3).join(" "), expected, "rank {rank}");
    }
    let found = contents(&engine(&llama(json!({"intermediate_size": 4})), "megatron:tp=4").layout().unwrap());
    for (rank, expected) in (0..).zip([
        "q0.0 q0.1 q1.0 q1.1",
        "k0.0 k0.1 v0.0 v0.1",
        "q2.0 q2.1 q3.0 q3.1",
        "k1.0 k1.1 v1.0 v1.1",
    ]) {
        assert_eq!(heads(&found[&(rank, MEGATRON_QKV.to_owned())], 2, 3).join(" "), expected, "rank {rank}");
    }
    // The reported size: 8704 rows, 1088 a rank.
    let reported =
        json!({"num_attention_heads": 64, "head_dim": 128, "hidden_size": 1, "intermediate_size": 8});
    let large = engine(&llama(reported), "megatron:tp=8");
    let qkv = large.tensors(Slot(3)).into_iter().find(|tensor| tensor.name == MEGATRON_QKV).unwrap();
    assert_eq!(qkv.shape, [1088, 1]);
    assert!(large.layout().is_ok());
}

/// L02: copies of a key-value head stand on consecutive ranks, and as many ranks as heads hold no copy.
#[test]
fn l02_copies_of_key_value_heads_are_consecutive() {
    let config = llama(json!({"num_attention_heads": 4, "intermediate_size": 4, "hidden_size": 1}));
    for name in ["vllm", "sglang"] {
        let keys = |tp: u32| -> Vec<Vec<String>> {
            let found = contents(&engine(&config, &format!("{name}:tp={tp}")).layout().unwrap());
            let tensor = "model.layers.0.self_attn.qkv_proj.weight";
            let of_rank = |rank| heads(&found[&(rank, tensor.to_owned())], 2, 1);
            (0..tp)
                .map(|rank| of_rank(rank).into_iter().filter(|row| row.starts_with('k')).collect())
                .collect()
        };
        assert_eq!(keys(4), [["k0.0", "k0.1"], ["k0.0", "k0.1"], ["k1.0", "k1.1"], ["k1.0", "k1.1"]]);
        assert_eq!(keys(2), [["k0.0", "k0.1"], ["k1.0", "k1.1"]]);
        // Copies are found, not declared: the parameter still has four rows.
        let layout = engine(&config, &format!("{name}:tp=4")).layout().unwrap();
        let key = layout.find("model.layers.0.self_attn.k_proj.weight").unwrap();
        assert_eq!(layout.parameter(key).shape.as_slice(), [4, 1]);
        assert_eq!(layout.instances(key).len(), 4);
    }
}

/// L03: four heads over eight ranks are copied, head by head; over six they are refused, with the numbers.
#[test]
fn l03_heads_are_copied_or_refused_never_cut() {
    let config = |heads: u64| {
        let wide = json!({"num_attention_heads": heads, "num_key_value_heads": 4, "head_dim": 128,
            "hidden_size": 1, "intermediate_size": 24});
        llama(wide)
    };
    let layout = engine(&config(32), "vllm:tp=8").layout().unwrap();
    let key = layout.find("model.layers.0.self_attn.k_proj.weight").unwrap();
    let held: Vec<(u32, u64, u64)> = layout
        .pieces_of(key)
        .map(|piece| (piece.rank.0, piece.region.origin()[0], piece.region.extent()[0]))
        .collect();
    let expected: Vec<(u32, u64, u64)> = (0..8).map(|rank| (rank, u64::from(rank) / 2 * 128, 128)).collect();
    assert_eq!(held, expected);
    let text = refusal(&config(12), "vllm:tp=6");
    assert!(
        text.contains("num_key_value_heads = 4") && text.contains("tp=6") && text.contains("128"),
        "{text}"
    );
}

/// L09: gate and up are each cut; what is refused is F, not 2F.
#[test]
fn l09_gate_and_up_are_cut_each_on_its_own() {
    for (name, tensor) in [
        ("vllm", "model.layers.0.mlp.gate_up_proj.weight"),
        ("megatron", "decoder.layers.0.mlp.linear_fc1.weight"),
    ] {
        let topology = format!("{name}:tp=2");
        let config = llama(json!({"intermediate_size": 4, "hidden_size": 1}));
        let found = contents(&engine(&config, &topology).layout().unwrap());
        for rank in 0..2 {
            let own = 2 * u64::from(rank)..2 * u64::from(rank) + 2;
            let mut expected = rows("model.layers.0.mlp.gate_proj.weight", own.clone(), 1);
            expected.extend(rows("model.layers.0.mlp.up_proj.weight", own, 1));
            assert_eq!(found[&(rank, tensor.to_owned())], expected, "{name} rank {rank}");
        }
        let text = refusal(&llama(json!({"intermediate_size": 3})), &topology);
        assert!(text.contains("intermediate_size = 3") && !text.contains('6'), "{text}");
    }
}

/// L12: only families whose order of rows is known have a layout.
#[test]
fn l12_an_unknown_family_has_no_default_order() {
    for family in ["qwen2", "phi3", "bloom", "falcon"] {
        let text = format!(r#"{{"model_type": "{family}", "hidden_size": 4}}"#);
        let error = ModelConfig::from_json(&text).unwrap_err();
        assert_eq!(error.category(), Category::Unsupported);
        assert!(error.to_string().contains(family), "{error}");
    }
}

/// L22: the height comes from the configuration once, whatever is cut.
#[test]
fn l22_a_global_height_is_not_multiplied_again() {
    for (topology, tensor) in [
        ("megatron:tp=2,pad=1", "embedding.word_embeddings.weight"),
        ("megatron:tp=2,pad=6", "output_layer.weight"),
    ] {
        let engine = engine(&llama(json!({"vocab_size": 12})), topology);
        for slot in engine.topology().slots() {
            let found = engine.tensors(slot).into_iter().find(|found| found.name == tensor).unwrap();
            assert_eq!((found.shape, found.padding_rows), (vec![6, 3], 0), "{topology}");
        }
    }
}

/// L23, heights: Megatron pads 50257 rows to another height for each number of ranks.
#[test]
fn l23_megatron_heights_depend_on_the_ranks() {
    for (tp, height) in [(1, 50_304), (2, 50_432), (4, 50_688), (8, 51_200)] {
        let config = llama(json!({"vocab_size": 50_257, "num_attention_heads": 8, "intermediate_size": 8}));
        let engine = engine(&config, &format!("megatron:tp={tp}"));
        let rows = |slot| engine.tensors(slot)[0].shape[0];
        assert_eq!(engine.topology().slots().map(rows).sum::<u64>(), height, "tp={tp}");
    }
    let error = ModelConfig::from_json(
        r#"{"model_type": "llama", "hidden_size": 4, "num_attention_heads": 1,
        "num_hidden_layers": 1, "intermediate_size": 4}"#,
    );
    assert!(error.unwrap_err().to_string().contains("vocab_size"));
}

/// L24: 49159 rows over two ranks, and a height that only the head would not need.
#[test]
fn l24_padding_is_counted_in_rows_of_each_rank() {
    for (vocabulary, shapes) in [(49_159, [(24_608, 0), (24_608, 57)]), (32_008, [(16_032, 0), (16_032, 56)])]
    {
        let engine = engine(&llama(json!({"vocab_size": vocabulary})), "vllm:tp=2");
        for (slot, (height, padding)) in engine.topology().slots().zip(shapes) {
            let tensors = engine.tensors(slot);
            for name in ["model.embed_tokens.weight", "lm_head.weight"] {
                let found = tensors.iter().find(|found| found.name == name).unwrap();
                assert_eq!((found.shape[0], found.padding_rows), (height, padding), "{vocabulary} {name}");
            }
        }
    }
}

/// L26: five layers on stages of three and two; local numbers start anew; unequal stages are never assumed.
#[test]
fn l26_every_layer_is_on_one_stage() {
    let config = |layers: u32| llama(json!({"num_hidden_layers": layers}));
    for (layers, topology, expected) in [
        (5, "megatron:pp=2,layers=3.2", vec![vec![0, 1, 2], vec![3, 4]]),
        (4, "megatron:pp=2", vec![vec![0, 1], vec![2, 3]]),
        (10, "megatron:pp=4,layers=2.3.3.2", vec![vec![0, 1], vec![2, 3, 4], vec![5, 6, 7], vec![8, 9]]),
    ] {
        let engine = engine(&config(layers), topology);
        for (slot, expected) in engine.topology().slots().zip(expected) {
            let tensors = engine.tensors(slot);
            let mut found = Vec::new();
            for local in 0..expected.len() {
                let name = format!("decoder.layers.{local}.mlp.linear_fc2.weight");
                let tensor = tensors.iter().find(|tensor| tensor.name == name).unwrap();
                found.push(engine.parameters()[tensor.held[0].parameter].layer.unwrap());
            }
            assert_eq!(found, expected, "{topology}");
        }
        assert!(engine.layout().is_ok());
    }
    let text = refusal(&config(30), "megatron:pp=4");
    assert!(text.contains("30 layers") && text.contains("pp=4") && text.contains("layers="), "{text}");
}

/// L32: a one-dimensional bias is cut as its weight is, where the weight is cut by rows.
#[test]
fn l32_biases_are_cut_as_rows() {
    let config = llama(json!({"attention_bias": true, "mlp_bias": true, "hidden_size": 1}));
    let found = contents(&engine(&config, "vllm:tp=2").layout().unwrap());
    for rank in 0..2 {
        let own = 3 * u64::from(rank)..3 * u64::from(rank) + 3;
        let mut expected = rows("model.layers.0.mlp.gate_proj.bias", own.clone(), 1);
        expected.extend(rows("model.layers.0.mlp.up_proj.bias", own, 1));
        assert_eq!(found[&(rank, "model.layers.0.mlp.gate_up_proj.bias".to_owned())], expected);
        let whole = rows("model.layers.0.mlp.down_proj.bias", 0..1, 1);
        assert_eq!(found[&(rank, "model.layers.0.mlp.down_proj.bias".to_owned())], whole);
    }
}

#[test]
fn any_topology_makes_an_engine() {
    let config = llama(json!({}));
    for text in ["autotp:tp=2,zero=3", "vllm:tp=2", "hf:first=1"] {
        let topology: Topology = text.parse().unwrap();
        let layout = Engine::new(&config, &topology, ZeroOptions::default()).unwrap().layout().unwrap();
        assert_eq!(layout.parameters().len(), config.parameters().len(), "{text}");
        let owners: BTreeSet<Rank> = layout.places().storages.iter().map(|storage| storage.rank).collect();
        assert_eq!(owners.into_iter().collect::<Vec<_>>(), topology.ranks(), "{text}");
    }
}

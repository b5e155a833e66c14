//! Widths against the reference's table, and the published byte model.

use std::num::{NonZeroU32, NonZeroU64};

use reshard_parallel::model::{ModelConfig, Role};
use reshard_parallel::tensor::{Cut, cut, cut_in_grains, shard_widths};
use reshard_parallel::{Category, ParallelError};

use crate::support::ground_truth;

fn widths(total: u64, tp: u32, kv: u64, grain: u64, name: &str) -> Vec<u64> {
    let grain = NonZeroU64::new(grain).unwrap();
    shard_widths(total, NonZeroU32::new(tp).unwrap(), NonZeroU64::new(kv), grain, name)
}

#[test]
fn widths_are_those_of_deepspeed() {
    assert_eq!(widths(18, 4, 4, 1, "model.layers.0.mlp.up_proj"), [5, 5, 4, 4]);
    assert_eq!(widths(10, 4, 0, 1, "mlp.up_proj"), [3, 3, 2, 2]);
    assert_eq!(widths(257, 2, 4, 1, "lm_head"), [129, 128]);
    assert_eq!(widths(257, 4, 4, 1, "lm_head"), [65, 64, 64, 64]);
    assert_eq!(widths(64, 4, 2, 1, "self_attn.q_proj"), [32, 32, 0, 0]);
    assert_eq!(widths(16, 4, 2, 1, "self_attn.k_proj"), [8, 8, 0, 0]);
    assert_eq!(widths(64, 2, 4, 1, "self_attn.q_proj"), [32, 32]);
    assert_eq!(widths(48, 2, 4, 1, "self_attn.o_proj"), [24, 24]);
}

#[test]
fn heads_are_kept_whole_only_outside_mlp_and_head() {
    // 4 key-value heads over 3 ranks.
    assert_eq!(widths(16, 3, 4, 1, "self_attn.q_proj"), [8, 4, 4]);
    assert_eq!(widths(16, 3, 4, 1, "lm_head"), [6, 5, 5]);
    assert_eq!(widths(16, 3, 4, 1, "embed_out"), [6, 5, 5]);
    // The exemption of the head is by its exact name, that of an MLP by a part of it.
    assert_eq!(widths(16, 3, 4, 1, "model.lm_head"), [8, 4, 4]);
    for name in ["mlp.fc", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"] {
        assert_eq!(widths(16, 3, 4, 1, name), [6, 5, 5], "{name}");
    }
    // Heads that do not divide the axis do not decide it.
    assert_eq!(widths(17, 3, 4, 1, "self_attn.q_proj"), [6, 6, 5]);
}

#[test]
fn a_grain_keeps_all_ranks_but_the_last_aligned() {
    assert_eq!(widths(70, 4, 0, 16, "up_proj"), [16, 16, 16, 22]);
    assert_eq!(widths(40, 4, 0, 16, "up_proj"), [16, 16, 0, 8]);
    assert_eq!(widths(10, 4, 0, 16, "up_proj"), [3, 3, 2, 2]);
}

#[test]
fn widths_always_sum_to_the_axis() {
    for (total, tp, kv, grain) in itertools(40, 9, 6, 5) {
        for name in ["self_attn.q_proj", "mlp.up_proj", "lm_head"] {
            let sum: u64 = widths(total, u32::try_from(tp).unwrap(), kv, grain, name).iter().sum();
            assert_eq!(sum, total, "tp {tp} kv {kv} grain {grain} {name}");
        }
    }
}

/// Every total below the first, and tp, kv heads (also none) and grain below the others.
fn itertools(total: u64, tp: u64, kv: u64, grain: u64) -> impl Iterator<Item = (u64, u64, u64, u64)> {
    (0..total).flat_map(move |total| {
        (1..tp).flat_map(move |tp| {
            (0..kv).flat_map(move |kv| (1..grain).map(move |grain| (total, tp, kv, grain)))
        })
    })
}

#[test]
fn qwen3_8b_is_cut_as_in_the_published_byte_model() {
    let config = ModelConfig::from_json(&ground_truth("models/Qwen3-8B.json").unwrap()).unwrap();
    let (mut whole, mut shared) = (0, 0);
    for parameter in config.parameters() {
        let numel: u64 = parameter.shape.iter().product();
        match cut(&config, &parameter, NonZeroU32::new(2).unwrap()).unwrap() {
            Cut::Whole => whole += numel,
            Cut::Axis { .. } => shared += numel,
        }
    }
    assert_eq!((shared, whole), (7_568_097_280, 622_638_080));
}

fn small(vocabulary: u64, tied: bool) -> ModelConfig {
    let text = format!(
        r#"{{"model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 3, "intermediate_size": 5, "vocab_size": {vocabulary},
            "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": {tied}}}"#
    );
    ModelConfig::from_json(&text).unwrap()
}

#[test]
fn row_parallel_biases_stay_whole() {
    let config = small(7, false);
    for parameter in config.parameters() {
        let derived = cut(&config, &parameter, NonZeroU32::new(2).unwrap()).unwrap();
        let expected = match parameter.name.strip_prefix("model.layers.0.").unwrap_or(&parameter.name) {
            "self_attn.q_proj.weight" | "self_attn.q_proj.bias" => Some((0, vec![6, 6])),
            "self_attn.k_proj.weight" | "self_attn.k_proj.bias" => Some((0, vec![3, 3])),
            "self_attn.v_proj.weight" | "self_attn.v_proj.bias" => Some((0, vec![3, 3])),
            "self_attn.o_proj.weight" => Some((1, vec![6, 6])),
            "mlp.gate_proj.weight" | "mlp.gate_proj.bias" => Some((0, vec![3, 2])),
            "mlp.up_proj.weight" | "mlp.up_proj.bias" => Some((0, vec![3, 2])),
            "mlp.down_proj.weight" => Some((1, vec![3, 2])),
            "lm_head.weight" => Some((0, vec![4, 3])),
            _ => None,
        };
        let expected = expected.map_or(Cut::Whole, |(axis, widths)| Cut::Axis { axis, widths });
        assert_eq!(derived, expected, "{}", parameter.name);
        assert_eq!(cut(&config, &parameter, NonZeroU32::MIN).unwrap(), Cut::Whole, "{}", parameter.name);
    }
}

/// Width 10 in grains of 4 over 2: two whole grains, one a rank, and the rest of 2 goes to the last.
#[test]
fn grains_stay_whole_outside_attention() {
    let mut config = String::from(
        r#"{"model_type":"qwen3","hidden_size":8,"num_hidden_layers":1,"num_attention_heads":4,
        "num_key_value_heads":2,"head_dim":4,"intermediate_size":10,"vocab_size":9,"rms_norm_eps":1e-6,
        "rope_theta":10000,"tie_word_embeddings":false,"torch_dtype":"bfloat16"}"#,
    );
    config.retain(|letter| letter != '\n');
    let config = ModelConfig::from_json(&config).unwrap();
    let widths = |name: &str| {
        let parameter = config.parameters().into_iter().find(|parameter| parameter.name == name).unwrap();
        let (tp, grain) = (NonZeroU32::new(2).unwrap(), NonZeroU64::new(4).unwrap());
        match cut_in_grains(&config, &parameter, tp, grain).unwrap() {
            Cut::Axis { axis, widths } => (axis, widths),
            Cut::Whole => panic!("{name} is whole"),
        }
    };
    assert_eq!(widths("model.layers.0.mlp.up_proj.weight"), (0, vec![4, 6]));
    assert_eq!(widths("model.layers.0.mlp.down_proj.weight"), (1, vec![4, 6]));
    assert_eq!(widths("lm_head.weight"), (0, vec![4, 5]));
    assert_eq!(widths("model.layers.0.self_attn.q_proj.weight"), (0, vec![8, 8]));
}

#[test]
fn a_tied_embedding_needs_a_row_on_every_rank() {
    let tp = NonZeroU32::new(4).unwrap();
    let config = small(8, true);
    let embedding = config.parameters().remove(0);
    assert_eq!(embedding.role, Role::Embedding);
    // 2 key-value heads divide 8 rows: the shard is the head's, which heads do not decide.
    assert_eq!(cut(&config, &embedding, tp), Ok(Cut::Axis { axis: 0, widths: vec![2, 2, 2, 2] }));

    let config = small(3, true);
    let error = cut(&config, &config.parameters()[0], tp).unwrap_err();
    let parameter = "model.embed_tokens.weight".to_owned();
    assert_eq!(error, ParallelError::VocabularyTooSmall { parameter, rows: 3, tp: 4, tp_rank: 3 });
    assert_eq!(error.category(), Category::Unsupported);
}

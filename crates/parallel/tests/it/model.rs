//! Parameter lists against published manifests, and every way in which a configuration can be wrong.

use std::collections::BTreeMap;

use reshard_layout::DType;
use reshard_parallel::model::{ModelConfig, Role};
use reshard_parallel::{Category, ParallelError};
use serde_json::{Value, json};

use crate::support::{ground_truth, number, numbers, string};

fn config(model: &str) -> Option<ModelConfig> {
    ground_truth(&format!("models/{model}.json")).map(|text| ModelConfig::from_json(&text).unwrap())
}

#[test]
fn parameters_are_the_tensors_of_the_manifests() {
    for (model, tensors) in [
        ("Qwen3-0.6B", 310),
        ("Qwen3-1.7B", 310),
        ("Qwen3-8B", 399),
        ("Qwen3-32B", 707),
        ("Llama-3.1-8B", 291),
        ("Llama-3.1-70B", 723),
    ] {
        let Some(config) = config(model) else { continue };
        let parameters = config.parameters();
        assert_eq!(parameters.len(), tensors, "{model}");
        let Some(manifest) = ground_truth(&format!("models/{model}.manifest.json")) else { continue };
        let manifest: Value = serde_json::from_str(&manifest).unwrap();
        let expected: BTreeMap<&str, Vec<u64>> = manifest["tensors"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, tensor)| (name.as_str(), numbers(&tensor["shape"])))
            .collect();
        let derived: BTreeMap<&str, Vec<u64>> =
            parameters.iter().map(|parameter| (parameter.name.as_str(), parameter.shape.clone())).collect();
        assert_eq!(derived, expected, "{model}");
        for tensor in manifest["tensors"].as_object().unwrap().values() {
            assert_eq!(string(&tensor["dtype"]), "BF16", "{model}");
        }
        assert_eq!(config.dtype(), DType::Bf16, "{model}");
    }
}

#[test]
fn qwen3_8b_has_the_published_number_of_elements() {
    let config = config("Qwen3-8B").unwrap();
    let elements: u64 = config.parameters().iter().map(|p| p.shape.iter().product::<u64>()).sum();
    assert_eq!(elements, 8_190_735_360);
    assert_eq!((config.rope_theta(), config.rms_norm_eps()), (1e6, 1e-6));
    assert_eq!(config.name(), "Qwen3ForCausalLM");
}

fn small() -> Value {
    json!({
        "model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 3, "intermediate_size": 5, "vocab_size": 7
    })
}

fn with(key: &str, value: Value) -> Value {
    let mut config = small();
    config[key] = value;
    config
}

fn read(config: &Value) -> Result<ModelConfig, ParallelError> {
    ModelConfig::from_json(&config.to_string())
}

#[test]
fn absent_keys_take_their_defaults() {
    let config = read(&small()).unwrap();
    assert!(!config.tie_word_embeddings() && !config.attention_bias() && !config.mlp_bias());
    assert_eq!(config.dtype(), DType::Bf16);
    assert_eq!(read(&with("head_dim", Value::Null)).unwrap().head_dim(), 2);
    assert_eq!(read(&with("dtype", json!("float32"))).unwrap().dtype(), DType::F32);
    let nested = with("rope_parameters", json!({"rope_theta": 5e5, "rope_type": "default"}));
    assert_eq!(read(&nested).unwrap().rope_theta(), 5e5);

    let mut llama = with("model_type", json!("llama"));
    llama["num_key_value_heads"] = Value::Null;
    let llama = read(&llama).unwrap();
    assert_eq!(llama.num_key_value_heads(), 4);
    assert!(!llama.parameters().iter().any(|parameter| parameter.name.contains("q_norm")));
}

#[test]
fn biases_follow_their_weights() {
    let mut biased = with("attention_bias", json!(true));
    biased["mlp_bias"] = json!(true);
    biased["tie_word_embeddings"] = json!(true);
    let parameters = read(&biased).unwrap().parameters();
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    let block = [
        "self_attn.q_proj.weight",
        "self_attn.q_proj.bias",
        "self_attn.k_proj.weight",
        "self_attn.k_proj.bias",
        "self_attn.v_proj.weight",
        "self_attn.v_proj.bias",
        "self_attn.o_proj.weight",
        "self_attn.o_proj.bias",
        "self_attn.q_norm.weight",
        "self_attn.k_norm.weight",
        "mlp.gate_proj.weight",
        "mlp.gate_proj.bias",
        "mlp.up_proj.weight",
        "mlp.up_proj.bias",
        "mlp.down_proj.weight",
        "mlp.down_proj.bias",
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    ];
    let mut expected = vec!["model.embed_tokens.weight".to_owned()];
    expected.extend(block.map(|name| format!("model.layers.0.{name}")));
    expected.push("model.norm.weight".to_owned());
    assert_eq!(names, expected);
    assert_eq!(parameters[0].aliases, ["lm_head.weight"]);
    let bias = |name: &str| parameters.iter().find(|p| p.name.ends_with(name)).unwrap().shape.clone();
    let shapes = ["q_proj.bias", "k_proj.bias", "o_proj.bias", "up_proj.bias", "down_proj.bias"].map(bias);
    assert_eq!(shapes, [[12], [6], [8], [5], [8]]);
    assert!(parameters.iter().all(|parameter| parameter.role != Role::Head));
}

#[test]
fn a_wrong_configuration_is_a_typed_error() {
    let mut text = String::new();
    let without = |key: &str| {
        let mut config = small();
        config.as_object_mut().unwrap().remove(key);
        config
    };
    let mut cases = vec![
        json!([1]),
        without("model_type"),
        without("hidden_size"),
        without("num_key_value_heads"),
        with("model_type", json!("qwen3_moe")),
        with("quantization_config", json!({"quant_method": "fp8"})),
        with("hidden_size", json!("8")),
        with("num_attention_heads", json!(0)),
        with("num_hidden_layers", json!(-1)),
        with("num_hidden_layers", json!(1e3)),
        with("vocab_size", json!(1u64 << 40)),
        with("num_key_value_heads", json!(3)),
        with("tie_word_embeddings", json!("no")),
        with("torch_dtype", json!("float12")),
    ];
    let mut undivided = without("head_dim");
    undivided["hidden_size"] = json!(10);
    cases.push(undivided);
    let mut huge = with("hidden_size", json!(1u64 << 30));
    huge["vocab_size"] = json!(1u64 << 30);
    cases.push(huge);
    for case in cases {
        let error = read(&case).unwrap_err();
        text += &format!("{:?}: {error}\n", error.category());
    }
    let error = ModelConfig::from_json("{").unwrap_err();
    assert_eq!(error.category(), Category::Invalid);
    insta::assert_snapshot!(text);
}

#[test]
fn the_layer_of_a_parameter_is_that_of_its_name() {
    let config = config("Qwen3-8B").unwrap();
    for parameter in config.parameters() {
        let named = parameter.name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next());
        let named = named.map(|layer| number(&serde_json::from_str(layer).unwrap()));
        assert_eq!(parameter.layer.map(u64::from), named, "{}", parameter.name);
    }
}

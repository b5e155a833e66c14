//! Checkpoints of real engines, against what DeepSpeed itself says of them.

use std::collections::BTreeMap;
use std::path::Path;

use reshard_formats::{Checkpoint, Format, Kept, zero};
use reshard_layout::DType;
use serde_json::Value;

use crate::rebuilt::{Whole, rebuilt};
use crate::support::{ground_truth, own};

fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn state(name: &str) -> Kept {
    Kept::State(name.to_owned())
}

/// The three checkpoints of one training: stages 1, 2 and 3 hold the same bits.
#[test]
fn stages_1_2_3_of_one_training() {
    let Some(folder) = ground_truth("deepspeed") else { return };
    let expected = json(&folder.join("ckpt_expected.json"));
    for stage in 1..=3 {
        let checkpoint = zero::open(&folder.join(format!("ckpt_stage{stage}"))).unwrap();
        assert_eq!(checkpoint.format, Format::Zero);
        let facts = &checkpoint.facts;
        assert_eq!((facts.stage, facts.tp, facts.dp, facts.step), (Some(stage), Some(2), Some(2), Some(2)));
        assert!(facts.frozen.is_empty() && facts.buffers.is_empty());
        assert_eq!(facts.metadata["ds_version"], "0.19.8");
        assert_eq!(facts.metadata["optimizer steps by group"], "2");
        assert!(facts.notes.is_empty(), "{:?}", facts.notes);
        let kept: Vec<&str> = checkpoint.parts.keys().map(Kept::name).collect();
        assert_eq!(kept, ["weights", "fp32", "exp_avg", "exp_avg_sq"], "stage {stage}");
        let masters = rebuilt(&checkpoint, &Kept::Master);
        assert_eq!(masters.len(), 47);
        for (kept, key) in
            [(Kept::Master, "fp32"), (state("exp_avg"), "exp_avg"), (state("exp_avg_sq"), "exp_avg_sq")]
        {
            for (name, whole) in rebuilt(&checkpoint, &kept) {
                assert_eq!(whole.dtype, DType::F32);
                assert_eq!(serde_json::to_value(&whole.shape).unwrap(), expected[&name]["shape"], "{name}");
                assert_eq!(whole.sha256(), expected[&name][key], "stage {stage}: {key} of {name}");
            }
        }
        for (name, whole) in rebuilt(&checkpoint, &Kept::Weights) {
            assert_eq!(facts.model_dtypes[&name], DType::Bf16);
            let rounded = masters[&name].rounded(DType::Bf16);
            assert_eq!(rounded.sha256(), expected[&name]["bf16"], "stage {stage}: {name}");
            // At stage 3 there are no other weights than the masters.
            assert_eq!(if stage == 3 { whole.rounded(DType::Bf16) } else { whole }, rounded, "{name}");
        }
    }
}

#[test]
fn parameters_keep_the_order_of_the_module() {
    let Some(folder) = ground_truth("deepspeed/ckpt_stage3/global_step2") else { return };
    let checkpoint = zero::open(&folder).unwrap();
    for part in checkpoint.parts.values() {
        let names: Vec<&str> = part.layout.parameters().map(|(_, one)| one.name.as_str()).collect();
        assert_eq!(names[..2], ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"]);
        assert_eq!(names[45..], ["model.norm.weight", "lm_head.weight"]);
    }
}

/// Checkpoints of engines in miniature, one for each way in which order, padding or partition are not the plain ones.
/// `expected.json` holds digests of whole tensors from DeepSpeed's own accessors.
#[test]
fn checkpoints_of_hard_settings() {
    let expected = json(&own("zero/expected.json"));
    let settings = expected.as_object().unwrap();
    assert_eq!(settings.len(), 6);
    for (name, setting) in settings {
        agrees(name, &zero::open(&own(&format!("zero/{name}"))).unwrap(), setting);
    }
}

fn agrees(setting: &str, checkpoint: &Checkpoint, expected: &Value) {
    let kept: BTreeMap<&str, &Value> = expected["kept"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, tensors)| (name.as_str(), tensors))
        .collect();
    let found: Vec<&str> = checkpoint.parts.keys().map(Kept::name).collect();
    assert_eq!(found.len(), kept.len(), "{setting}: {found:?}");
    for (name, tensors) in kept {
        let mut tensors: BTreeMap<String, Value> = tensors
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, tensor)| (name.clone(), tensor.clone()))
            .collect();
        if name == "weights" {
            let buffers = expected["buffers"].as_object().unwrap();
            tensors.extend(buffers.iter().map(|(name, tensor)| (name.clone(), tensor.clone())));
            assert_eq!(checkpoint.facts.buffers.len(), buffers.len());
        }
        let part = rebuilt(checkpoint, &Kept::parse(name));
        assert_eq!(part.keys().collect::<Vec<_>>(), tensors.keys().collect::<Vec<_>>(), "{setting}: {name}");
        for (parameter, whole) in part {
            same(&format!("{setting}: {name} of {parameter}"), &whole, &tensors[&parameter]);
        }
    }
    let weights = &checkpoint.parts[&Kept::Weights].layout;
    let aliases: BTreeMap<&str, &str> =
        weights.aliases().map(|(name, id)| (name, weights.parameter(id).name.as_str())).collect();
    assert_eq!(serde_json::to_value(aliases).unwrap(), expected["aliases"], "{setting}");
}

fn same(what: &str, whole: &Whole, expected: &Value) {
    assert_eq!(serde_json::to_value(&whole.shape).unwrap(), expected["shape"], "{what}");
    let dtype = match expected["dtype"].as_str().unwrap() {
        "int64" => DType::I64,
        float => DType::parse(float).unwrap(),
    };
    let whole = if dtype.size() == 2 { whole.rounded(dtype) } else { whole.clone() };
    assert_eq!(
        (whole.dtype, whole.sha256().as_str()),
        (dtype, expected["sha256"].as_str().unwrap()),
        "{what}"
    );
}

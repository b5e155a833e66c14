//! ZeRO checkpoints that are written: the files, keys, shapes and values of those of a real engine.

use std::path::{Path, PathBuf};

use reshard_formats::zero::write::{self, AdamGroup, TrainerState, WriteFault};
use reshard_formats::{Checkpoint, FormatError, Kept, universal, zero};
use reshard_layout::{DType, Layout, ParameterId};
use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::{AutoTp, Topology};
use reshard_parallel::zero::ZeroOptions;

use crate::by_hand::{cast, convert, named};
use crate::described::{Described, described, differences};
use crate::support::{files_below, ground_truth};

/// The model of the ground truth, as its README has it.
const CONFIG: &str = r#"{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 144, "vocab_size": 257, "torch_dtype": "bfloat16"}"#;

fn data() -> Option<PathBuf> {
    ground_truth("deepspeed")
}

fn engine(topology: &str) -> DeepSpeed {
    engine_with(topology, ZeroOptions::default())
}

fn engine_with(topology: &str, options: ZeroOptions) -> DeepSpeed {
    let config = ModelConfig::from_json(CONFIG).unwrap();
    let Topology::AutoTp(topology): Topology = topology.parse().unwrap() else { unreachable!() };
    let topology: AutoTp = topology;
    DeepSpeed::new(&config, &topology, options).unwrap()
}

fn written(source: &Checkpoint, engine: &DeepSpeed) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let output = write::output(source, engine).unwrap();
    convert(source, &output, folder.path());
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let path = |file: PathBuf| file.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    files_below(folder, "").into_iter().map(path).collect()
}

/// All tensors but the weights are equal, and weights are the masters in the model's type.
fn assert_same(one: &Checkpoint, other: &Checkpoint) {
    let kept: Vec<&Kept> = one.parts.keys().collect();
    assert_eq!(kept, other.parts.keys().collect::<Vec<_>>());
    for (kept, part) in &one.parts {
        for (_, parameter) in part.layout.parameters() {
            let id = other.parts[kept].layout.find(&parameter.name).unwrap();
            let there = other.parts[kept].layout.parameter(id);
            assert_eq!(there.shape, parameter.shape);
            let to = if *kept == Kept::Weights { DType::Bf16 } else { DType::F32 };
            let (ours, theirs) = (named(one, kept, &parameter.name), named(other, kept, &parameter.name));
            assert_eq!(
                cast(&ours, parameter.dtype, to),
                cast(&theirs, there.dtype, to),
                "{kept} of {}",
                parameter.name
            );
        }
    }
}

#[test]
fn files_are_those_of_a_real_engine_key_by_key() {
    let Some(data) = data() else { return };
    for from in [1, 3] {
        for to in [1, 2, 3] {
            let source = zero::open(&data.join(format!("ckpt_stage{from}"))).unwrap();
            let folder = written(&source, &engine(&format!("autotp:tp=2,dp=2,zero={to}")));
            let theirs = data.join(format!("ckpt_stage{to}"));
            assert_eq!(names(folder.path()), names(&theirs), "stage {from} to {to}");
            let latest = |folder: &Path| std::fs::read_to_string(folder.join("latest")).unwrap();
            assert_eq!(latest(folder.path()), latest(&theirs).trim());
            for name in names(&theirs).iter().filter(|name| name.ends_with(".pt")) {
                // Shards of this model divide evenly, so that even at stage 3 there is no padding to differ.
                let (mut ours, mut theirs) =
                    (described(&folder.path().join(name)), described(&theirs.join(name)));
                // A limit of gradients that stage 3 does not record cannot be taken from there.
                if from == 3 && to != 3 {
                    assert!(
                        theirs.remove("/optimizer_state_dict/clip_grad").is_some() || name.contains("model")
                    );
                    let inner = "/optimizer_state_dict";
                    if theirs.contains_key(inner) {
                        assert_eq!(ours[inner], "dict of 11");
                        ours.insert(inner.to_owned(), theirs[inner].clone());
                    }
                }
                assert_eq!(differences(&ours, &theirs), Vec::<String>::new(), "stage {from} to {to}: {name}");
            }
            assert_same(&zero::open(folder.path()).unwrap(), &source);
        }
    }
}

#[test]
fn other_topologies_hold_the_same_and_lead_back() {
    let Some(data) = data() else { return };
    let source = zero::open(&data.join("ckpt_stage1")).unwrap();
    let topologies = [
        "autotp:tp=1,dp=1,zero=1",
        "autotp:tp=1,dp=3,zero=2",
        "autotp:tp=4,dp=3,zero=1",
        "autotp:tp=4,dp=2,zero=3",
        "autotp:tp=8,dp=1,zero=2",
        "autotp:tp=3,dp=5,zero=3",
        "autotp:tp=2,dp=2,zero=3,init=zero",
    ];
    for topology in topologies {
        let folder = written(&source, &engine(topology));
        let there = zero::open(folder.path()).unwrap();
        assert_same(&source, &there);
        let back = written(&there, &engine("autotp:tp=2,dp=2,zero=1"));
        assert_same(&source, &zero::open(back.path()).unwrap());
    }
}

#[test]
fn a_universal_checkpoint_becomes_a_zero_checkpoint() {
    let Some(data) = data() else { return };
    for stage in [1, 3] {
        let source = universal::open(&data.join(format!("universal_stage{stage}"))).unwrap();
        for to in [1, 3] {
            let folder = written(&source, &engine(&format!("autotp:tp=2,dp=2,zero={to}")));
            let like = zero::open(&data.join(format!("ckpt_stage{to}"))).unwrap();
            assert_same(&zero::open(folder.path()).unwrap(), &like);
            for name in names(folder.path()).iter().filter(|name| name.ends_with("optim_states.pt")) {
                let (ours, theirs) = (
                    described(&folder.path().join(name)),
                    described(&like.root.parent().unwrap().join(name)),
                );
                let step = |described: &Described| {
                    let step = described.iter().find(|(key, _)| key.ends_with("/[0]/step"));
                    step.map(|(_, value)| value.clone()).unwrap()
                };
                assert_eq!(step(&ours), step(&theirs));
            }
        }
    }
}

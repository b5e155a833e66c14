//! ZeRO checkpoints that are written: the files, keys, shapes and values of those of a real engine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reshard_formats::zero::write::{self, AdamGroup, TrainerState, ZeroWriteFault};
use reshard_formats::{Checkpoint, Conversion, FormatError, Kept, Silent, WriteOptions, zero};
use reshard_layout::{DType, Rank, StorageId};
use reshard_parallel::engine::{DeepSpeed, State};
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::Topology;
use reshard_parallel::zero::{Grouping, ZeroOptions};
use serde_json::Value as Json;

use crate::converted::{Written, names, opened};
use crate::described::{Described, described, differences, json_at};
use crate::rebuilt::rebuilt;
use crate::support::{ground_truth, own};

/// The model of the ground truth, as its README has it.
const CONFIG: &str = r#"{"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 8, "intermediate_size": 144, "vocab_size": 257, "torch_dtype": "bfloat16"}"#;

fn data() -> Option<PathBuf> {
    ground_truth("deepspeed")
}

fn engine(topology: &str) -> DeepSpeed {
    engine_of(CONFIG, topology, ZeroOptions::default())
}

fn engine_of(config: &str, topology: &str, options: ZeroOptions) -> DeepSpeed {
    let config = ModelConfig::from_json(config).unwrap();
    let Topology::AutoTp(topology) = topology.parse().unwrap() else { unreachable!() };
    DeepSpeed::new(&config, &topology, options).unwrap()
}

fn written(source: &Path, engine: &DeepSpeed) -> Written {
    Written::of(source, |source| write::output(source, engine).unwrap())
}

/// All tensors but the weights are equal, and weights are the masters in the model's type.
fn assert_same(one: &Checkpoint, other: &Checkpoint) {
    assert_eq!(one.parts.keys().collect::<Vec<_>>(), other.parts.keys().collect::<Vec<_>>());
    for kept in one.parts.keys() {
        let (ours, theirs) = (rebuilt(one, kept), rebuilt(other, kept));
        assert!(ours.keys().eq(theirs.keys()));
        for (name, whole) in ours {
            let theirs = &theirs[&name];
            if *kept == Kept::Weights {
                assert_eq!(whole.rounded(DType::Bf16), theirs.rounded(DType::Bf16), "weights of {name}");
            } else {
                assert_eq!(whole, *theirs, "{kept} of {name}");
            }
        }
    }
}

#[test]
fn files_are_those_of_a_real_engine_key_by_key() {
    let Some(data) = data() else { return };
    for (from, to) in [(1, 1), (1, 2), (1, 3), (3, 1), (3, 2), (3, 3)] {
        let source = data.join(format!("ckpt_stage{from}"));
        let folder = written(&source, &engine(&format!("autotp:tp=2,dp=2,zero={to}")));
        let theirs = data.join(format!("ckpt_stage{to}"));
        assert_eq!(names(&folder.path()), names(&theirs), "stage {from} to {to}");
        let latest = |folder: &Path| std::fs::read_to_string(folder.join("latest")).unwrap();
        assert_eq!(latest(&folder.path()), latest(&theirs).trim());
        for name in names(&theirs).iter().filter(|name| name.ends_with(".pt")) {
            // Shards of this model divide evenly, so that even at stage 3 there is no padding to differ.
            let (mut ours, theirs) = (described(&folder.path().join(name)), described(&theirs.join(name)));
            let limit = "/optimizer_state_dict/clip_grad";
            if from == 3 && to != 3 && theirs.contains_key(limit) {
                // Stage 3 does not record the limit of gradients; who loads goes on with the engine's own.
                assert_eq!(ours["/optimizer_state_dict"], "dict of 11");
                ours.insert("/optimizer_state_dict".to_owned(), "dict of 12".to_owned());
                ours.insert(limit.to_owned(), theirs[limit].clone());
            }
            assert_eq!(differences(&ours, &theirs), Vec::<String>::new(), "stage {from} to {to}: {name}");
        }
        assert_same(&folder.open(), &opened(&source));
    }
}

#[test]
fn other_topologies_hold_the_same_and_lead_back() {
    let Some(data) = data() else { return };
    let source = data.join("ckpt_stage1");
    for topology in [
        "autotp:tp=1,dp=1,zero=1",
        "autotp:tp=1,dp=3,zero=2",
        "autotp:tp=4,dp=3,zero=1",
        "autotp:tp=4,dp=2,zero=3",
        "autotp:tp=8,dp=1,zero=2",
        "autotp:tp=3,dp=5,zero=3",
        "autotp:tp=2,dp=2,zero=3,init=zero",
    ] {
        let folder = written(&source, &engine(topology));
        assert_same(&opened(&source), &folder.open());
        let back = written(&folder.path(), &engine("autotp:tp=2,dp=2,zero=1"));
        assert_same(&opened(&source), &back.open());
    }
}

#[test]
fn a_universal_checkpoint_becomes_a_zero_checkpoint() {
    let Some(data) = data() else { return };
    for (stage, to) in [(1, 1), (1, 3), (3, 1), (3, 3)] {
        let source = data.join(format!("universal_stage{stage}"));
        let folder = written(&source, &engine(&format!("autotp:tp=2,dp=2,zero={to}")));
        let like = data.join(format!("ckpt_stage{to}"));
        assert_same(&folder.open(), &opened(&like));
        for name in names(&folder.path()).iter().filter(|name| name.ends_with("optim_states.pt")) {
            let (ours, theirs) = (described(&folder.path().join(name)), described(&like.join(name)));
            let step = |described: &Described| {
                let step = described.iter().find(|(key, _)| key.ends_with("/[0]/step"));
                step.map(|(_, value)| value.clone()).unwrap()
            };
            assert_eq!(step(&ours), step(&theirs));
        }
    }
}

fn trainer() -> TrainerState {
    let group = AdamGroup { step: 2, lr: 1e-3, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0 };
    TrainerState {
        tag: "global_step2".to_owned(),
        global_steps: 2,
        skipped_steps: 0,
        global_samples: 16,
        groups: vec![group],
        clip_grad: 1.0,
        config: "{}".to_owned(),
    }
}

/// The dump of a live engine.
fn dump(data: &Path, name: &str) -> Json {
    serde_json::from_str(&std::fs::read_to_string(data.join(name)).unwrap()).unwrap()
}

/// A trainer of one's own writes the files that the real engine wrote, each rank its own from its own storages.
#[test]
fn a_trainers_own_files_are_those_of_a_real_engine() {
    let Some(data) = data() else { return };
    for stage in [1u32, 2, 3] {
        let engine = engine(&format!("autotp:tp=2,dp=2,zero={stage}"));
        let config = dump(&data, &format!("ds_storage_stage{stage}.json"))["ds_config"].to_string();
        let made = write::files(&engine, &TrainerState { config, ..trainer() }).unwrap();
        assert_storages(&engine, &made);
        let like = data.join(format!("ckpt_stage{stage}"));
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("out");
        let conversion = Conversion::new(zero::open(&like).unwrap(), made.output).unwrap();
        let options = WriteOptions { sync: false, ..WriteOptions::default() };
        conversion.run(&folder, &options, &Silent).unwrap();
        assert_eq!(names(&folder), names(&like));
        for name in names(&like).iter().filter(|name| name.ends_with(".pt")) {
            let (ours, theirs) = (described(&folder.join(name)), described(&like.join(name)));
            assert_eq!(differences(&ours, &theirs), Vec::<String>::new(), "stage {stage}: {name}");
        }
    }
}

/// A storage of a file is a storage of the rank that writes the file, in the order in which the rank has them.
fn assert_storages(engine: &DeepSpeed, made: &write::ZeroFiles) {
    assert_eq!(made.writers.len(), made.output.files.len());
    for (kept, part) in &made.output.parts {
        let mut of_rank: BTreeMap<Rank, Vec<u64>> = BTreeMap::new();
        for (index, span) in (0u32..).zip(&part.spans) {
            let storage = part.layout.places().storage(StorageId(index));
            assert_eq!(made.writers[span.file.index()], storage.rank, "{kept}");
            assert_eq!(storage.length, span.length);
            of_rank.entry(storage.rank).or_default().push(storage.length.0);
        }
        for slot in engine.topology().slots() {
            let weights = *kept == Kept::Weights;
            let stored = if weights { engine.weights(slot) } else { engine.optimizer(slot, State::Fp32) };
            let writes = !weights || stored.dp_rank == 0;
            let lengths = stored.storages.iter().map(|spec| spec.length.bytes(spec.dtype).0);
            assert_eq!(of_rank.get(&stored.rank), writes.then(|| lengths.collect()).as_ref(), "{kept}");
        }
    }
}

fn refused(engine: &DeepSpeed, state: &TrainerState) -> ZeroWriteFault {
    match write::files(engine, state) {
        Err(FormatError::ZeroWrite { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_has_no_zero_checkpoint_is_refused() {
    let state = trainer();
    assert_eq!(refused(&engine("autotp:tp=2,dp=2"), &state), ZeroWriteFault::StageZero);
    let copies = engine("autotp:tp=2,dp=2,zero=1,copies=3");
    assert_eq!(refused(&copies, &state), ZeroWriteFault::Copies { copies: 3 });
    let one = engine("autotp:tp=2,dp=2,zero=1");
    let two = ZeroOptions { grouping: Grouping::MatricesAndVectors, ..ZeroOptions::default() };
    let two = engine_of(CONFIG, "autotp:tp=2,dp=2,zero=3", two);
    assert_eq!(refused(&two, &state), ZeroWriteFault::Groups { expected: 2, found: 1 });
    for tag in ["", "..", "a/b", "a\nb"] {
        let state = TrainerState { tag: tag.to_owned(), ..state.clone() };
        assert_eq!(refused(&one, &state), ZeroWriteFault::Tag { tag: tag.to_owned() });
    }
    for config in ["{".to_owned(), format!("{}{}", "[".repeat(100), "]".repeat(100))] {
        let state = TrainerState { config, ..state.clone() };
        assert!(matches!(refused(&one, &state), ZeroWriteFault::Config { .. }));
    }
}

#[test]
fn frozen_parameters_are_refused_by_name() {
    let source = zero::open(&own("zero/frozen_tied_buffers")).unwrap();
    let error = write::output(&source, &engine("autotp:tp=2,dp=2,zero=1")).unwrap_err();
    assert!(matches!(error, FormatError::ZeroWrite { fault: ZeroWriteFault::Frozen { .. }, .. }), "{error}");
}

/// What AutoTP publishes of a model, compared with what live engines published.
#[test]
fn published_maps_are_those_of_live_engines() {
    let Some(data) = data() else { return };
    let mut compared = 0;
    for (name, topology) in [
        ("ds_storage_stage1.json", "autotp:tp=2,dp=2,zero=1"),
        ("variants/s1_tied.json", "autotp:tp=2,dp=2,zero=1"),
        ("variants/s1_tp2dp3_bias.json", "autotp:tp=2,dp=3,zero=1"),
        ("variants/s3_tp2dp3_bias.json", "autotp:tp=2,dp=3,zero=3"),
        ("variants/s1_tp4_kv2_dp2.json", "autotp:tp=4,dp=2,zero=1"),
        ("variants/s1_param_alignment.json", "autotp:tp=2,dp=2,zero=1"),
    ] {
        let mut dump = dump(&data, name);
        dump["model_config"]["model_type"] = "qwen3".into();
        dump["model_config"]["attention_bias"] = dump["config"]["bias"].clone();
        let engine = engine_of(&dump["model_config"].to_string(), topology, ZeroOptions::default());
        let output = write::files(&engine, &trainer()).unwrap().output;
        let is_model = |path: &Path| path.to_str().unwrap().ends_with("model_states.pt");
        let mut models = output.files.iter().filter(|file| is_model(&file.path));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model_states.pt");
        std::fs::write(&path, known_bytes(models.next().unwrap())).unwrap();
        let published = json_at(&path, "universal_checkpoint_info");
        assert!(published == dump["ranks"][0]["universal_checkpoint_info"], "{name}");
        compared += published["affine_map"]["params"].as_object().unwrap().len();
    }
    assert_eq!(compared, 47 + 46 + 63 + 63 + 47 + 47);
}

/// A file with zeros where its data would be; a reader of its pickle does not look there.
fn known_bytes(file: &reshard_formats::TargetFile) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.length).unwrap()];
    for known in &file.known {
        let at = usize::try_from(known.offset).unwrap();
        bytes[at..at + known.bytes.len()].copy_from_slice(&known.bytes);
    }
    bytes
}

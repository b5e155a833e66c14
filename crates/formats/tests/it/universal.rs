//! Universal checkpoints: what DeepSpeed's converter wrote is read, and what is written is what it would have written.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reshard_formats::universal::{ForStage, UniversalFault, UniversalOptions};
use reshard_formats::{Checkpoint, FormatError, Kept, universal, zero};
use reshard_layout::DType;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use crate::by_hand::{convert, named};
use crate::described::{described, differences};
use crate::support::{files_below, ground_truth};

const TAG: &str = "global_step2_universal";

/// The ground truth's folder of checkpoints, if it is here.
fn data() -> Option<PathBuf> {
    ground_truth("deepspeed")
}

fn expected(data: &Path) -> BTreeMap<String, Json> {
    serde_json::from_str(&std::fs::read_to_string(data.join("ckpt_expected.json")).unwrap()).unwrap()
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every tensor is the one that DeepSpeed's engine held.
fn assert_expected(checkpoint: &Checkpoint, data: &Path) {
    let expected = expected(data);
    let states = ["exp_avg", "exp_avg_sq"].map(|name| Kept::State(name.to_owned()));
    for kept in [Kept::Master].into_iter().chain(states) {
        let part = &checkpoint.parts[&kept];
        assert_eq!(part.layout.parameters().len(), expected.len(), "{kept}");
        for (name, facts) in &expected {
            let parameter = part.layout.parameter(part.layout.find(name).unwrap());
            assert_eq!(facts["shape"], serde_json::json!(parameter.shape.to_vec()), "{name}");
            assert_eq!(digest(&named(checkpoint, &kept, name)), facts[kept.name()], "{kept} of {name}");
        }
    }
}

fn options(for_stage: ForStage) -> UniversalOptions {
    UniversalOptions { for_stage }
}

fn written(source: &Checkpoint, for_stage: ForStage) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let output = universal::output(source, &options(for_stage)).unwrap();
    convert(source, &output, folder.path());
    folder
}

/// Files below a folder, by their paths in it.
fn names(folder: &Path) -> Vec<String> {
    let path = |file: PathBuf| file.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    files_below(folder, "").into_iter().map(path).collect()
}

#[test]
fn what_deepspeed_converted_is_read() {
    let Some(data) = data() else { return };
    for stage in [1u32, 3] {
        let checkpoint = universal::open(&data.join(format!("universal_stage{stage}"))).unwrap();
        assert_expected(&checkpoint, &data);
        let facts = &checkpoint.facts;
        assert_eq!((facts.stage, facts.tp, facts.dp, facts.step), (Some(stage), Some(2), Some(2), Some(2)));
        assert_eq!(facts.model_dtypes.len(), 47);
        assert!(facts.model_dtypes.values().all(|dtype| *dtype == DType::Bf16));
        assert_eq!(facts.frozen, Vec::<String>::new());
        assert_eq!(facts.metadata.get("unknown files"), None);
        let weights = &checkpoint.parts[&Kept::Weights];
        assert_eq!(weights.layout.parameters().next().unwrap().1.name, "model.embed_tokens.weight");
        let within = universal::open(&data.join(format!("universal_stage{stage}")).join(TAG)).unwrap();
        assert_eq!(within.parts[&Kept::Master].layout, checkpoint.parts[&Kept::Master].layout);
    }
}

/// `zero/optimizer_state.pt` of stage 3 as the converter writes it, without what nobody reads in it.
fn without_flat_tensors(mut entries: crate::described::Described) -> crate::described::Described {
    entries.retain(|key, _| !key.starts_with("/fp32_flat_groups") && !key.contains("/exp_avg"));
    if let Some(count) = entries.get_mut("/optimizer_state_dict/state/[0]") {
        assert_eq!(count, "dict of 3");
        *count = "dict of 1".to_owned();
    }
    let count = entries.get_mut("").unwrap();
    if count == "dict of 8" {
        *count = "dict of 7".to_owned();
    }
    entries
}

#[test]
fn what_is_written_is_what_deepspeed_wrote_key_by_key() {
    let Some(data) = data() else { return };
    for (stage, like) in [(1, 1), (2, 1), (3, 3)] {
        let source = zero::open(&data.join(format!("ckpt_stage{stage}"))).unwrap();
        let folder = written(&source, ForStage::Same);
        assert_expected(&universal::open(folder.path()).unwrap(), &data);
        let theirs = data.join(format!("universal_stage{like}"));
        let latest = |folder: &Path| std::fs::read_to_string(folder.join("latest_universal")).unwrap();
        assert_eq!(latest(folder.path()), latest(&theirs).trim());
        let mut listed = names(folder.path());
        if stage == 3 {
            // Beyond DeepSpeed, whose stage-3 checkpoints only stage 3 can load.
            listed.retain(|name| !name.ends_with("/step.pt"));
        }
        assert_eq!(listed, names(&theirs), "stage {stage}");
        for name in listed.iter().filter(|name| name.ends_with(".pt")) {
            let (mut ours, mut theirs) =
                (described(&folder.path().join(name)), described(&theirs.join(name)));
            if name.ends_with("optimizer_state.pt") {
                theirs = without_flat_tensors(theirs);
            }
            if stage == 2 && (name.ends_with("optimizer_state.pt") || name.ends_with("model_states.pt")) {
                // The only checkpoint of stage 2 beside the one of stage 1: what says the stage differs.
                for described in [&mut ours, &mut theirs] {
                    described.retain(|key, _| !key.contains("stage") && !key.starts_with("/frozen_param"));
                }
            }
            assert_eq!(differences(&ours, &theirs), Vec::<String>::new(), "stage {stage}: {name}");
        }
    }
}

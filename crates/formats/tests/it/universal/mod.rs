//! Universal checkpoints: what DeepSpeed's converter wrote is read, and what is written is what it would have written.

mod fuzz;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reshard_formats::pickle::PickleBuilder;
use reshard_formats::torch::{Contents, torch_file};
use reshard_formats::universal::{ForStage, UniversalFault, UniversalOptions};
use reshard_formats::zero::ZeroFault;
use reshard_formats::{Checkpoint, FormatError, Kept, universal};
use reshard_layout::{DType, Kind};
use serde_json::Value as Json;

use crate::converted::{Written, names, opened, widened};
use crate::described::{Described, described, differences};
use crate::rebuilt::rebuilt;
use crate::support::{ground_truth, own};
use crate::torch::render;

const TAG: &str = "global_step2_universal";

/// The ground truth's folder of checkpoints, if it is here.
fn data() -> Option<PathBuf> {
    ground_truth("deepspeed")
}

fn written(source: &Path, for_stage: ForStage) -> Written {
    Written::of(source, |source| universal::output(source, &UniversalOptions { for_stage }).unwrap())
}

/// Every tensor is the one that DeepSpeed's engine held.
fn assert_expected(checkpoint: &Checkpoint, data: &Path) {
    let text = std::fs::read_to_string(data.join("ckpt_expected.json")).unwrap();
    let expected: BTreeMap<String, Json> = serde_json::from_str(&text).unwrap();
    let states = ["exp_avg", "exp_avg_sq"].map(|name| Kept::State(name.to_owned()));
    for kept in [Kept::Master].into_iter().chain(states) {
        let found = rebuilt(checkpoint, &kept);
        assert!(found.keys().eq(expected.keys()), "{kept}");
        for (name, facts) in &expected {
            assert_eq!(facts["shape"], serde_json::json!(found[name].shape), "{name}");
            assert_eq!(found[name].sha256(), facts[kept.name()], "{kept} of {name}");
        }
    }
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
        assert_eq!((facts.frozen.len(), facts.buffers.len(), facts.notes.len()), (0, 0, 0));
        let weights = &checkpoint.parts[&Kept::Weights];
        assert_eq!(weights.layout.parameters().next().unwrap().1.name, "model.embed_tokens.weight");
        let within = universal::open(&data.join(format!("universal_stage{stage}")).join(TAG)).unwrap();
        assert_eq!(within.parts[&Kept::Master].layout, checkpoint.parts[&Kept::Master].layout);
    }
}

/// `zero/optimizer_state.pt` of stage 3 as the converter writes it, without what nobody reads in it.
fn without_flat_tensors(mut entries: Described) -> Described {
    entries.retain(|key, _| !key.starts_with("/fp32_flat_groups") && !key.contains("/exp_avg"));
    if let Some(count) = entries.get_mut("/optimizer_state_dict/state/[0]") {
        assert_eq!(count, "dict of 3");
        *count = "dict of 1".to_owned();
        assert_eq!(entries.insert(String::new(), "dict of 7".to_owned()).as_deref(), Some("dict of 8"));
    }
    entries
}

#[test]
fn what_is_written_is_what_deepspeed_wrote_key_by_key() {
    let Some(data) = data() else { return };
    for (stage, like) in [(1, 1), (2, 1), (3, 3)] {
        let folder = written(&data.join(format!("ckpt_stage{stage}")), ForStage::Same);
        assert_expected(&folder.open(), &data);
        let theirs = data.join(format!("universal_stage{like}"));
        let latest = |folder: &Path| std::fs::read_to_string(folder.join("latest_universal")).unwrap();
        assert_eq!(latest(&folder.path()), latest(&theirs).trim());
        let mut listed = names(&folder.path());
        if stage == 3 {
            // Beyond DeepSpeed, whose stage-3 checkpoints only stage 3 can load.
            assert_eq!(listed.iter().filter(|name| name.ends_with("/step.pt")).count(), 47);
            listed.retain(|name| !name.ends_with("/step.pt"));
        }
        assert_eq!(listed, names(&theirs), "stage {stage}");
        for name in listed.iter().filter(|name| name.ends_with(".pt")) {
            let (mut ours, mut theirs) =
                (described(&folder.path().join(name)), described(&theirs.join(name)));
            if name.ends_with("optimizer_state.pt") {
                theirs = without_flat_tensors(theirs);
            }
            if stage == 2 {
                // There is no ground truth of stage 2 but that of stage 1, and what says the stage differs.
                for described in [&mut ours, &mut theirs] {
                    described.retain(|key, _| !key.contains("stage") && !key.starts_with("/frozen_param"));
                }
            }
            assert_eq!(differences(&ours, &theirs), Vec::<String>::new(), "stage {stage}: {name}");
        }
    }
}

/// The files that an engine of a family of stages looks for, and what it looks for in `optimizer_state.pt`.
fn assert_loadable(folder: &Path, plain: bool, partitioned: bool) {
    let folder = folder.join(TAG);
    for rank in 0..2 {
        assert_eq!(folder.join(format!("mp_rank_{rank:02}_model_states.pt")).exists(), plain);
        let of_rank = folder.join(format!("zero_pp_rank_0_mp_rank_{rank:02}_model_states.pt"));
        assert_eq!(of_rank.exists(), partitioned);
    }
    let state = described(&folder.join("zero/optimizer_state.pt"));
    let step = "f32 [] 4271a0b06a4ae5ac";
    assert_eq!(state["/param_groups/0/lr"], "Float(0.001)");
    assert!(!plain || state["/ds_version"] == "Str(\"0.19.8\")");
    let inner = "/optimizer_state_dict/state/[0]/step";
    assert_eq!(state.contains_key(inner), partitioned);
    let steps = described(&folder.join("zero/lm_head.weight/step.pt"));
    assert!(state.get(inner).is_none_or(|value| value == &steps[""]), "{} is not {step}", steps[""]);
    assert!(!state.keys().any(|key| key.contains("exp_avg") || key.contains("fp32")), "a flat tensor");
}

#[test]
fn each_stage_can_be_written_for_the_others() {
    let Some(data) = data() else { return };
    for from in ["ckpt_stage1", "ckpt_stage2", "ckpt_stage3", "universal_stage1", "universal_stage3"] {
        let is_sliced = from.ends_with('3');
        for (for_stage, plain, partitioned) in [
            (ForStage::OneTwo, true, false),
            (ForStage::Three, false, true),
            (ForStage::Both, true, true),
            (ForStage::Same, !is_sliced, is_sliced),
        ] {
            let folder = written(&data.join(from), for_stage);
            assert_loadable(&folder.path(), plain, partitioned);
            let there = folder.open();
            assert_expected(&there, &data);
            assert_eq!((there.facts.step, there.facts.tp, there.facts.dp), (Some(2), Some(2), Some(2)));
            let stage = there.facts.stage.unwrap();
            assert!(if partitioned && !plain { stage == 3 } else { partitioned || stage < 3 }, "{stage}");
            let back = written(&folder.path(), ForStage::Both);
            assert_expected(&back.open(), &data);
        }
    }
}

/// A file made for the other family of stages holds no weight, and what the loader asks it for.
#[test]
fn rewritten_model_states_say_what_they_said() {
    let Some(data) = data() else { return };
    for (from, for_stage, was, is) in [
        (1, ForStage::Three, "mp_rank_01", "zero_pp_rank_0_mp_rank_01"),
        (3, ForStage::OneTwo, "zero_pp_rank_0_mp_rank_01", "mp_rank_01"),
    ] {
        let source = data.join(format!("ckpt_stage{from}"));
        let folder = written(&source, for_stage);
        let file = |folder: &Path, name: &str| folder.join(format!("{name}_model_states.pt"));
        let ours = file(&folder.path().join(TAG), is);
        let (mut ours, mut theirs) = (described(&ours), described(&file(&source.join("global_step2"), was)));
        let weights = ours.keys().filter(|key| key.starts_with("/module/")).cloned().collect::<Vec<_>>();
        assert_eq!(weights.len(), 47);
        for weight in weights {
            assert!(ours.remove(&weight).unwrap().starts_with("bf16 [0] "));
            theirs.remove(&weight).unwrap();
        }
        ours.retain(|key, _| key != "/frozen_param_fragments");
        theirs.retain(|key, _| key != "/frozen_param_fragments");
        assert_eq!(differences(&ours, &theirs), Vec::<String>::new());
    }
}

/// Frozen weights, buffers, tied names, several groups, padding: checkpoints of engines in miniature.
#[test]
fn hard_settings_hold_the_same_afterwards() {
    let text = std::fs::read_to_string(own("zero/expected.json")).unwrap();
    let settings: BTreeMap<String, Json> = serde_json::from_str(&text).unwrap();
    assert_eq!(settings.len(), 6);
    for name in settings.keys() {
        let path = own(&format!("zero/{name}"));
        let source = opened(&path);
        for for_stage in [ForStage::Same, ForStage::OneTwo, ForStage::Three, ForStage::Both] {
            let folder = written(&path, for_stage);
            let there = folder.open();
            assert_eq!(there.parts.keys().collect::<Vec<_>>(), source.parts.keys().collect::<Vec<_>>());
            for kept in source.parts.keys().filter(|kept| **kept != Kept::Weights) {
                assert_eq!(rebuilt(&there, kept), rebuilt(&source, kept), "{name}: {kept}");
            }
            let (ours, theirs) = (rebuilt(&there, &Kept::Weights), rebuilt(&source, &Kept::Weights));
            assert!(ours.keys().eq(theirs.keys()), "{name}: {:?} / {:?}", ours.keys(), theirs.keys());
            let masters = rebuilt(&source, &Kept::Master);
            for (parameter, whole) in &ours {
                let expected = masters.get(parameter).cloned().unwrap_or_else(|| widened(&theirs[parameter]));
                assert_eq!(widened(whole), expected, "{name}: {parameter}");
            }
            for (alias, id) in source.parts[&Kept::Master].layout.aliases() {
                let layout = &there.parts[&Kept::Master].layout;
                let first = &source.parts[&Kept::Master].layout.parameter(id).name;
                assert_eq!(layout.find(alias), layout.find(first), "{name}: {alias}");
            }
            let sorted = |mut names: Vec<String>| {
                names.sort();
                names
            };
            assert_eq!(sorted(there.facts.frozen.clone()), sorted(source.facts.frozen.clone()), "{name}");
            assert_eq!(there.facts.model_dtypes, source.facts.model_dtypes, "{name}");
        }
    }
}

/// A copy of a converted checkpoint, to be damaged.
fn copied(damage: impl FnOnce(&Path)) -> tempfile::TempDir {
    let folder = written(&own("zero/aligned"), ForStage::Same);
    let copy = tempfile::tempdir().unwrap();
    for name in names(&folder.path()) {
        let to = copy.path().join(&name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(folder.path().join(&name), to).unwrap();
    }
    let tag = std::fs::read_to_string(copy.path().join("latest_universal")).unwrap();
    damage(&copy.path().join(tag));
    copy
}

fn refused(damage: impl FnOnce(&Path)) -> FormatError {
    universal::open(copied(damage).path()).unwrap_err()
}

fn refused_as(damage: impl FnOnce(&Path)) -> (PathBuf, UniversalFault) {
    match refused(damage) {
        FormatError::Universal { path, fault } => (path, fault),
        other => panic!("{other}"),
    }
}

#[test]
fn damaged_folders_are_refused_by_name() {
    let (path, fault) = refused_as(|root| std::fs::rename(root.join("zero"), root.join("one")).unwrap());
    assert_eq!(
        (fault, path.file_name().unwrap().to_str()),
        (UniversalFault::NoParameters, Some("step2_universal"))
    );

    let (path, fault) = refused_as(|root| std::fs::remove_file(root.join("zero/up.weight/fp32.pt")).unwrap());
    assert_eq!(fault, UniversalFault::NoMaster { parameter: "up.weight".to_owned() });
    assert!(path.ends_with("zero/up.weight"), "{}", path.display());

    let (_, fault) = refused_as(|root| std::fs::remove_file(root.join("zero/up.weight/exp_avg.pt")).unwrap());
    assert_eq!(
        fault,
        UniversalFault::StateMissing { parameter: "up.weight".to_owned(), state: "exp_avg".to_owned() }
    );

    let another = |to: &str| {
        let to = to.to_owned();
        refused_as(move |root| {
            std::fs::copy(root.join("zero/down.weight/fp32.pt"), root.join(&to)).unwrap();
        })
    };
    let (path, fault) = another("zero/up.weight/exp_avg_sq.pt");
    assert!(path.ends_with("zero/up.weight/exp_avg_sq.pt"), "{}", path.display());
    assert!(matches!(fault, UniversalFault::Shape { ref found, .. } if found == &[7, 18]), "{fault}");
    assert_eq!(fault.kind(), Kind::Invalid);

    let (path, fault) = refused_as(|root| {
        std::fs::copy(root.join("zero/optimizer_state.pt"), root.join("zero/up.weight/exp_avg.pt")).unwrap();
    });
    assert!(path.ends_with("zero/up.weight/exp_avg.pt"), "{}", path.display());
    assert_eq!(fault, UniversalFault::NotATensor { key: "param" });

    let torn = refused(|root| {
        let path = root.join("zero/up.weight/fp32.pt");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    });
    assert!(
        matches!(torn, FormatError::Torch { ref path, .. } if path.ends_with("up.weight/fp32.pt")),
        "{torn}"
    );
}

/// Files of two moments in one folder.
#[test]
fn parameters_of_two_steps_are_refused() {
    let (path, fault) = refused_as(|root| {
        let mut builder = PickleBuilder::new();
        let tensor = builder.tensor("0", DType::F32, 1, 0, &[]);
        let storages = vec![("0".to_owned(), Contents::Known(7f32.to_le_bytes().to_vec()))];
        let path = root.join("zero/up.weight/step.pt");
        std::fs::remove_file(&path).unwrap();
        let relative = "zero/up.weight/step.pt".into();
        let (file, _) = torch_file(relative, "step", &builder.finish(tensor), storages).unwrap();
        render(&file, root, &[]);
    });
    assert!(matches!(fault, UniversalFault::Step { .. }), "{fault}");
    let text = fault.to_string();
    assert!(
        path.to_str().unwrap().ends_with("step.pt") && text.contains('7') && text.contains('2'),
        "{text}"
    );
}

/// Puts a tensor in place of a parameter's, flat and without a dictionary around it.
fn put_flat(root: &Path, parameter: &str, elements: u16) {
    let bytes: Vec<u8> = (0..elements).flat_map(|element| f32::from(element).to_le_bytes()).collect();
    let mut builder = PickleBuilder::new();
    let tensor = builder.tensor("0", DType::F32, elements.into(), 0, &[elements.into()]);
    let storages = vec![("0".to_owned(), Contents::Known(bytes))];
    let path = format!("zero/{parameter}/fp32.pt").into();
    let (file, _) = torch_file(path, "fp32", &builder.finish(tensor), storages).unwrap();
    render(&file, root, &[]);
}

/// As DeepSpeed's converter writes stage 3 without tensor parallelism: the shape is that of the model states.
#[test]
fn flat_tensors_are_given_their_shapes() {
    let folder = copied(|root| put_flat(root, "up.weight", 18 * 7));
    let found = rebuilt(&universal::open(folder.path()).unwrap(), &Kept::Master);
    assert_eq!(found["up.weight"].shape, [18, 7]);
    let values: Vec<u8> = (0..126u16).flat_map(|element| f32::from(element).to_le_bytes()).collect();
    assert_eq!(found["up.weight"].bytes, values);
    let (path, fault) = refused_as(|root| put_flat(root, "up.weight", 125));
    assert!(path.ends_with("up.weight/fp32.pt"), "{}", path.display());
    let UniversalFault::Shape { expected, found, .. } = fault else { panic!("{fault}") };
    assert_eq!((expected, found), (vec![18, 7], vec![125]));
    let (_, fault) = refused_as(|root| {
        put_flat(root, "up.weight", 126);
        for rank in 0..2 {
            std::fs::remove_file(root.join(format!("mp_rank_{rank:02}_model_states.pt"))).unwrap();
        }
    });
    assert_eq!(fault, UniversalFault::NoShape { parameter: "up.weight".to_owned(), elements: 126 });
    assert_eq!(fault.kind(), Kind::Unsupported);
}

#[test]
fn what_is_unknown_is_listed_and_left_out() {
    let folder = copied(|root| {
        std::fs::write(root.join("notes.txt"), "x").unwrap();
        std::fs::create_dir_all(root.join("zero/a/b")).unwrap();
        std::fs::write(root.join("zero/a/b/fp32.pt"), "x").unwrap();
        std::fs::write(root.join("zero/up.weight/.fp32.pt.swp"), "x").unwrap();
    });
    let checkpoint = universal::open(folder.path()).unwrap();
    let unknown = "unknown entries: notes.txt, zero/a/b, zero/a, zero/up.weight/.fp32.pt.swp";
    assert_eq!(checkpoint.facts.notes, [unknown]);
    let whole = universal::open(copied(|_| {}).path()).unwrap();
    assert_eq!(rebuilt(&checkpoint, &Kept::Master), rebuilt(&whole, &Kept::Master));
}

#[test]
fn a_pointer_that_climbs_is_refused() {
    for tag in ["..", "../other", "/etc", "", "a/../b"] {
        let folder = copied(|_| {});
        std::fs::write(folder.path().join("latest_universal"), tag).unwrap();
        let error = universal::open(folder.path()).unwrap_err();
        assert!(
            matches!(error, FormatError::Zero { fault: ZeroFault::BadTag { .. }, .. }),
            "{tag:?}: {error}"
        );
    }
}

/// A name of a parameter comes from a file, and becomes that of a folder.
#[test]
fn names_that_climb_are_not_written() {
    let path = own("zero/aligned");
    for name in ["../up", "a/b", "..", ".", ""] {
        let mut source = opened(&path);
        let part = source.parts.get_mut(&Kept::Master).unwrap();
        let text = serde_json::to_string(&part.layout).unwrap();
        let renamed = text.replace("\"up.weight\"", &format!("{name:?}"));
        assert_ne!(renamed, text);
        part.layout = serde_json::from_str(&renamed).unwrap();
        let error = universal::output(&source, &UniversalOptions::default()).unwrap_err();
        let FormatError::Universal { fault, .. } = error else { panic!("{error}") };
        assert_eq!(fault, UniversalFault::Name { parameter: name.to_owned() });
    }
}

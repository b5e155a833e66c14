//! The whole job on threads: train, sync by every way, verify, speak.

use reshard_trainer::demo::{
    DemoModel, DemoOptions, DemoReport, Faults, PROCESSES_MAX, Path, Scratch, run_rank,
};
use reshard_trainer::{BuiltIn, Category, TINY, TrainerError, UNEVEN};

use crate::harness::{on_ranks, on_ranks_that_may_fail};

fn model(base: BuiltIn, changes: &[(&str, serde_json::Value)]) -> DemoModel {
    let mut config: serde_json::Value = serde_json::from_str(base.config_json).expect("a model");
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    DemoModel { name: base.name.to_owned(), config_json: config.to_string() }
}

/// Small models that differ in everything that a layout depends on.
fn variants() -> Vec<DemoModel> {
    let mut variants = Vec::new();
    for base in [TINY, UNEVEN] {
        for tied in [false, true] {
            for bias in [false, true] {
                variants.push(model(
                    base,
                    &[
                        ("num_hidden_layers", 1.into()),
                        ("tie_word_embeddings", tied.into()),
                        ("attention_bias", bias.into()),
                        ("mlp_bias", bias.into()),
                    ],
                ));
            }
        }
    }
    variants
}

fn run(options: &DemoOptions) -> DemoReport {
    let checked = options.check().expect("options that fit together");
    let scratch = checked.scratch().expect("a folder");
    let folder = scratch.as_ref().map(Scratch::path);
    let reports = on_ranks(checked.world(), |world| run_rank(world, &checked, folder).expect("a run"));
    reports.into_iter().next().flatten().expect("the first rank reports")
}

fn assert_equal(report: &DemoReport, options: &DemoOptions) {
    let syncs = u64::from(1 + options.steps + options.repeats);
    for path in &report.paths {
        let what =
            format!("{} -> {} of {} by {}", report.train, report.rollout, report.model.name, path.name);
        assert_eq!(path.verified.mismatches, 0, "{what}: {:?}", path.verified.differing);
        assert!(path.verified.elements >= syncs * report.model.parameters, "{what}: too little was compared");
        assert_eq!(path.seconds.repeats.len(), options.repeats as usize);
    }
    assert_eq!(report.losses.len(), options.steps as usize);
    // Masters and two moments in f32 are written, read, written again; the masters read: each float at least once.
    let checkpoint = &report.paths[2].bytes;
    assert_eq!(checkpoint.local.0, 0);
    assert!(checkpoint.sent.0 >= (3 * 3 + 1) * 4 * report.model.parameters, "{checkpoint:?}");
    // The plan reads a rank's own copy wherever there is one: what stays is then the same by both ways.
    let [affine, gather] = [&report.paths[0].bytes, &report.paths[1].bytes];
    assert_eq!(gather.local, affine.local, "{} -> {}", report.train, report.rollout);
    assert!(!options.separate || gather.local.0 == 0);
}

/// Every stage x trainer x rollout x way of hosting; models and numbers of copies take turns, so that each meets
/// every stage.
#[test]
fn nothing_differs_before_any_step_and_after_each() {
    let models = variants();
    let mut turn: usize = 0;
    for stage in ["zero=0", "zero=1", "zero=2", "zero=3", "zero=3,init=zero"] {
        for (tp, dp) in [(1, 1), (2, 1), (1, 2), (2, 2), (2, 4)] {
            for rollout_tp in 1..=4 {
                for separate in [false, true] {
                    let most = if separate { 2 } else { tp * dp / rollout_tp };
                    if most == 0 {
                        continue;
                    }
                    let copies = (1 + turn / 2 % 2).min(most);
                    let options = DemoOptions {
                        train: format!("autotp:tp={tp},dp={dp},{stage}"),
                        rollout: format!("autotp:tp={rollout_tp},copies={copies}"),
                        model: models[turn % models.len()].clone(),
                        steps: 1,
                        repeats: 0,
                        separate,
                        ..DemoOptions::default()
                    };
                    assert_equal(&run(&options), &options);
                    turn += 1;
                }
            }
        }
    }
}

#[test]
fn the_default_demo_learns_and_speaks() {
    for base in [TINY, UNEVEN] {
        let options = DemoOptions { model: base.into(), ..DemoOptions::default() };
        let report = run(&options);
        assert_equal(&report, &options);
        assert!(report.losses[2] < report.losses[0], "{:?}", report.losses);
        assert_ne!(report.samples.before, report.samples.after);
        assert!(!report.samples.before.is_empty() && !report.samples.sampled.is_empty());
        let affine = &report.paths[0];
        assert_eq!((affine.staging_bytes_max.0, affine.rounds), (0, 0));
        assert!(affine.bytes.sent < report.paths[1].bytes.sent);
    }
}

#[test]
fn more_ranks_than_key_heads_hold_nothing_of_attention() {
    let few = model(UNEVEN, &[("num_key_value_heads", 2.into()), ("num_hidden_layers", 1.into())]);
    for (train, rollout) in
        [("autotp:tp=4,zero=3", "autotp:tp=3"), ("autotp:tp=2,dp=2,zero=1", "autotp:tp=4")]
    {
        let options = DemoOptions {
            train: train.to_owned(),
            rollout: rollout.to_owned(),
            model: few.clone(),
            steps: 1,
            repeats: 0,
            ..DemoOptions::default()
        };
        assert_equal(&run(&options), &options);
    }
}

#[test]
fn a_source_described_wrongly_is_named() {
    for stage in ["zero=0", "zero=1", "zero=2", "zero=3", "zero=3,init=zero"] {
        let options = DemoOptions {
            train: format!("autotp:tp=2,dp=2,{stage}"),
            model: model(TINY, &[("num_hidden_layers", 1.into())]),
            steps: 1,
            repeats: 0,
            faults: Faults { swap_tp_ranks: true, ..Faults::default() },
            ..DemoOptions::default()
        };
        let report = run(&options);
        let [affine, others @ ..] = &report.paths[..] else { panic!("{stage}: no way was tried") };
        assert_eq!(others.iter().map(|path| path.verified.mismatches).collect::<Vec<_>>(), [0, 0], "{stage}");
        let affine = &affine.verified;
        let up = affine.differing.iter().find(|found| found.parameter == "model.layers.0.mlp.up_proj.weight");
        assert!(up.is_some(), "{stage}: up_proj is not among {:?}", affine.differing);
        let head = affine.differing.iter().find(|found| found.parameter == "lm_head.weight");
        assert!(head.is_none(), "{stage}: 129 and 128 rows cannot be swapped: {head:?}");
        assert!(!report.is_equal());
        // The copy speaks with the weights that the plan moved: these are torn.
        assert_eq!(report.samples.after, "");
    }
}

#[test]
fn all_ways_make_the_same_words_and_only_affine_is_heard_where_it_is_tried() {
    let words = |paths: &[Path]| {
        let report =
            run(&DemoOptions { steps: 1, repeats: 0, paths: paths.to_vec(), ..DemoOptions::default() });
        let names: Vec<String> = report.paths.iter().map(|path| path.name.clone()).collect();
        (names, report.samples)
    };
    let (names, affine) = words(&[Path::Affine, Path::Gather, Path::Affine]);
    assert_eq!(names, ["affine", "gather"]);
    for path in [Path::Gather, Path::Checkpoint] {
        let (names, samples) = words(&[path]);
        assert_eq!(names, [path.name()]);
        assert!(!samples.after.is_empty());
        assert_eq!(samples, affine);
    }
    let torn = DemoOptions {
        paths: vec![Path::Gather, Path::Affine],
        steps: 0,
        repeats: 0,
        faults: Faults { swap_tp_ranks: true, ..Faults::default() },
        ..DemoOptions::default()
    };
    assert_eq!(run(&torn).samples.before, "");
}

#[test]
fn drifted_replicas_are_refused_and_named() {
    let checked = DemoOptions {
        model: UNEVEN.into(),
        faults: Faults { weight_seed_offsets: vec![0, 1], ..Faults::default() },
        ..DemoOptions::default()
    }
    .check()
    .expect("options that fit together");
    let scratch = checked.scratch().expect("a folder");
    let folder = scratch.as_ref().map(Scratch::path);
    let outcomes =
        on_ranks_that_may_fail(checked.world(), |world| run_rank(world, &checked, folder).map(|_| ()));
    let named = outcomes.iter().filter_map(|outcome| match outcome {
        Err(TrainerError::Drifted { parameter, ranks, others }) => Some((parameter, ranks, others)),
        _ => None,
    });
    let named: Vec<_> = named.collect();
    assert!(!named.is_empty(), "{outcomes:?}");
    for (parameter, ranks, others) in named {
        // Embedding, norms and the biases of row-parallel layers: whatever is whole on every rank.
        assert_eq!(parameter, "model.embed_tokens.weight");
        assert_eq!(*ranks, [1, 3]);
        assert_eq!(others.len(), 3 * 6 + 1);
        assert!(others.iter().any(|other| other == "model.layers.2.mlp.down_proj.bias"));
    }
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let error = |options: DemoOptions| options.check().expect_err("a refusal").to_string();
    let large = DemoOptions { rollout: "autotp:tp=4,copies=2".to_owned(), ..DemoOptions::default() };
    assert_eq!(error(large), "rollout tp=4 x copies=2 needs 8 ranks, the trainer has 4");
    for (key, value) in [("dp", 2), ("zero", 1)] {
        let rollout = format!("autotp:tp=2,{key}={value}");
        let refused = format!(
            "rollout topology {rollout:?} has {key}={value}, which a rollout engine has not; use tp and copies"
        );
        assert_eq!(error(DemoOptions { rollout, ..DemoOptions::default() }), refused);
    }
    let renamed = DemoOptions { train: "autotp:tp=2,order=1.0".to_owned(), ..DemoOptions::default() };
    assert!(error(renamed).contains("numbers its processes from 0"));
    let checked = DemoOptions { separate: true, ..DemoOptions::default() }.check().expect("it fits");
    assert_eq!(checked.world(), 8);
}

#[test]
fn more_processes_than_a_machine_holds_are_refused() {
    let asked = |train: &str, separate| {
        let options = DemoOptions { train: train.to_owned(), separate, ..DemoOptions::default() };
        options.check().map(|checked| checked.world())
    };
    assert_eq!(asked("autotp:tp=2,dp=32", false).ok(), Some(PROCESSES_MAX));
    for (train, separate, world) in
        [("autotp:tp=1,dp=1048576", false, 1 << 20), ("autotp:tp=2,dp=32", true, 68)]
    {
        let error = asked(train, separate).expect_err("too many");
        let TrainerError::WorldTooLarge { needed, maximum: PROCESSES_MAX } = error else { panic!("{error}") };
        assert_eq!(needed, world);
        assert_eq!(error.category(), Category::Usage);
    }
}

#[test]
fn models_that_cannot_be_computed_are_refused_by_key_and_value() {
    let refusal = |key, value: serde_json::Value| {
        let options = DemoOptions { model: model(TINY, &[(key, value)]), ..DemoOptions::default() };
        let error = options.check().expect_err(key);
        (error.category(), error.to_string())
    };
    for (key, value, shown) in [
        ("head_dim", 7.into(), "7"),
        ("rms_norm_eps", 0.into(), "0"),
        ("rms_norm_eps", (-1e-6).into(), "-0.000001"),
        ("rms_norm_eps", 1e-60.into(), "0."),
        ("rms_norm_eps", 1e60.into(), "1000"),
        ("rope_theta", 0.into(), "0"),
        ("rope_theta", (-1.5).into(), "-1.5"),
    ] {
        let (category, text) = refusal(key, value);
        assert_eq!(category, Category::Invalid, "{text}");
        assert!(text.starts_with(&format!("tiny: {key:?} in the model configuration is {shown}")), "{text}");
    }
    let stretched = serde_json::json!({"rope_type": "linear", "factor": 2.0});
    for (key, value, shown) in [
        ("hidden_act", "gelu".into(), "\"gelu\""),
        ("rope_scaling", stretched.clone(), "linear"),
        ("rope_scaling", serde_json::json!({"type": "yarn"}), "yarn"),
        ("rope_parameters", stretched, "linear"),
        ("vocab_size", 200.into(), "200"),
    ] {
        let (category, text) = refusal(key, value);
        assert_eq!(category, Category::Unsupported, "{text}");
        assert!(text.starts_with("tiny: ") && text.contains(shown), "{text}");
    }
    let plain = serde_json::json!({"rope_type": "default", "rope_theta": 5e5});
    for (key, value) in [("rope_scaling", serde_json::Value::Null), ("rope_parameters", plain)] {
        let options = DemoOptions { model: model(TINY, &[(key, value)]), ..DemoOptions::default() };
        options.check().expect(key);
    }
}

//! Checkpoints: a trainer that goes on from one has the same bits, and then the same losses, at any topology.

use std::path::{Path, PathBuf};

use reshard_formats::universal::{self, ForStage, UniversalOptions};
use reshard_formats::{Checkpoint, Conversion, FormatError, Silent, WriteFault, WriteOptions, zero};
use reshard_parallel::engine::State;
use reshard_parallel::model::ModelConfig;
use reshard_trainer::{
    Category, GatherCost, Groups, Stored, TINY, Trainer, TrainerError, TrainerOptions, UNEVEN,
    whole_parameter,
};
use tempfile::TempDir;

use crate::harness::{in_f32, on_ranks, on_ranks_that_may_fail, start, topology, variant};

const STEPS_BEFORE: usize = 2;
const STEPS_AFTER: usize = 4;

/// A run that saved after some steps and went on.
struct Uninterrupted {
    folder: TempDir,
    /// Weights, masters and both moments when it saved, whole, gathered without any plan.
    held: Vec<Vec<u8>>,
    losses: Vec<f32>,
}

impl Uninterrupted {
    fn zero(&self) -> PathBuf {
        self.folder.path().join("zero")
    }

    fn universal(&self) -> PathBuf {
        self.folder.path().join("universal")
    }
}

/// Everything that the ranks of a trainer keep, whole, on each of them.
fn gathered(trainer: &Trainer, groups: &Groups) -> Vec<Vec<u8>> {
    let all = [Stored::Weights].into_iter().chain(State::ALL.map(Stored::State));
    let parameters = 0..trainer.engine().model().parameters().len();
    let gather = |stored| {
        let cost = &mut GatherCost::default();
        let one = |parameter| {
            whole_parameter(trainer.engine(), groups, stored, parameter, cost).expect("a parameter")
        };
        parameters.clone().flat_map(one).collect::<Vec<u8>>()
    };
    all.map(gather).collect()
}

fn steps(trainer: &mut Trainer, count: usize) -> Vec<f32> {
    (0..count).map(|_| trainer.step().expect("a step")).collect()
}

fn uninterrupted(config: &ModelConfig, train: &str) -> Uninterrupted {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("zero");
    let train = topology(train);
    let ranks = on_ranks(train.world(), |world| {
        let (mut trainer, groups) = start(config, &train, world, &TrainerOptions::default());
        steps(&mut trainer, STEPS_BEFORE);
        trainer.save(&path).expect("a checkpoint");
        let held = gathered(&trainer, &groups);
        (held, steps(&mut trainer, STEPS_AFTER))
    });
    let (held, losses) = ranks.into_iter().next().expect("a rank");
    let source = zero::open(&path).expect("a ZeRO checkpoint");
    let output =
        universal::output(&source, &UniversalOptions { for_stage: ForStage::Same }).expect("an output");
    let conversion = Conversion::new(source, output).expect("a conversion");
    let options = WriteOptions { sync: false, ..WriteOptions::default() };
    conversion.run(&folder.path().join("universal"), &options, &Silent).expect("a Universal checkpoint");
    Uninterrupted { folder, held, losses }
}

/// What a trainer that was born with other weights holds once it has loaded a checkpoint, and its losses from there.
fn resumed(config: &ModelConfig, train: &str, checkpoint: &Path) -> (Vec<Vec<u8>>, Vec<f32>) {
    let train = topology(train);
    let others = TrainerOptions { weight_seed_offsets: vec![99; 8], ..TrainerOptions::default() };
    let ranks = on_ranks(train.world(), |world| {
        let (mut trainer, groups) = start(config, &train, world, &others);
        trainer.load(&Checkpoint::open(checkpoint).expect("a checkpoint")).expect("loaded");
        assert_eq!(trainer.steps(), STEPS_BEFORE as u64);
        (gathered(&trainer, &groups), steps(&mut trainer, STEPS_AFTER))
    });
    ranks.into_iter().next().expect("a rank")
}

/// Whether the numbers of tensor- and data-parallel ranks are equal: then sums are added in the same order.
fn adds_alike(one: &str, other: &str) -> bool {
    let (one, other) = (topology(one), topology(other));
    (one.tp(), one.dp()) == (other.tp(), other.dp())
}

fn assert_resumes(config: &ModelConfig, from: &str, to: &[&str]) {
    let run = uninterrupted(config, from);
    for to in to {
        for checkpoint in [run.zero(), run.universal()] {
            let what = format!("{from} -> {to} from {}", checkpoint.file_name().expect("a name").display());
            let (held, losses) = resumed(config, to, &checkpoint);
            assert!(held == run.held, "{what}: other weights, masters or moments");
            if adds_alike(from, to) {
                assert_eq!(losses, run.losses, "{what}");
            }
            // Elsewhere sums are added in another order: 1.2e-7 was seen, one unit in the last place.
            let is_close = |(found, expected): (&f32, &f32)| (found - expected).abs() < 1e-5 * expected;
            assert!(
                losses.len() == STEPS_AFTER && losses.iter().zip(&run.losses).all(is_close),
                "{what}: {losses:?}, uninterrupted {:?}",
                run.losses
            );
        }
    }
}

#[test]
fn training_goes_on_at_any_topology_and_stage() {
    let uneven = variant(UNEVEN, &[("num_hidden_layers", 2.into())]);
    let tied = variant(TINY, &[("num_hidden_layers", 2.into()), ("tie_word_embeddings", true.into())]);
    let floats = in_f32(UNEVEN, &[("num_hidden_layers", 1.into())]);
    for (config, from, to) in [
        (
            &uneven,
            "autotp:tp=2,dp=2,zero=1",
            &["autotp:tp=2,dp=2,zero=1", "autotp:tp=3,zero=3", "autotp:tp=1,dp=3,zero=2"][..],
        ),
        (&tied, "autotp:tp=1,dp=3,zero=2", &["autotp:tp=1,dp=3,zero=2", "autotp:tp=4,zero=1", "autotp:tp=1"]),
        (
            &uneven,
            "autotp:tp=2,dp=2,zero=3",
            &["autotp:tp=2,dp=2,zero=3", "autotp:tp=2,dp=2,zero=2", "autotp:tp=1,dp=5,zero=3"],
        ),
        (
            &tied,
            "autotp:tp=2,dp=2,zero=3,init=zero",
            &[
                "autotp:tp=2,dp=2,zero=3,init=zero",
                "autotp:tp=2,dp=2,zero=3,init=dp",
                "autotp:tp=2,dp=4,zero=1",
            ],
        ),
        (
            &uneven,
            "autotp:tp=2,dp=2",
            &["autotp:tp=2,dp=2", "autotp:tp=2,dp=2,zero=3,init=zero", "autotp:tp=1,dp=2,zero=2"],
        ),
        (&floats, "autotp:tp=2,dp=2,zero=3", &["autotp:tp=2,dp=2,zero=1", "autotp:tp=3,zero=2"]),
        (
            &tied,
            "autotp:tp=2,dp=1,copies=2,zero=2",
            &["autotp:tp=2,copies=2,zero=3", "autotp:tp=2,dp=2,zero=2"],
        ),
    ] {
        assert_resumes(config, from, to);
    }
}

/// DeepSpeed itself fails on stage-3 shards without elements.
#[test]
fn ranks_without_heads_save_and_load() {
    let changes = [("num_key_value_heads", 2.into()), ("num_hidden_layers", 1.into())];
    let few = variant(UNEVEN, &changes);
    assert_resumes(&few, "autotp:tp=4,zero=3", &["autotp:tp=4,zero=3", "autotp:tp=2,dp=2,zero=3,init=zero"]);
    assert_resumes(&few, "autotp:tp=2,dp=2,zero=2", &["autotp:tp=4,zero=1", "autotp:tp=4,dp=2,zero=3"]);
}

#[test]
fn what_is_there_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let (config, train) = (variant(TINY, &[("num_hidden_layers", 1.into())]), topology("autotp:tp=2,zero=2"));
    let outcomes = on_ranks_that_may_fail(train.world(), |world| {
        let (trainer, groups) = start(&config, &train, world, &TrainerOptions::default());
        groups.world.barrier()?;
        trainer.save(folder.path())
    });
    let refused = outcomes.iter().filter(|outcome| match outcome {
        Err(TrainerError::Format(error)) => {
            matches!(**error, FormatError::Write { fault: WriteFault::Exists, .. })
        }
        _ => false,
    });
    assert_eq!(refused.count(), 1, "{outcomes:?}");
    assert!(outcomes.iter().all(Result::is_err));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn checkpoints_of_other_models_and_without_moments_are_refused() {
    let config = variant(TINY, &[("num_hidden_layers", 1.into())]);
    let run = uninterrupted(&config, "autotp:tp=1,dp=2,zero=1");
    let refusal = |config: &ModelConfig| {
        let train = topology("autotp:tp=1");
        let world = reshard_transport::World::in_process(1).expect("a world").remove(0);
        let (mut trainer, _) = start(config, &train, &world, &TrainerOptions::default());
        let outcome = trainer.load(&Checkpoint::open(&run.universal()).expect("a checkpoint"));
        let error = outcome.expect_err("a refusal");
        (error.category(), error.to_string())
    };
    let wide = variant(TINY, &[("num_hidden_layers", 1.into()), ("intermediate_size", 64.into())]);
    let (category, text) = refusal(&wide);
    assert!(category == Category::Invalid && text.contains("mlp.") && text.contains("64"), "{text}");
    let deep = variant(TINY, &[("num_hidden_layers", 2.into())]);
    let (category, text) = refusal(&deep);
    assert!(category == Category::Invalid && text.contains("layers.1."), "{text}");
    let moments = std::fs::read_dir(run.universal().join("global_step2_universal/zero")).expect("a folder");
    for entry in moments.filter_map(|entry| Some(entry.ok()?.path().join("exp_avg_sq.pt"))) {
        if entry.exists() {
            std::fs::remove_file(entry).expect("a file");
        }
    }
    let (category, text) = refusal(&config);
    assert!(category == Category::Invalid && text.contains("exp_avg_sq"), "{text}");
}

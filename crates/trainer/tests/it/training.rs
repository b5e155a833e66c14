//! Training: the same losses whatever the ranks, the stage or the run.

use reshard_trainer::{Block, Stored, TINY, TrainerOptions, UNEVEN};

use crate::harness::{in_f32, losses, variant, with_trainers};

const STAGES: [&str; 6] = ["zero=0", "zero=1", "zero=2", "zero=3", "zero=3,init=dp", "zero=3,init=zero"];

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs() / expected;
        assert!(difference < 1e-3, "{what}: loss {found} at step {step}, one process has {expected}");
    }
}

#[test]
fn every_stage_agrees_with_one_process_and_learns() {
    let options = TrainerOptions::default();
    for (name, config) in [
        ("tiny", in_f32(TINY, &[("num_hidden_layers", 2.into())])),
        ("uneven", in_f32(UNEVEN, &[("num_hidden_layers", 2.into()), ("tie_word_embeddings", true.into())])),
    ] {
        let alone = losses(&config, "autotp:tp=1", &options, 10);
        assert!(alone[9] < alone[0] - 0.5, "{name} does not learn: {alone:?}");
        for stage in STAGES {
            let topology = format!("autotp:tp=2,dp=2,{stage}");
            assert_close(&losses(&config, &topology, &options, 10), &alone, &format!("{name} {topology}"));
        }
    }
}

#[test]
fn stages_give_the_same_bits() {
    let config = variant(UNEVEN, &[("num_hidden_layers", 2.into())]);
    let options = TrainerOptions::default();
    let plain = losses(&config, "autotp:tp=2,dp=3", &options, 4);
    for stage in STAGES {
        let topology = format!("autotp:tp=2,dp=3,{stage}");
        assert_eq!(losses(&config, &topology, &options, 4), plain, "{topology}");
    }
}

#[test]
fn one_seed_gives_one_run() {
    let config = variant(TINY, &[("num_hidden_layers", 2.into())]);
    let run = |seed| {
        let options = TrainerOptions { seed, ..TrainerOptions::default() };
        losses(&config, "autotp:tp=2,dp=2,zero=2", &options, 3)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn more_ranks_than_key_heads_leave_some_without_a_shard() {
    let changes = [("num_key_value_heads", 2.into()), ("num_hidden_layers", 2.into())];
    let config = in_f32(UNEVEN, &changes);
    let options = TrainerOptions::default();
    let alone = losses(&config, "autotp:tp=1", &options, 4);
    for stage in ["zero=0", "zero=2", "zero=3", "zero=3,init=zero"] {
        let topology = format!("autotp:tp=4,dp=2,{stage}");
        assert_close(&losses(&config, &topology, &options, 4), &alone, &topology);
    }
}

#[test]
fn stage_3_keeps_one_block_of_weights_alive() {
    let config = variant(TINY, &[]);
    with_trainers(&config, "autotp:tp=2,dp=2,zero=3", &TrainerOptions::default(), |trainer| {
        trainer.step().expect("a step");
        assert_eq!(trainer.meter().alive().0, 0, "weights outlive their block");
        let engine = trainer.engine();
        let tp_rank = engine.description(Stored::Weights).tp_rank as usize;
        // bf16 slots of this rank and of both, and the f32 that they are widened to.
        let gathered = |index: usize| {
            let numel: usize = engine.model().parameters()[index].shard_shape(tp_rank).iter().product();
            let slot = numel.div_ceil(2) as u64;
            slot * 2 + 2 * slot * (2 + 4)
        };
        let block = |block: &Block| -> u64 { block.entries().iter().map(|(_, at)| gathered(*at)).sum() };
        let largest = engine.model().blocks().iter().map(block).max().expect("blocks");
        assert_eq!(trainer.meter().peak().0, largest);
    });
}

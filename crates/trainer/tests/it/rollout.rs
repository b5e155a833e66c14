//! Rollout engines: born as NaN, filled, and speaking as the unsharded model does.

use std::sync::Arc;

use half::bf16;
use reshard_parallel::engine::{DeepSpeed, State};
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::Slot;
use reshard_parallel::zero::ZeroOptions;
use reshard_plan::{Policy, plan};
use reshard_trainer::{
    Choice, Delivery, Expectation, GatherCost, Model, Oracle, Parties, RolloutEngine, Stored, TINY, Trainer,
    TrainerError, TrainerOptions, UNEVEN, whole_parameter,
};
use reshard_transport::{Shm, SourceBinding, Synchroniser, TargetBinding, Version, World};

use crate::harness::{in_f32, on_ranks, start, topology, variant};

fn rollout(config: &ModelConfig, text: &str, world: &World) -> RolloutEngine {
    let topology = topology(text);
    let deepspeed = DeepSpeed::new(config, &topology, ZeroOptions::default()).expect("a layout");
    let model = Arc::new(Model::new(config, topology.tp()).expect("a model"));
    let slot = Slot(world.rank().0);
    let tp = Arc::new(world.group(&deepspeed.tp_group(slot)).expect("a group"));
    RolloutEngine::new(model, &deepspeed, slot, tp).expect("an engine")
}

#[test]
fn engines_are_born_without_a_number() {
    for config in [variant(UNEVEN, &[]), in_f32(TINY, &[])] {
        on_ranks(2, |world| {
            let engine = rollout(&config, "autotp:tp=2", world);
            for storage in engine.storages() {
                let bytes = storage.memory().as_slice();
                assert!(!bytes.is_empty());
                let nan = match storage.spec().dtype {
                    reshard_layout::DType::Bf16 => {
                        bytemuck::cast_slice::<u8, bf16>(bytes).iter().all(|value| value.is_nan())
                    }
                    _ => bytemuck::cast_slice::<u8, f32>(bytes).iter().all(|value| value.is_nan()),
                };
                assert!(nan, "an element of {} is a number", storage.spec().name);
            }
            let silence = engine.generate(b"a", 1, Choice::Greedy);
            assert!(matches!(silence, Err(TrainerError::NotANumber { position: 2 })), "{silence:?}");
        });
    }
}

/// Moves weights out of the trainer's storages into the rollout engine's, as a plan says.
fn affine_sync(
    config: &ModelConfig,
    topologies: [&str; 2],
    world: &World,
    trainer: &Trainer,
    engine: &mut RolloutEngine,
) {
    let [train, rollout] = topologies.map(|text| {
        let deepspeed = DeepSpeed::new(config, &topology(text), ZeroOptions::default()).expect("engines");
        deepspeed.layout().expect("a layout")
    });
    let plan = plan(&train, &rollout, Policy::Balanced).expect("a plan");
    let mut sources = SourceBinding::new();
    let stored = trainer.engine().storages(Stored::Weights);
    for ((id, _), storage) in plan.source.of_rank(world.rank()).zip(stored) {
        sources.bind_shared(id, storage.memory());
    }
    let mut targets = TargetBinding::new();
    let (_, storages, state) = engine.target();
    for ((id, _), storage) in plan.target.of_rank(world.rank()).zip(storages) {
        targets.bind(id, storage.memory_mut());
    }
    let everyone = world.everyone().expect("a group");
    Synchroniser::new(Shm::new(&plan, world).expect("a transport"), &everyone)
        .sync(Version(1), &sources, &mut targets, state, |_| Ok(()))
        .expect("a sync");
}

/// Trains a little, syncs into rollout engines on the same ranks, and lets them speak.
fn speak(config: &ModelConfig, train: &str, rollout_text: &str, choice: Choice) -> Vec<Vec<u32>> {
    let topology = topology(train);
    on_ranks(topology.world(), |world| {
        let (mut trainer, _) = start(config, &topology, world, &TrainerOptions::default());
        let mut engine = rollout(config, rollout_text, world);
        for _ in 0..3 {
            trainer.step().expect("a step");
        }
        affine_sync(config, [train, rollout_text], world, &trainer, &mut engine);
        engine.generate(b"The keeper ", 24, choice).expect("words")
    })
}

#[test]
fn the_oracle_agrees_with_a_gather_and_sees_one_wrong_element() {
    let config = variant(UNEVEN, &[("num_hidden_layers", 1.into())]);
    for (text, rollout_text) in [
        ("autotp:tp=2,dp=2", "autotp:tp=4"),
        ("autotp:tp=3,dp=2,zero=2", "autotp:tp=2,copies=3"),
        ("autotp:tp=2,dp=2,zero=3,init=zero", "autotp:tp=4"),
    ] {
        let topology = topology(text);
        let deepspeed = DeepSpeed::new(&config, &topology, ZeroOptions::default()).expect("engines");
        on_ranks(topology.world(), |world| {
            let options = TrainerOptions::default();
            let (mut trainer, groups) = start(&config, &topology, world, &options);
            let mut engine = rollout(&config, rollout_text, world);
            let everyone = world.everyone().expect("a group");
            let oracle = Oracle::new(Arc::clone(trainer.engine().model()), &deepspeed, options.seed);
            let other = Oracle::new(Arc::clone(trainer.engine().model()), &deepspeed, options.seed + 1);
            let mismatches = |expectation: &Expectation, engine: &RolloutEngine| {
                let memory = |storage: usize| engine.storages()[storage].memory().as_slice();
                expectation.compare(engine.model(), engine.description(), memory)
            };
            for step in 0..2 {
                let mut parties = Parties {
                    trainer: Some((trainer.engine(), &groups)),
                    rollout: Some(&mut engine),
                    delivery: Delivery::InPlace,
                };
                parties.sync().expect("a sync");
                let trained = oracle.trained(Some(trainer.engine()), Some(&engine), &everyone);
                let trained = trained.expect("an expectation");
                assert_eq!(
                    trained == oracle.initial(Some(&engine)),
                    step == 0,
                    "{text}: masters start there"
                );
                assert_eq!(mismatches(&trained, &engine).mismatches, 0, "{text}");
                assert!(mismatches(&other.initial(Some(&engine)), &engine).mismatches > 0, "{text}");

                // The second element of what lies first.
                let run = engine.description().runs[0];
                let at = 2 * (run.offset.0 as usize + 1);
                engine.target().1[run.storage].memory_mut().as_mut_slice()[at] ^= 1;
                let found = mismatches(&trained, &engine);
                assert_eq!((found.mismatches, found.differing.len()), (1, 1), "{text}");
                let parameter = &engine.model().parameters()[run.parameter];
                assert_eq!(found.differing[0].parameter, parameter.name);
                trainer.step().expect("a step");
            }
        });
    }
}

#[test]
fn greedy_tokens_are_those_of_the_unsharded_model() {
    for (model, changes) in [(TINY, vec![]), (UNEVEN, vec![("tie_word_embeddings", true.into())])] {
        let config = variant(model, &changes);
        // The same trainer, so that the weights are the same bits.
        let whole = speak(&config, "autotp:tp=2,dp=2,zero=3", "autotp:tp=1,copies=4", Choice::Greedy);
        for rollout in ["autotp:tp=2,copies=2", "autotp:tp=4"] {
            let cut = speak(&config, "autotp:tp=2,dp=2,zero=3", rollout, Choice::Greedy);
            assert_eq!(cut, whole, "{} {rollout}", model.name);
        }
    }
}

#[test]
fn sampling_draws_the_same_on_every_rank() {
    let config = variant(TINY, &[("num_hidden_layers", 2.into())]);
    let draw = |seed| {
        let choice = Choice::Sampled { seed, temperature: 1.0 };
        let words = speak(&config, "autotp:tp=2,dp=2,zero=1", "autotp:tp=4", choice);
        assert!(words.iter().all(|tokens| *tokens == words[0]), "ranks draw different tokens");
        words.into_iter().next().expect("a rank")
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

fn wholes(config: &ModelConfig, text: &str, steps: usize, stored: Stored) -> Vec<Vec<u8>> {
    let topology = topology(text);
    let all = on_ranks(topology.world(), |world| {
        let (mut trainer, groups) = start(config, &topology, world, &TrainerOptions::default());
        for _ in 0..steps {
            trainer.step().expect("a step");
        }
        let count = trainer.engine().model().parameters().len();
        let whole = |parameter| {
            whole_parameter(trainer.engine(), &groups, stored, parameter, &mut GatherCost::default())
        };
        (0..count).map(|parameter| whole(parameter).expect("a parameter")).collect::<Vec<_>>()
    });
    assert!(all.iter().all(|rank| *rank == all[0]), "{text}: ranks gather different parameters");
    all.into_iter().next().expect("a rank")
}

#[test]
fn initial_weights_do_not_depend_on_the_cut() {
    for changes in [vec![], vec![("tie_word_embeddings", true.into())]] {
        let config = variant(UNEVEN, &changes);
        for stored in [Stored::Weights, Stored::State(State::Fp32)] {
            let alone = wholes(&config, "autotp:tp=1", 0, stored);
            for text in ["autotp:tp=4", "autotp:tp=3,dp=2,zero=2", "autotp:tp=2,dp=2,zero=3,init=zero"] {
                assert_eq!(wholes(&config, text, 0, stored), alone, "{text}");
            }
        }
    }
}

#[test]
fn stages_hold_the_same_optimizer_states() {
    let config = variant(UNEVEN, &[("num_hidden_layers", 1.into())]);
    for state in State::ALL {
        let plain = wholes(&config, "autotp:tp=2,dp=2", 2, Stored::State(state));
        assert!(plain.iter().all(|bytes| bytes.iter().any(|byte| *byte != 0)), "{state:?} is zero");
        for stage in ["zero=1", "zero=2", "zero=3", "zero=3,init=zero"] {
            let text = format!("autotp:tp=2,dp=2,{stage}");
            assert_eq!(wholes(&config, &text, 2, Stored::State(state)), plain, "{text} {state:?}");
        }
    }
}

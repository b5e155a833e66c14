//! Runs a trainer on as many threads as its topology has ranks.

use std::sync::{Arc, Once};

use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::{AutoTp, Slot, Topology};
use reshard_parallel::zero::ZeroOptions;
use reshard_trainer::{BuiltIn, DEFAULT_TEXT, Groups, Model, Trainer, TrainerOptions, ZeroEngine};
use reshard_transport::World;

/// A variant of a built-in model: keys of its configuration replaced.
pub(crate) fn variant(model: BuiltIn, changes: &[(&str, serde_json::Value)]) -> ModelConfig {
    let mut config: serde_json::Value =
        serde_json::from_str(model.config_json).expect("a built-in model is JSON");
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    ModelConfig::from_json(&config.to_string()).expect("a variant is a model")
}

/// A variant that stores its weights as f32.
pub(crate) fn in_f32(model: BuiltIn, changes: &[(&str, serde_json::Value)]) -> ModelConfig {
    variant(model, &[changes, &[("torch_dtype", "float32".into())]].concat())
}

pub(crate) fn topology(text: &str) -> AutoTp {
    match Topology::parse(text) {
        Ok(Topology::AutoTp(topology)) => topology,
        other => panic!("{text}: {other:?}"),
    }
}

/// Calls `body` once a rank, each on its own thread with its place in one world; results by rank.
pub(crate) fn on_ranks<T: Send>(size: u32, body: impl Fn(&World) -> T + Sync) -> Vec<T> {
    on_threads(size, |world| {
        let result = body(&world);
        world.leave().expect("nobody failed");
        result
    })
}

/// As [`on_ranks`], for bodies that may fail; the others learn of the first failure.
pub(crate) fn on_ranks_that_may_fail<T: Send, E: Send + std::fmt::Display>(
    size: u32,
    body: impl Fn(&World) -> Result<T, E> + Sync,
) -> Vec<Result<T, E>> {
    on_threads(size, |world| {
        let result = body(&world);
        if let Err(error) = &result {
            world.fail(error.to_string());
        }
        result
    })
}

fn on_threads<T: Send>(size: u32, body: impl Fn(World) -> T + Sync) -> Vec<T> {
    // Ranks are threads already; more of them would only wait for each other.
    static ONE_THREAD_EACH: Once = Once::new();
    ONE_THREAD_EACH.call_once(|| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1);
        pool.build_global().expect("nobody has made the pool yet");
    });
    let worlds = World::in_process(size as usize).expect("a world of threads");
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = worlds.into_iter().map(|world| scope.spawn(move || body(world))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panicked")).collect()
    })
}

/// A trainer on each rank of a topology, with the default text.
pub(crate) fn with_trainers<T: Send>(
    config: &ModelConfig,
    topology_text: &str,
    options: &TrainerOptions,
    body: impl Fn(&mut Trainer) -> T + Sync,
) -> Vec<T> {
    let topology = topology(topology_text);
    on_ranks(topology.world(), |world| {
        let (mut trainer, _) = start(config, &topology, world, options);
        body(&mut trainer)
    })
}

/// A trainer with the default text, and the groups that it is in.
pub(crate) fn start(
    config: &ModelConfig,
    topology: &AutoTp,
    world: &World,
    options: &TrainerOptions,
) -> (Trainer, Groups) {
    let deepspeed = DeepSpeed::new(config, topology, ZeroOptions::default()).expect("a layout");
    let model = Arc::new(Model::new(config, topology.tp()).expect("a model"));
    let slot = Slot(world.rank().0);
    let groups = Groups::new(world, &deepspeed, slot).expect("groups");
    let engine = ZeroEngine::new(model, &deepspeed, slot, &groups).expect("an engine");
    let trainer = Trainer::new(engine, &groups, DEFAULT_TEXT.as_bytes(), options).expect("a trainer");
    (trainer, groups)
}

/// The losses of some steps, which all ranks must report alike.
pub(crate) fn losses(
    config: &ModelConfig,
    topology_text: &str,
    options: &TrainerOptions,
    steps: usize,
) -> Vec<f32> {
    let all = with_trainers(config, topology_text, options, |trainer| {
        (0..steps).map(|_| trainer.step().expect("a step")).collect::<Vec<_>>()
    });
    for (rank, other) in all.iter().enumerate() {
        assert_eq!(other, &all[0], "rank {rank} of {topology_text} reports other losses");
    }
    all.into_iter().next().expect("a rank")
}

//! Optimizer states, rebuilt on one rank from where their layouts say they lie.

use reshard_layout::Rank;
use reshard_parallel::engine::{DeepSpeed, State};
use reshard_parallel::zero::ZeroOptions;
use reshard_plan::{Policy, plan};
use reshard_trainer::{GatherCost, Stored, TrainerOptions, UNEVEN, whole_parameter};
use reshard_transport::{
    SharedMemory, Shm, SourceBinding, Synchroniser, TargetBinding, TargetState, Version,
};

use crate::harness::{on_ranks, start, topology, variant};

/// A whole, unsharded engine on rank 0: stage 0 of one process, whose flat buffer holds every parameter.
#[test]
fn states_rebuilt_from_layouts_are_those_gathered() {
    for tied in [false, true] {
        let config =
            variant(UNEVEN, &[("num_hidden_layers", 1.into()), ("tie_word_embeddings", tied.into())]);
        let whole =
            DeepSpeed::new(&config, &topology("autotp:tp=1"), ZeroOptions::default()).expect("a layout");
        for text in [
            "autotp:tp=2,dp=2",
            "autotp:tp=2,dp=2,zero=1",
            "autotp:tp=2,dp=3,zero=2",
            "autotp:tp=2,dp=2,zero=3",
            "autotp:tp=3,dp=2,zero=3,init=zero",
        ] {
            let train = topology(text);
            let deepspeed = DeepSpeed::new(&config, &train, ZeroOptions::default()).expect("a layout");
            on_ranks(train.world(), |world| {
                let (mut trainer, groups) = start(&config, &train, world, &TrainerOptions::default());
                for _ in 0..2 {
                    trainer.step().expect("a step");
                }
                for state in State::ALL {
                    let source = deepspeed.optimizer_layout(state).expect("a layout");
                    let target = whole.optimizer_layout(state).expect("a layout");
                    let plan = plan(&source, &target, Policy::Balanced).expect("a plan");
                    let mut rebuilt =
                        SharedMemory::create(target.places().storages[0].length).expect("memory");
                    rebuilt.as_mut_slice().fill(0xff);
                    let mut sources = SourceBinding::new();
                    let storages = trainer.engine().storages(Stored::State(state));
                    for ((id, _), storage) in plan.source.of_rank(world.rank()).zip(storages) {
                        sources.bind_shared(id, storage.memory());
                    }
                    let mut targets = TargetBinding::new();
                    if world.rank() == Rank(0) {
                        targets.bind(reshard_layout::StorageId(0), &mut rebuilt);
                    }
                    let everyone = world.everyone().expect("a group");
                    let transport = Shm::new(&plan, world).expect("a transport");
                    Synchroniser::new(transport, &everyone)
                        .sync(Version(1), &sources, &mut targets, &mut TargetState::Torn, |_| Ok(()))
                        .expect("a sync");

                    let gather = |parameter| {
                        let cost = &mut GatherCost::default();
                        whole_parameter(trainer.engine(), &groups, Stored::State(state), parameter, cost)
                    };
                    let parameters = 0..trainer.engine().model().parameters().len();
                    let gathered: Vec<u8> =
                        parameters.flat_map(|at| gather(at).expect("a parameter")).collect();
                    // One process without padding keeps its parameters one after another.
                    if world.rank() == Rank(0) {
                        assert!(rebuilt.as_slice() == gathered, "{text} {state:?} tied {tied}");
                    }
                }
            });
        }
    }
}

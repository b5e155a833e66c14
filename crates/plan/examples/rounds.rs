//! How long a schedule takes, and how many rounds it has: any-to-any traffic of growing worlds, then a real
//! model. Run by `make bench`. One share is what one rank asks for.

#![allow(clippy::print_stdout, clippy::expect_used)]

use std::time::Instant;

use reshard_layout::{
    Buffer, BufferId, Bytes, DType, Dims, Elements, Layout, ParameterId, Places, Rank, Storage, StorageId,
};
use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::Topology;
use reshard_parallel::zero::ZeroOptions;
use reshard_plan::{Copy, End, Plan, Policy, Schedule, Statistics, plan};

/// One to seven chunks of 16 bytes from every rank to every rank, as a fixed sequence of numbers says.
fn traffic(ranks: u32) -> Plan {
    let mut seed = 7u64;
    let mut copies = Vec::new();
    for source in 0..ranks {
        for target in 0..ranks {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let end =
                |rank| End { buffer: BufferId(rank), offset: Elements(0), strides: Dims::from_slice(&[1]) };
            copies.push(Copy {
                target: end(target),
                source: end(source),
                shape: Dims::from_slice(&[16 * (1 + (seed >> 33) % 7)]),
                parameter: ParameterId(0),
                origin: Dims::from_slice(&[0]),
            });
        }
    }
    let storage = |rank| Storage { rank: Rank(rank), name: "flat".to_owned(), length: Bytes(112) };
    let buffer =
        |id| Buffer { storage: StorageId(id), offset: Bytes(0), dtype: DType::U8, length: Elements(112) };
    let places =
        Places { storages: (0..ranks).map(storage).collect(), buffers: (0..ranks).map(buffer).collect() };
    Plan {
        version: Plan::VERSION,
        fingerprint: u64::from(ranks),
        policy: Policy::Custom,
        cast: false,
        source: places.clone(),
        target: places,
        copies,
        fills: Vec::new(),
        parameters: Vec::new(),
        statistics: Statistics::default(),
    }
}

fn layout(topology: &str) -> Layout {
    let model = ModelConfig::from_json(include_str!("../../parallel/tests/data/Qwen3-8B.json"));
    let model = model.expect("the config is one");
    let Topology::AutoTp(topology) = Topology::parse(topology).expect("a topology") else {
        unreachable!("only autotp is named here")
    };
    let engine =
        DeepSpeed::new(&model, &topology, ZeroOptions::default()).expect("the model fits the topology");
    engine.layout().expect("the engine has a layout")
}

fn line(name: &str, plan: &Plan, staging: Bytes) {
    let start = Instant::now();
    let schedule = Schedule::new(plan, staging).expect("the plan has a schedule");
    let scheduled = start.elapsed();
    let start = Instant::now();
    let share = schedule.share(plan, Rank(0)).expect("the plan is that of the schedule");
    let shared = start.elapsed();
    let sent = share.rounds.iter().filter_map(|round| round.send.as_ref());
    println!(
        "{name:<44}{:>9}{:>8}{:>8}{:>13.2}{:>10.2}{:>11}",
        schedule.messages(),
        schedule.bound(),
        schedule.rounds(),
        scheduled.as_secs_f64() * 1e3,
        shared.as_secs_f64() * 1e3,
        sent.map(|message| message.boxes.len()).sum::<usize>()
    );
}

fn main() {
    println!(
        "{:<44}{:>9}{:>8}{:>8}{:>13}{:>10}{:>11}",
        "traffic", "messages", "bound", "rounds", "schedule ms", "share ms", "boxes sent"
    );
    for ranks in [16, 64, 128, 256, 512] {
        line(&format!("any to any, {ranks} ranks"), &traffic(ranks), Schedule::STAGING_MIN);
    }
    for (source, target) in [
        ("autotp:tp=2,dp=4,zero=3", "autotp:tp=4,copies=2"),
        ("autotp:tp=2,dp=16,zero=3", "autotp:tp=8,copies=4"),
        ("autotp:tp=2,dp=32,zero=3", "autotp:tp=8,copies=8"),
    ] {
        let made = plan(&layout(source), &layout(target), Policy::Balanced).expect("one model onto itself");
        for staging in [Schedule::STAGING_DEFAULT, Bytes(1 << 20)] {
            line(&format!("{source}, {} KiB", staging.0 >> 10), &made, staging);
        }
    }
}

//! Processes that are stopped, late, or out of descriptors: everybody else gets an error in time.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use reshard_layout::{Bytes, Rank};
use reshard_transport::{
    Category, Communicator, Launcher, Limits, Outcome, SharedMemory, Shm, Synchroniser, TargetState,
    TransportError, Version, World,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};

use crate::conformance::{Memory, verify};
use crate::fixture::{Fixture, all_kinds};
use crate::processes::{assert_all_gone, codes, command, read_line};

/// The bodies that a rank process can run.
pub(crate) const BODIES: [(&str, fn()); 6] = [
    ("hub", hub),
    ("stopped", stopped),
    ("stopped_in_sync", stopped_in_sync),
    ("slow_to_join", slow_to_join),
    ("few_descriptors", few_descriptors),
    ("starving_launcher", starving_launcher),
];

const TIMEOUT: Duration = Duration::from_secs(1);

/// Above the timeout, the second for the launcher and a busy machine; far below the defaults.
const SOON: Duration = Duration::from_secs(20);

/// Runs one body on every rank of a world whose processes have little time.
fn run_soon(commands: Vec<(Rank, Command)>, limits: Limits) -> Outcome {
    let launcher = Launcher::start_within(commands.len(), commands, limits).unwrap();
    let process_ids = launcher.process_ids().to_vec();
    let start = Instant::now();
    let outcome = launcher.wait();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert_all_gone(&process_ids);
    outcome
}

fn everyone(size: u32, body: &str) -> Vec<(Rank, Command)> {
    (0..size).map(|rank| (Rank(rank), command(body))).collect()
}

/// Stops this process. The signal may reach another thread first: this one waits for it.
fn stop_here() {
    kill_process(getpid(), Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_millis(200));
}

/// Rank 1 stops; the others exit with 7 if their error names it, and who waited for it.
fn expect_late(error: TransportError, call: &str) -> ! {
    let TransportError::Timeout { rank, waiting_for, .. } = error else { panic!("{error}") };
    assert!(rank != Rank(1), "{rank}");
    assert_eq!(waiting_for, format!("ranks [1] in {call}"));
    std::process::exit(7);
}

fn stopped() {
    let world = World::from_environment_within(TIMEOUT).unwrap();
    let group = world.everyone().unwrap();
    for round in 0.. {
        if world.rank() == Rank(1) && round == 3 {
            stop_here();
        }
        if let Err(error) = group.all_reduce(&mut [1.0]) {
            expect_late(error, "all_reduce");
        }
    }
}

#[test]
fn a_stopped_rank_is_named_and_reaped() {
    let outcome = run_soon(everyone(3, "stopped"), Limits::default());
    let failure = outcome.failure.clone().unwrap();
    assert!(
        matches!(&failure, TransportError::Timeout { waiting_for, .. } if waiting_for == "ranks [1] in all_reduce"),
        "{failure}"
    );
    assert!(failure.is_peer_failure());
    assert_eq!(codes(&outcome), [Some(7), None, Some(7)]);
}

fn stopped_in_sync() {
    let world = World::from_environment_within(TIMEOUT).unwrap();
    let rank = world.rank();
    let fixture = Fixture::new(3, &all_kinds());
    let mut memory = Memory::new(&fixture, Some(rank));
    memory.fill(&fixture, 0);
    let group = world.everyone().unwrap();
    let mut state = TargetState::Committed(Version(1));
    let mut synchroniser = Synchroniser::new(Shm::new(&fixture.plan, &world).unwrap(), &group);
    let (sources, mut targets) = memory.bind();
    let result = synchroniser.sync(Version(2), &sources, &mut targets, &mut state, |targets| {
        if rank == Rank(1) {
            stop_here();
        }
        verify(&fixture, Some(rank), 0, targets)
    });
    assert_eq!(state, TargetState::InDoubt);
    expect_late(result.unwrap_err(), "all_gather");
}

#[test]
fn a_rank_that_is_stopped_in_a_sync_leaves_the_others_in_doubt() {
    let outcome = run_soon(everyone(3, "stopped_in_sync"), Limits::default());
    assert_eq!(codes(&outcome), [Some(7), None, Some(7)]);
}

fn hub() {
    let launcher = Launcher::start(1, Vec::new()).unwrap();
    println!("\nname {}.", launcher.name());
    let _outcome = launcher.wait();
}

#[test]
fn a_stopped_launcher_is_named() {
    let mut hub = command("hub").stdout(Stdio::piped()).spawn().unwrap();
    let name = read_line(&mut hub, "name ");
    let world = World::join_within(&name, Rank(0), TIMEOUT).unwrap();
    kill_process(Pid::from_child(&hub), Signal::STOP).unwrap();
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", hub.id())).unwrap();
        stat.contains(") T ")
    };
    while !is_stopped() {
        std::thread::yield_now();
    }

    let start = Instant::now();
    let late = |rank, doing: &str| {
        let waiting_for = format!("the launcher in {doing}");
        TransportError::Timeout { rank, waiting_for, seconds: TIMEOUT.as_secs() }
    };
    assert_eq!(world.everyone().unwrap_err(), late(Rank(0), "making a group of 1"));
    // A late answer to one request must not be taken for that to another.
    assert_eq!(world.everyone().unwrap_err(), TransportError::LauncherGone { rank: Rank(0) });
    let error = World::join_within(&name, Rank(0), TIMEOUT).unwrap_err();
    assert_eq!(error, late(Rank(0), "joining"));
    drop(world);
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    hub.kill().unwrap();
    hub.wait().unwrap();
}

#[test]
fn processes_that_never_join_are_a_failure_in_time() {
    let mut sleeping = Command::new("sleep");
    sleeping.arg("600");
    let mut commands = everyone(3, "slow_to_join");
    commands[1].1 = sleeping;
    let outcome = run_soon(commands, Limits { join: TIMEOUT, ..Limits::default() });
    assert_eq!(outcome.failure, Some(TransportError::NotJoined { ranks: vec![Rank(1)], seconds: 1 }));
    assert_eq!(codes(&outcome), [Some(7), None, Some(7)]);

    // Nobody is there who could notice but the launcher.
    let mut sleeping = Command::new("sleep");
    sleeping.arg("600");
    let limits = Limits { join: Duration::ZERO, grace: Duration::ZERO };
    let outcome = run_soon(vec![(Rank(0), sleeping)], limits);
    assert_eq!(outcome.failure.unwrap().to_string(), "ranks [0] did not join within 0 s");
}

fn slow_to_join() {
    std::thread::sleep(Duration::from_millis(300));
    match World::from_environment() {
        Ok(world) => world.leave().unwrap(),
        Err(error) => {
            assert!(error.to_string().starts_with("ranks [1] did not join"), "{error}");
            std::process::exit(7);
        }
    }
}

/// From here on this process may open `left` descriptors more.
fn leave_descriptors(left: usize) {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
    let highest = open.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok()).max().unwrap();
    // Numbers below the highest may be free: take them, so that none is left but those above.
    let mut taken = Vec::new();
    loop {
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&file)).unwrap();
        taken.push(file);
        if number > highest {
            let current = Some(number + 1 + left as u64);
            setrlimit(Resource::Nofile, Rlimit { current, ..getrlimit(Resource::Nofile) }).unwrap();
            std::mem::forget(taken);
            return;
        }
    }
}

fn few_descriptors() {
    let world = World::from_environment().unwrap();
    let memory = SharedMemory::create(Bytes(8)).unwrap();
    world.publish(&[("flat", &memory)]).unwrap();
    leave_descriptors(0);
    for error in [
        world.map(Rank(0), "flat").unwrap_err(),
        world.everyone().unwrap_err(),
        SharedMemory::create(Bytes(8)).unwrap_err(),
    ] {
        assert_eq!(error.category(), Category::System, "{error}");
        assert!(error.to_string().to_lowercase().contains("open files"), "{error}");
    }
    // A group that could not be had is not had twice: the next one is another, and works.
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..getrlimit(Resource::Nofile) }).unwrap();
    world.everyone().unwrap().barrier().unwrap();
    world.leave().unwrap();
}

#[test]
fn a_rank_without_descriptors_says_so() {
    let outcome = run_soon(everyone(1, "few_descriptors"), Limits::default());
    assert_eq!(outcome.failure, None);
}

fn starving_launcher() {
    // The ranks wait before they join: none can be let in any more.
    let launcher = Launcher::start(2, everyone(2, "slow_to_join")).unwrap();
    let process_ids = launcher.process_ids().to_vec();
    leave_descriptors(0);
    let failure = launcher.wait().failure.unwrap();
    assert_eq!(failure.category(), Category::System, "{failure}");
    assert!(failure.to_string().starts_with("could not let a rank in: "), "{failure}");
    assert_all_gone(&process_ids);
    // Now not even a process can be started, nor a socket made.
    let error = Launcher::start(1, everyone(1, "slow_to_join")).unwrap_err();
    assert_eq!(error.category(), Category::System, "{error}");
}

#[test]
fn a_launcher_without_descriptors_says_so() {
    let mut launcher = command("starving_launcher").stderr(Stdio::inherit()).spawn().unwrap();
    assert!(launcher.wait().unwrap().success());
}

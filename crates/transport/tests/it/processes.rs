//! Worlds of real processes: how they meet, how they die, and what is left of them.
//!
//! A rank process is this test binary again: it runs the one test `rank_process`, which runs the body that the
//! environment names, and which does nothing in an ordinary run.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use reshard_layout::{Bytes, Rank};
use reshard_transport::{
    Category, Communicator, Launcher, Limits, Outcome, PeerMemory, SharedMemory, TransportError, World,
};
use rustix::process::{Pid, Signal, getpid, kill_process, test_kill_process};

const BODY: &str = "RESHARD_TEST_BODY";

/// The bodies that a rank process can run.
const BODIES: [(&str, fn()); 10] = [
    ("meet", meet),
    ("wait_forever", wait_forever),
    ("killed", || killed(Rank(2), "SIGKILL")),
    ("killed_stranger", || killed(Rank(2), "killed or crashed")),
    ("bad_exit", bad_exit),
    ("report", report),
    ("panic", panic),
    ("storages", storages),
    ("launcher", launcher),
    ("many", many),
];

#[test]
fn rank_process() {
    let Ok(name) = std::env::var(BODY) else {
        return;
    };
    let all = BODIES.iter().chain(&crate::sync_processes::BODIES).chain(&crate::starved::BODIES);
    let (_, body) = all.into_iter().find(|(known, _)| *known == name).unwrap();
    body();
}

/// The command that runs a body in a process of its own.
pub(crate) fn command(body: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::rank_process", "--nocapture", "--test-threads=1"]);
    command.env(BODY, body).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts a world in which every rank runs the body.
pub(crate) fn launch(size: u32, body: &str) -> Launcher {
    Launcher::start(size as usize, (0..size).map(|rank| (Rank(rank), command(body))).collect()).unwrap()
}

fn is_gone(process: Pid) -> bool {
    test_kill_process(process).is_err()
}

pub(crate) fn assert_all_gone(process_ids: &[(Rank, u32)]) {
    for &(rank, id) in process_ids {
        assert!(is_gone(Pid::from_raw(id.cast_signed()).unwrap()), "rank {rank} still runs");
    }
}

fn run(size: u32, body: &str) -> Outcome {
    let launcher = launch(size, body);
    let process_ids = launcher.process_ids().to_vec();
    let outcome = launcher.wait();
    assert_all_gone(&process_ids);
    outcome
}

/// Exit codes by rank; a survivor of a failure exits with 7 once it has seen the expected error.
pub(crate) fn codes(outcome: &Outcome) -> Vec<Option<i32>> {
    outcome.exits.iter().map(|exit| exit.status.code()).collect()
}

fn meet() {
    let world = World::from_environment().unwrap();
    let group = world.everyone().unwrap();
    let mut data = [world.rank().0 as f32, 1.0];
    group.all_reduce(&mut data).unwrap();
    assert_eq!(data, [6.0, 4.0]);
    world.leave().unwrap();
}

#[test]
fn processes_meet_and_add() {
    let outcome = run(4, "meet");
    assert_eq!(outcome.failure, None);
    assert_eq!(codes(&outcome), [Some(0); 4]);
}

fn many() {
    let world = World::from_environment().unwrap();
    let group = world.everyone().unwrap();
    for round in 0..100 {
        let mut data = vec![1.0; 1000];
        group.all_reduce(&mut data).unwrap();
        assert_eq!(data[round], 16.0);
    }
    world.leave().unwrap();
}

#[test]
fn sixteen_processes_take_turns() {
    assert_eq!(run(16, "many").failure, None);
}

fn wait_forever() {
    let world = World::from_environment().unwrap();
    let group = world.everyone().unwrap();
    // The last rank never calls: it waits for a failure, and the others wait for it.
    let error = if world.rank().index() + 1 == world.size() {
        world.group(&[world.rank()]).unwrap();
        // Longer than the test, and an end if nobody kills it.
        std::thread::park_timeout(Duration::from_secs(60));
        return;
    } else {
        group.barrier().unwrap_err()
    };
    assert!(matches!(error, TransportError::PeerFailed { rank: Rank(2), .. }), "{error}");
    std::process::exit(7);
}

/// The victim kills itself; the others exit with 7 if they are told so in these words.
fn killed(victim: Rank, words: &str) {
    let world = World::from_environment().unwrap();
    let group = world.everyone().unwrap();
    let mut data = vec![1.0; 200_000];
    for round in 0.. {
        if world.rank() == victim && round == 3 {
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        if let Err(error) = group.all_reduce(&mut data) {
            let TransportError::PeerFailed { rank, cause } = error else { panic!("{error}") };
            assert_eq!((rank, cause.contains(words)), (victim, true), "{cause}");
            std::process::exit(7);
        }
    }
}

#[test]
fn survivors_of_a_kill_in_a_collective_name_the_dead() {
    let outcome = run(4, "killed");
    let cause = "process ended with signal: 9 (SIGKILL)".to_owned();
    let closed = format!("connection closed without a goodbye: {cause}");
    let rank = Rank(2);
    let failure = outcome.failure.clone().unwrap();
    assert!(
        [cause, closed].map(|cause| TransportError::PeerFailed { rank, cause }).contains(&failure),
        "{failure}"
    );
    assert_eq!(codes(&outcome), [Some(7), Some(7), None, Some(7)]);
}

#[test]
fn the_death_of_a_stranger_is_seen_too() {
    let commands = vec![(Rank(0), command("killed_stranger")), (Rank(1), command("killed_stranger"))];
    let launcher = Launcher::start(3, commands).unwrap();
    let mut stranger = command("killed_stranger");
    stranger.env("RESHARD_RENDEZVOUS", launcher.name()).env("RESHARD_RANK", "2");
    let mut stranger = stranger.spawn().unwrap();
    let outcome = launcher.wait();
    assert!(!stranger.wait().unwrap().success());
    assert!(matches!(outcome.failure, Some(TransportError::PeerFailed { rank: Rank(2), .. })));
    assert_eq!(codes(&outcome), [Some(7), Some(7)]);
}

fn bad_exit() {
    let world = World::from_environment().unwrap();
    let code = world.rank().0.cast_signed();
    world.leave().unwrap();
    std::process::exit(code);
}

#[test]
fn a_bad_exit_after_a_goodbye_is_a_failure() {
    let outcome = run(2, "bad_exit");
    let cause = "process ended with exit status: 1".to_owned();
    assert_eq!(outcome.failure, Some(TransportError::PeerFailed { rank: Rank(1), cause }));
}

/// Waits for the others; the failing rank may have failed before the group is even made.
fn wait_for_failure(world: &World) -> TransportError {
    world.everyone().and_then(|group| group.barrier()).unwrap_err()
}

fn report() {
    let world = World::from_environment().unwrap();
    let error =
        if world.rank() == Rank(1) { world.fail("the reactor is hot") } else { wait_for_failure(&world) };
    let cause = "the reactor is hot".to_owned();
    assert_eq!(error, TransportError::PeerFailed { rank: Rank(1), cause });
    std::process::exit(7);
}

#[test]
fn a_reported_error_is_everybodys() {
    let outcome = run(3, "report");
    assert_eq!(outcome.failure.clone().unwrap().to_string(), "rank 1 failed: the reactor is hot");
    assert_eq!(codes(&outcome), [Some(7); 3]);
}

fn panic() {
    let world = World::from_environment().unwrap();
    assert!(world.rank() != Rank(0));
    assert_eq!(wait_for_failure(&world).to_string(), "rank 0 failed: panicked");
    std::process::exit(7);
}

#[test]
fn a_panic_is_everybodys() {
    assert_eq!(codes(&run(3, "panic")), [Some(101), Some(7), Some(7)]);
}

#[test]
fn who_does_not_react_is_killed_after_the_grace_period() {
    let commands = (0..4).map(|rank| (Rank(rank), command("wait_forever"))).collect();
    let limits = Limits { grace: Duration::from_millis(300), ..Limits::default() };
    let launcher = Launcher::start_within(4, commands, limits).unwrap();
    let process_ids = launcher.process_ids().to_vec();
    kill_process(Pid::from_raw(process_ids[2].1.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let outcome = launcher.wait();
    assert!(matches!(outcome.failure, Some(TransportError::PeerFailed { rank: Rank(2), .. })));
    assert_eq!(outcome.exits.len(), 4);
    assert_all_gone(&process_ids);
}

#[test]
fn a_rank_that_does_not_join_is_a_failure() {
    let commands = vec![(Rank(0), command("meet")), (Rank(1), Command::new("false"))];
    let outcome = Launcher::start(2, commands).unwrap().wait();
    let cause = "process ended with exit status: 1 before it joined".to_owned();
    assert_eq!(outcome.failure, Some(TransportError::PeerFailed { rank: Rank(1), cause }));
}

#[test]
fn a_command_that_cannot_start_leaves_nothing() {
    let commands = vec![(Rank(0), command("meet")), (Rank(1), Command::new("/nonexistent/program"))];
    let error = Launcher::start(2, commands).unwrap_err();
    assert!(matches!(error, TransportError::NotStarted { rank: Rank(1), .. }), "{error}");
    assert_eq!((error.category(), error.is_peer_failure()), (Category::System, false));
}

#[test]
fn a_dropped_launcher_leaves_nothing() {
    let launcher = launch(3, "wait_forever");
    let process_ids = launcher.process_ids().to_vec();
    drop(launcher);
    assert_all_gone(&process_ids);
}

/// A launcher in a process of its own: prints its ranks' process ids, then waits to be killed.
fn launcher() {
    let launcher = launch(3, "wait_forever");
    let ids: Vec<String> = launcher.process_ids().iter().map(|(_, id)| id.to_string()).collect();
    println!("\nranks {}.", ids.join(" "));
    let _outcome = launcher.wait();
}

/// What a process prints between a word and the next full stop.
pub(crate) fn read_line(process: &mut Child, word: &str) -> String {
    let mut output = process.stdout.take().unwrap();
    let mut text = String::new();
    loop {
        let mut byte = [0];
        output.read_exact(&mut byte).unwrap();
        text.push(byte[0] as char);
        if let Some(line) = text.split(word).nth(1).and_then(|rest| rest.strip_suffix('.')) {
            return line.to_owned();
        }
    }
}

#[test]
fn ranks_die_with_a_killed_launcher() {
    let mut launcher = command("launcher").stdout(Stdio::piped()).spawn().unwrap();
    let line = read_line(&mut launcher, "ranks ");
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    for id in line.split(' ') {
        let id = id.parse::<i32>().unwrap();
        // The kernel has sent the kill by now; whoever adopts the orphan reaps it. A zombie is dead too.
        let start = Instant::now();
        while std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(start.elapsed() < Duration::from_secs(30), "rank process {id} outlives its launcher");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_foreign_rank_loses_its_launcher_but_not_its_voice() {
    let launcher = Launcher::start(1, Vec::new()).unwrap();
    let world = World::join(launcher.name(), Rank(0)).unwrap();
    drop(launcher);
    assert_eq!(world.everyone().unwrap_err(), TransportError::LauncherGone { rank: Rank(0) });
}

#[test]
fn a_parked_rank_sees_that_its_launcher_is_gone() {
    let launcher = Launcher::start(2, Vec::new()).unwrap();
    let name = launcher.name().to_owned();
    let other = std::thread::spawn(move || World::join(&name, Rank(1)).unwrap());
    let world = World::join(launcher.name(), Rank(0)).unwrap();
    let _silent = other.join().unwrap();
    let group = world.everyone().unwrap();
    let waiting = std::thread::spawn(move || group.barrier().unwrap_err());
    drop(launcher);
    assert_eq!(waiting.join().unwrap(), TransportError::LauncherGone { rank: Rank(0) });
}

#[test]
fn foreign_processes_join_by_name() {
    // Ranks 0 and 1 are started by the launcher, rank 2 by hand as a stranger would be, and 3 is this process.
    let commands = vec![(Rank(0), command("meet")), (Rank(1), command("meet"))];
    let launcher = Launcher::start(4, commands).unwrap();
    let mut stranger = command("meet");
    stranger.env("RESHARD_RENDEZVOUS", launcher.name()).env("RESHARD_RANK", "2");
    let mut stranger = stranger.spawn().unwrap();
    let world = World::join(launcher.name(), Rank(3)).unwrap();
    let mut data = [3.0, 1.0];
    world.everyone().unwrap().all_reduce(&mut data).unwrap();
    assert_eq!(data, [6.0, 4.0]);
    world.leave().unwrap();
    assert!(stranger.wait().unwrap().success());
    assert_eq!(launcher.wait().failure, None);
}

#[test]
fn ranks_that_cannot_be_are_refused() {
    let launcher = Launcher::start(2, Vec::new()).unwrap();
    let name = launcher.name().to_owned();
    let out_of_range = World::join(&name, Rank(2)).unwrap_err();
    assert_eq!(out_of_range, TransportError::RankOutOfRange { rank: Rank(2), size: 2 });
    // Rank 0 waits for rank 1 in another thread; once it is there, its number is taken.
    let first = std::thread::spawn({
        let name = name.clone();
        move || World::join(&name, Rank(0)).unwrap().leave().unwrap()
    });
    let second = World::join(&name, Rank(1)).unwrap();
    assert_eq!(World::join(&name, Rank(0)).unwrap_err(), TransportError::RankTaken { rank: Rank(0) });
    second.leave().unwrap();
    first.join().unwrap();
    assert_eq!(launcher.wait().failure, None);
    // A process that another test is starting may hold the listening socket for the moment before it runs.
    let error = World::join(&name, Rank(0)).unwrap_err();
    assert!(
        matches!(error, TransportError::NoRendezvous { .. } | TransportError::LauncherGone { .. }),
        "{error}"
    );
    let twice = vec![(Rank(0), command("meet")), (Rank(0), command("meet"))];
    assert_eq!(Launcher::start(2, twice).unwrap_err(), TransportError::RankTaken { rank: Rank(0) });
}

#[expect(unsafe_code, reason = "reading a peer's memory")]
fn bytes_of(memory: &PeerMemory) -> Vec<u8> {
    // SAFETY: its owner, this rank or another, writes to it before a barrier that has passed, and never after.
    unsafe { memory.to_vec() }
}

fn storages() {
    let world = World::from_environment().unwrap();
    let group = world.everyone().unwrap();
    let mut memory = SharedMemory::create(Bytes(10_000)).unwrap();
    for (index, byte) in memory.as_mut_slice().iter_mut().enumerate() {
        *byte = (index as u32 * 3 + world.rank().0) as u8;
    }
    let empty = SharedMemory::create(Bytes(0)).unwrap();
    world.publish(&[("flat", &memory), ("empty", &empty)]).unwrap();
    group.barrier().unwrap();
    for rank in 0..3 {
        let bytes = bytes_of(&world.map(Rank(rank), "flat").unwrap());
        assert_eq!(bytes.len(), 10_000);
        assert!((0..10_000u32).all(|index| bytes[index as usize] == (index * 3 + rank) as u8));
        assert_eq!(world.map(Rank(rank), "empty").unwrap().length(), Bytes(0));
    }
    group.barrier().unwrap();
    world.withdraw(&["flat", "flatter"]).unwrap();
    group.barrier().unwrap();
    let unknown = world.map(Rank(0), "flat").unwrap_err();
    assert_eq!(unknown, TransportError::StorageUnknown { rank: Rank(0), name: "flat".to_owned() });
    assert_eq!(world.map(Rank(0), "empty").unwrap().length(), Bytes(0));
    group.barrier().unwrap();
    world.leave().unwrap();
}

#[test]
fn storages_are_seen_by_name() {
    assert_eq!(run(3, "storages").failure, None);
}

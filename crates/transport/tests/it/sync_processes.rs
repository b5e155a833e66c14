//! Syncs between real processes.

use reshard_layout::Rank;
use reshard_transport::{Outcome, Shm, Synchroniser, TargetState, TransportError, Version, World};
use rustix::process::{Signal, getpid, kill_process};

use crate::conformance::{Memory, conform_as_rank, verify};
use crate::fixture::{Fixture, all_kinds};
use crate::processes::launch;

/// The bodies that a rank process can run.
pub(crate) const BODIES: [(&str, fn()); 2] = [("conform", conform_in_process), ("die_in_sync", die_in_sync)];

fn conform_in_process() {
    let world = World::from_environment().unwrap();
    conform_as_rank(&world, &Fixture::new(3, &all_kinds()));
    world.leave().unwrap();
}

#[test]
fn processes_conform() {
    let outcome: Outcome = launch(3, "conform").wait();
    assert_eq!(outcome.failure, None);
    assert!(outcome.exits.iter().all(|exit| exit.status.success()));
}

/// Rank 1 kills itself after its move; the others must not commit, and must know who it was.
fn die_in_sync() {
    let world = World::from_environment().unwrap();
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
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        verify(&fixture, Some(rank), 0, targets)
    });
    let Err(TransportError::PeerFailed { rank: dead, cause }) = result else { panic!("{result:?}") };
    assert_eq!((dead, state.version()), (Rank(1), None));
    assert!(cause.contains("SIGKILL"), "{cause}");
    std::process::exit(7);
}

#[test]
fn survivors_of_a_kill_in_a_sync_name_the_dead_and_commit_nothing() {
    let outcome = launch(3, "die_in_sync").wait();
    assert!(matches!(outcome.failure, Some(TransportError::PeerFailed { rank: Rank(1), .. })));
    let codes: Vec<_> = outcome.exits.iter().map(|exit| exit.status.code()).collect();
    assert_eq!(codes, [Some(7), None, Some(7)]);
}

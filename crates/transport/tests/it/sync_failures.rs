//! Syncs that must not happen, or must not be believed.

use reshard_layout::{Bytes, DType, Elements, Rank, StorageId};
use reshard_transport::{
    Alone, Category, Local, SharedMemory, Shm, SourceBinding, Synchroniser, TargetBinding, TargetState,
    TransportError, Version, World, compile,
};

use crate::collectives::ranks;
use crate::conformance::{Memory, verify};
use crate::fixture::{Aligned, Fixture, all_kinds};

/// One thread's sync of a fixture that `spoil` may change first; what it returned, and what it left.
fn attempt(
    world: World,
    spoil: impl Fn(Rank, &mut Fixture),
    version: impl Fn(Rank) -> Version,
    verdict: impl Fn(Rank) -> Result<(), String>,
) -> (Result<(), TransportError>, TargetState, Memory) {
    let rank = world.rank();
    let mut fixture = Fixture::new(3, &all_kinds());
    spoil(rank, &mut fixture);
    let mut memory = Memory::new(&fixture, Some(rank));
    memory.fill(&fixture, 0);
    let group = world.everyone().unwrap();
    let mut state = TargetState::Committed(Version(1));
    let result = {
        let shm = Shm::new(&fixture.plan, &world).unwrap();
        let (sources, mut targets) = memory.bind();
        Synchroniser::new(shm, &group)
            .sync(version(rank), &sources, &mut targets, &mut state, |targets| {
                verify(&fixture, Some(rank), 0, targets).unwrap();
                verdict(rank)
            })
            .map(|_| ())
    };
    world.leave().unwrap();
    (result, state, memory)
}

/// Every rank gets this error, keeps its version, and finds its targets untouched.
fn assert_refused(
    results: Vec<(Result<(), TransportError>, TargetState, Memory)>,
    expected: &TransportError,
) {
    for (result, state, memory) in results {
        assert_eq!(result.as_ref(), Err(expected));
        assert_eq!(state, TargetState::Committed(Version(1)));
        memory.assert_untouched();
    }
}

#[test]
fn different_plans_are_refused_everywhere() {
    let results = ranks(3, |world| {
        let spoil =
            |rank: Rank, fixture: &mut Fixture| fixture.plan.fingerprint += u64::from(rank == Rank(2));
        attempt(world, spoil, |_| Version(2), |_| Ok(()))
    });
    let (rank, reference) = (Rank(2), Rank(0));
    let (expected, found) = (0x00C0_FFEE, 0x00C0_FFEF);
    assert_refused(results, &TransportError::PlanMismatch { rank, reference, expected, found });
}

#[test]
fn different_copies_of_one_fingerprint_are_refused_everywhere() {
    let results = ranks(3, |world| {
        // Copy 10 goes from rank 0 to rank 2; only rank 0 believes in another shape.
        let spoil = |rank: Rank, fixture: &mut Fixture| {
            fixture.plan.copies[10].shape[0] -= u64::from(rank == Rank(0))
        };
        attempt(world, spoil, |_| Version(2), |_| Ok(()))
    });
    let (source_rank, target_rank) = (Rank(0), Rank(2));
    assert_refused(results, &TransportError::CopiesMismatch { source_rank, target_rank });
}

#[test]
fn different_versions_are_refused_everywhere() {
    let results = ranks(3, |world| {
        attempt(world, |_, _| (), |rank| Version(2 + u64::from(rank == Rank(1))), |_| Ok(()))
    });
    let (rank, reference) = (Rank(1), Rank(0));
    assert_refused(results, &TransportError::VersionMismatch { rank, reference, expected: 2, found: 3 });
}

#[test]
fn one_wrong_binding_is_refused_everywhere() {
    let results = ranks(3, |world| {
        let fixture = Fixture::new(3, &all_kinds());
        let mut memory = Memory::new(&fixture, Some(world.rank()));
        if world.rank() == Rank(1) {
            memory.sources[0].1 = SharedMemory::create(Bytes(8)).unwrap();
        }
        let group = world.everyone().unwrap();
        let mut state = TargetState::Committed(Version(1));
        let (sources, mut targets) = memory.bind();
        let mut synchroniser = Synchroniser::new(Shm::new(&fixture.plan, &world).unwrap(), &group);
        let result =
            synchroniser.sync(Version(2), &sources, &mut targets, &mut state, |_| Ok(())).map(|_| ());
        drop((synchroniser, targets));
        world.leave().unwrap();
        (result, state, memory)
    });
    let fixture = Fixture::new(3, &all_kinds());
    let (name, expected) = ("flat".to_owned(), fixture.plan.source.storage(StorageId(3)).length);
    let cause = TransportError::StorageLength { rank: Rank(1), name, expected, found: Bytes(8) }.to_string();
    assert_refused(results, &TransportError::Refused { rank: Rank(1), cause });
}

#[test]
fn what_one_rank_does_not_believe_no_rank_commits() {
    let results = ranks(3, |world| {
        let verdict = |rank| if rank == Rank(2) { Err("odd values".to_owned()) } else { Ok(()) };
        attempt(world, |_, _| (), |_| Version(2), verdict)
    });
    for (result, state, _memory) in results {
        assert_eq!(
            result,
            Err(TransportError::NotVerified { rank: Rank(2), cause: "odd values".to_owned() })
        );
        assert_eq!((state, state.version()), (TargetState::Torn, None));
    }
}

#[test]
fn who_dies_before_the_commit_leaves_the_others_in_doubt() {
    let results = ranks(3, |world| {
        let rank = world.rank();
        let fixture = Fixture::new(3, &all_kinds());
        let mut memory = Memory::new(&fixture, Some(rank));
        memory.fill(&fixture, 0);
        let group = world.everyone().unwrap();
        let mut state = TargetState::Committed(Version(1));
        let (sources, mut targets) = memory.bind();
        let mut synchroniser = Synchroniser::new(Shm::new(&fixture.plan, &world).unwrap(), &group);
        let result = synchroniser.sync(Version(2), &sources, &mut targets, &mut state, |targets| {
            verify(&fixture, Some(rank), 0, targets)?;
            if rank == Rank(0) {
                world.fail("lost power");
            }
            Ok(())
        });
        (result.map(|_| ()), state)
    });
    for (rank, (result, state)) in results.into_iter().enumerate() {
        assert_eq!(result, Err(TransportError::PeerFailed { rank: Rank(0), cause: "lost power".to_owned() }));
        // Rank 0 failed after its move: it is in doubt, and so is who had moved by then. Nobody saw the third
        // agreement. Who comes to its move after rank 0 has gone may not read any more, and stays torn.
        let states =
            if rank == 0 { &[TargetState::InDoubt][..] } else { &[TargetState::InDoubt, TargetState::Torn] };
        assert!(states.contains(&state) && state.version().is_none(), "rank {rank}: {state:?}");
    }
}

#[test]
fn a_group_without_a_peer_is_refused() {
    let fixture = Fixture::new(3, &all_kinds());
    let worlds = World::in_process(3).unwrap();
    let group = worlds[0].group(&[Rank(0)]).unwrap();
    let mut memory = Memory::new(&fixture, Some(Rank(0)));
    let (sources, mut targets) = memory.bind();
    let mut synchroniser = Synchroniser::new(Shm::new(&fixture.plan, &worlds[0]).unwrap(), &group);
    let error = synchroniser
        .sync(Version(1), &sources, &mut targets, &mut TargetState::default(), |_| Ok(()))
        .unwrap_err();
    let cause = TransportError::RankMissing { rank: Rank(1) }.to_string();
    assert_eq!(error, TransportError::Refused { rank: Rank(0), cause });
}

#[test]
fn a_group_of_another_world_is_refused() {
    let others: Vec<_> = World::in_process(3).unwrap().into_iter().map(Some).collect();
    let others = std::sync::Mutex::new(others);
    let results = ranks(3, move |world| {
        let other = others.lock().unwrap()[world.rank().index()].take().unwrap();
        let fixture = Fixture::new(3, &all_kinds());
        let mut memory = Memory::new(&fixture, Some(world.rank()));
        let group = other.everyone().unwrap();
        let (sources, mut targets) = memory.bind();
        let mut synchroniser = Synchroniser::new(Shm::new(&fixture.plan, &world).unwrap(), &group);
        let mut state = TargetState::default();
        let result = synchroniser.sync(Version(2), &sources, &mut targets, &mut state, |_| Ok(()));
        drop(synchroniser);
        world.leave().unwrap();
        other.leave().unwrap();
        result.map(|_| ()).unwrap_err()
    });
    let cause = TransportError::WorldMismatch { rank: Rank(0) }.to_string();
    assert_eq!(results, vec![TransportError::Refused { rank: Rank(0), cause }; 3]);
}

/// The cause for which a local sync of these bindings is refused.
fn refusal(fixture: &Fixture, sources: &SourceBinding<'_>, targets: &mut TargetBinding<'_>) -> String {
    let mut synchroniser =
        Synchroniser::new(Local::new(&fixture.plan).unwrap(), Box::leak(Box::new(Alone::default())));
    let mut state = TargetState::default();
    match synchroniser.sync(Version(1), sources, targets, &mut state, |_| Ok(())).unwrap_err() {
        TransportError::Refused { rank: Rank(0), cause } => cause,
        other => panic!("{other}"),
    }
}

#[test]
fn bindings_are_checked() {
    let fixture = Fixture::new(3, &all_kinds());
    let mut memory = Memory::new(&fixture, None);
    let flat = fixture.plan.target.storage(StorageId(0)).length;

    let (sources, _) = memory.bind();
    let cause = refusal(&fixture, &sources, &mut TargetBinding::new());
    assert_eq!(cause, format!("storage flat of rank 0 is not bound: the plan needs its {flat} bytes"));

    let mut shifted = Aligned::untouched(flat + Bytes(1));
    let (sources, mut targets) = memory.bind();
    targets.bind(StorageId(0), &mut shifted.bytes_mut()[1..]);
    let cause = refusal(&fixture, &sources, &mut targets);
    assert!(cause.starts_with("storage flat of rank 0 lies 1 bytes past an address"), "{cause}");

    let (mut sources, mut targets) = memory.bind();
    sources.bind(StorageId(99), &[][..]);
    assert_eq!(refusal(&fixture, &sources, &mut targets), "the plan has no storage 99: it has 9");
}

#[test]
fn memory_that_only_its_owner_sees_cannot_be_read_by_others() {
    let results = ranks(3, |world| {
        let fixture = Fixture::new(3, &all_kinds());
        let mut memory = Memory::new(&fixture, Some(world.rank()));
        let private = Aligned::untouched(fixture.plan.source.storage(StorageId(6)).length);
        let group = world.everyone().unwrap();
        let (mut sources, mut targets) = memory.bind();
        if world.rank() == Rank(2) {
            sources.bind(StorageId(6), private.bytes());
        }
        let mut synchroniser = Synchroniser::new(Shm::new(&fixture.plan, &world).unwrap(), &group);
        let mut state = TargetState::default();
        let result = synchroniser.sync(Version(2), &sources, &mut targets, &mut state, |_| Ok(()));
        drop(synchroniser);
        world.leave().unwrap();
        result.map(|_| ()).unwrap_err()
    });
    let cause = TransportError::StorageNotShared { rank: Rank(2), name: "flat".to_owned() }.to_string();
    assert_eq!(results, vec![TransportError::Refused { rank: Rank(2), cause }; 3]);
}

/// A plan that casts is right, but moved elsewhere: every rank refuses it alike, also one that has no such copy.
#[test]
fn casts_are_refused_by_name_before_a_byte_moves() {
    let mut plan = Fixture::new(3, &all_kinds()).plan;
    plan.cast = true;
    Local::new(&plan).unwrap();
    plan.source.buffers[4].dtype = DType::F16;
    let refused = TransportError::CastUnsupported {
        parameter: "parameter.4".to_owned(),
        source_dtype: DType::F16,
        target_dtype: DType::Bf16,
    };
    assert_eq!(refused.category(), Category::Unsupported);
    assert_eq!(
        refused.to_string(),
        "parameter.4: the plan casts f16 to bf16, and this transport moves bits as they are"
    );
    assert_eq!(Local::new(&plan).unwrap_err(), refused);
    for rank in 0..3 {
        assert_eq!(compile(&plan, |target| target == Rank(rank)).unwrap_err(), refused);
    }
}

#[test]
fn copies_are_checked_before_a_byte_moves() {
    let fixture = || Fixture::new(3, &all_kinds()).plan;
    let error = |plan| compile(&plan, |_| true).unwrap_err();

    // One element more than buffer 4 has behind the box: its margin is 2.
    let mut plan = fixture();
    plan.copies[4].target.offset = Elements(2 + 2 + 1);
    let out = error(plan);
    assert!(
        matches!(&out, TransportError::CopyOutOfBounds { copy: 4, side, rank: Rank(1), .. } if side == "target"),
        "{out}"
    );

    // A buffer that its storage does not hold.
    let mut plan = fixture();
    plan.source.storages[0].length = Bytes(16);
    let out = error(plan);
    assert!(
        matches!(&out, TransportError::CopyOutOfBounds { copy: 0, side, .. } if side == "source")
            || matches!(&out, TransportError::CopyOutOfBounds { side, expected: Bytes(16), .. } if side == "source"),
        "{out}"
    );

    let malformed: [fn(&mut reshard_plan::Plan); 5] = [
        |plan| plan.copies[4].source.strides[0] = 0,
        |plan| plan.copies[4].source.strides[0] = u64::MAX / 3,
        |plan| plan.copies[4].shape.truncate(1),
        |plan| plan.source.buffers[4].dtype = DType::F16,
        |plan| plan.copies[4].source.buffer.0 = 1000,
    ];
    for spoil in malformed {
        let mut plan = fixture();
        spoil(&mut plan);
        let out = error(plan);
        assert!(matches!(&out, TransportError::CopyMalformed { copy: 4, .. }), "{out}");
    }

    let mut plan = fixture();
    plan.version += 1;
    let expected = reshard_plan::Plan::VERSION;
    assert_eq!(error(plan), TransportError::PlanVersion { expected, found: expected + 1 });
    let mut plan = fixture();
    plan.fills[1].offset.0 = 1 << 40;
    assert!(matches!(Local::new(&plan), Err(TransportError::FillMalformed { fill: 1, .. })));
}

//! One suite that every transport passes: in one process, between threads, between processes.

use reshard_layout::{Bytes, DType, Rank, StorageId};
use reshard_transport::{
    Alone, Communicator, Local, Moved, SharedMemory, Shm, SourceBinding, Synchroniser, TargetBinding,
    TargetState, Transport, Version, World,
};

use crate::collectives::ranks;
use crate::fixture::{Aligned, Fixture, Wanted, all_kinds};

/// Memory of one process: its sources, shared, and its targets.
pub(crate) struct Memory {
    pub(crate) sources: Vec<(StorageId, SharedMemory)>,
    pub(crate) targets: Vec<(StorageId, Aligned)>,
}

impl Memory {
    /// Fresh memory for one rank, or for all.
    pub(crate) fn new(fixture: &Fixture, rank: Option<Rank>) -> Self {
        let sources = Fixture::owned(&fixture.plan.source, rank);
        let targets = Fixture::owned(&fixture.plan.target, rank);
        Self {
            sources: sources
                .into_iter()
                .map(|(id, length)| (id, SharedMemory::create(length).unwrap()))
                .collect(),
            targets: targets.into_iter().map(|(id, length)| (id, Aligned::untouched(length))).collect(),
        }
    }

    pub(crate) fn fill(&mut self, fixture: &Fixture, round: u64) {
        for (id, memory) in &mut self.sources {
            memory.as_mut_slice().copy_from_slice(&fixture.source_bytes(*id, round));
        }
    }

    pub(crate) fn bind(&mut self) -> (SourceBinding<'_>, TargetBinding<'_>) {
        let (mut sources, mut targets) = (SourceBinding::new(), TargetBinding::new());
        for (id, memory) in &self.sources {
            sources.bind_shared(*id, memory);
        }
        for (id, memory) in &mut self.targets {
            targets.bind(*id, memory.bytes_mut());
        }
        (sources, targets)
    }

    pub(crate) fn assert_untouched(&self) {
        assert!(self.targets.iter().all(|(_, memory)| memory.bytes().iter().all(|&byte| byte == 0xFF)));
    }
}

/// Compares every byte of the bound targets with what they must hold.
pub(crate) fn verify(
    fixture: &Fixture,
    rank: Option<Rank>,
    round: u64,
    targets: &TargetBinding<'_>,
) -> Result<(), String> {
    for (id, _) in Fixture::owned(&fixture.plan.target, rank) {
        let (found, expected) = (targets.bytes(id).unwrap(), fixture.expected(id, round));
        if let Some(at) = (0..expected.len()).find(|&at| found[at] != expected[at]) {
            return Err(format!("byte {at} of storage {} is {}, not {}", id.0, found[at], expected[at]));
        }
    }
    Ok(())
}

/// The suite: what any transport does with a fixture, seen from one process.
pub(crate) fn conform<T: Transport>(
    fixture: &Fixture,
    rank: Option<Rank>,
    transport: T,
    communicator: &dyn Communicator,
) -> Moved {
    let mut synchroniser = Synchroniser::new(transport, communicator);
    let mut state = TargetState::default();
    let mut memory = Memory::new(fixture, rank);
    let mut last = Moved::default();
    // Twice from the same memory, then from other memory of the same storages.
    for round in 0..3 {
        if round == 2 {
            memory = Memory::new(fixture, rank);
        }
        memory.fill(fixture, round);
        let (sources, mut targets) = memory.bind();
        let version = Version(10 + round);
        let report = synchroniser
            .sync(version, &sources, &mut targets, &mut state, |targets| {
                verify(fixture, rank, round, targets)
            })
            .unwrap();
        assert_eq!(state, TargetState::Committed(version));
        let (local, sent) = fixture.bytes_into(rank);
        assert_eq!((report.moved.bytes_local, report.moved.bytes_sent), (local, sent));
        assert_eq!((report.moved.rounds, report.moved.staging_bytes_max), (0, Bytes(0)));
        last = report.moved;
    }
    last
}

pub(crate) fn conform_as_rank(world: &World, fixture: &Fixture) -> Moved {
    let group = world.everyone().unwrap();
    let shm = Shm::new(&fixture.plan, world).unwrap();
    let expected = shm.expected();
    let moved = conform(fixture, Some(world.rank()), shm, &group);
    assert_eq!(moved, expected);
    moved
}

#[test]
fn local_conforms() {
    let fixture = Fixture::new(3, &all_kinds());
    let local = Local::new(&fixture.plan).unwrap();
    let expected = local.expected();
    let moved = conform(&fixture, None, local, &Alone::default());
    assert_eq!(moved, expected);
    assert_eq!(moved.copies, all_kinds().len() as u64);
}

#[test]
fn threads_conform() {
    let moved = ranks(3, |world| {
        let moved = conform_as_rank(&world, &Fixture::new(3, &all_kinds()));
        world.leave().unwrap();
        moved
    });
    let fixture = Fixture::new(3, &all_kinds());
    let all = Local::new(&fixture.plan).unwrap().expected();
    assert_eq!(moved.iter().map(|moved| moved.blocks).sum::<u64>(), all.blocks);
    assert_eq!(moved.iter().map(|moved| moved.bytes_sent).sum::<Bytes>(), all.bytes_sent);
}

#[test]
fn a_plan_without_copies_is_a_plan() {
    let fixture = Fixture::new(2, &[]);
    assert_eq!(
        conform(&fixture, None, Local::new(&fixture.plan).unwrap(), &Alone::default()),
        Moved::default()
    );
}

#[test]
fn blocks_are_as_few_as_the_strides_allow() {
    let blocks = |shape: &[u64], source: &[u64], target: &[u64]| {
        let wanted = Wanted {
            from: 0,
            to: 0,
            dtype: DType::Bf16,
            shape: shape.to_vec(),
            source: source.to_vec(),
            target: target.to_vec(),
        };
        Local::new(&Fixture::new(1, &[wanted]).plan).unwrap().expected().blocks
    };
    assert_eq!(blocks(&[64, 32], &[32, 1], &[32, 1]), 1);
    assert_eq!(blocks(&[64, 32], &[48, 1], &[32, 1]), 64);
    assert_eq!(blocks(&[8, 8, 32], &[256, 32, 1], &[512, 64, 1]), 64);
    assert_eq!(blocks(&[64, 32], &[1, 64], &[32, 1]), 64 * 32);
}

//! Schedules: their shares are carried out element by element through byte messages, and compared with what
//! the two layouts say; rounds and bound are worked out apart.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use reshard_layout::strategies::layout_pairs;
use reshard_layout::{
    Buffer, BufferId, Bytes, DType, Dims, Elements, Kind, Parameter, ParameterId, Places, Rank, Storage,
    StorageId,
};
use reshard_plan::{Copy, End, Options, Plan, Policy, Schedule, ScheduleError, Share, Statistics, verify};

use crate::memory::{Memory, retyped};

/// The shares of all ranks.
fn shares(plan: &Plan, schedule: &Schedule) -> Vec<Share> {
    let world = plan.statistics.sent_by_rank.len() as u32;
    (0..world).map(|rank| schedule.share(plan, Rank(rank)).unwrap()).collect()
}

/// Bytes from each rank to each other, counted copy by copy.
fn traffic(plan: &Plan) -> BTreeMap<(u32, u32), u64> {
    let mut traffic = BTreeMap::new();
    for copy in &plan.copies {
        let (from, to) = (plan.source_rank(copy).0, plan.target_rank(copy).0);
        let width = |places: &Places, end: &End| places.buffer(end.buffer).dtype.size();
        let width = width(&plan.source, &copy.source).min(width(&plan.target, &copy.target));
        if from != to {
            *traffic.entry((from, to)).or_default() += copy.shape.iter().product::<u64>() * width;
        }
    }
    traffic
}

/// The most messages of one rank in one direction.
fn most_messages(traffic: &BTreeMap<(u32, u32), u64>, chunk: u64) -> u32 {
    let mut counts: BTreeMap<(bool, u32), u64> = BTreeMap::new();
    for (&(from, to), &bytes) in traffic {
        *counts.entry((true, from)).or_default() += bytes.div_ceil(chunk);
        *counts.entry((false, to)).or_default() += bytes.div_ceil(chunk);
    }
    counts.into_values().max().unwrap_or(0) as u32
}

/// What must hold of any schedule, whatever the layouts.
fn assert_sound(plan: &Plan, schedule: &Schedule, shares: &[Share]) {
    let traffic = traffic(plan);
    let bound = most_messages(&traffic, schedule.chunk().0);
    assert_eq!((schedule.rounds(), schedule.bound()), (bound, bound));
    let mut moved: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for round in 0..bound as usize {
        let mut received = 0;
        let mut sent = 0;
        for (rank, share) in (0u32..).zip(shares) {
            assert_eq!(share.rounds.len(), bound as usize);
            received += usize::from(share.rounds[round].receive.is_some());
            let Some(message) = &share.rounds[round].send else { continue };
            sent += 1;
            assert_ne!(message.peer, Rank(rank));
            let other = shares[message.peer.index()].rounds[round].receive.as_ref().unwrap();
            assert_eq!((other.peer, other.bytes), (Rank(rank), message.bytes));
            assert!(message.bytes.0 > 0 && message.bytes <= schedule.chunk());
            let mut end = 0;
            assert_eq!(message.boxes.len(), other.boxes.len());
            for (one, other) in message.boxes.iter().zip(&other.boxes) {
                assert_eq!((&one.shape, one.position, one.wire), (&other.shape, other.position, other.wire));
                assert_eq!(one.position.0, end);
                assert_eq!(end % one.wire.size(), 0);
                end += one.shape.iter().product::<u64>() * one.wire.size();
            }
            assert_eq!(end, message.bytes.0);
            *moved.entry((rank, message.peer.0)).or_default() += end;
        }
        assert!(sent > 0, "round {round} is empty");
        assert_eq!(sent, received);
    }
    let traffic: BTreeMap<_, _> = traffic.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
    assert_eq!(moved, traffic);
    assert_eq!(moved.values().sum::<u64>(), plan.statistics.bytes_sent.0);
    let messages: u64 = moved.values().map(|bytes| bytes.div_ceil(schedule.chunk().0)).sum();
    assert_eq!(schedule.messages(), messages);
}

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::Bf16];

/// A parameter's type on both sides: one type, or two between which a plan may cast.
fn types() -> impl Strategy<Value = (DType, DType)> {
    let kept = select(vec![DType::U8, DType::I64, DType::I32, DType::F8E4m3, DType::F8E5m2]);
    prop_oneof![kept.prop_map(|dtype| (dtype, dtype)), (select(&FLOATS[..]), select(&FLOATS[..]))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// Chunks of 2 to 200 elements, where shapes have up to 216: rows are cut.
    #[test]
    fn every_element_arrives_through_messages(
        (source, target) in layout_pairs(),
        types in vec(types(), 3),
        staging in 64u64..800,
    ) {
        let source = retyped(&source, |parameter| types[parameter].0);
        let target = retyped(&target, |parameter| types[parameter].1);
        let plan = Options::new(Policy::Balanced).cast(true).plan(&source, &target).unwrap();
        verify(&plan, &source, &target).unwrap();
        let schedule = Schedule::new(&plan, Bytes(staging)).unwrap();
        prop_assert_eq!(schedule.chunk().0, staging / 64 * 16);
        let shares = shares(&plan, &schedule);
        assert_sound(&plan, &schedule, &shares);
        let mut memory = Memory::untouched(&target);
        memory.carry_out(&plan, &shares, &Memory::of(&source));
        prop_assert_eq!(memory, Memory::of(&target));
        let again = Schedule::new(&plan.clone(), Bytes(staging)).unwrap();
        prop_assert_eq!(again.fingerprint(), schedule.fingerprint());
        prop_assert_eq!(again, schedule);
    }

    /// Any traffic between up to twelve ranks, most of it lopsided.
    #[test]
    fn rounds_are_as_few_as_the_busiest_rank_needs(
        amounts in (1usize..12).prop_flat_map(|ranks| {
            vec(vec(prop_oneof![3 => Just(0u64), 2 => 1u64..40, 1 => 1u64..600], ranks), ranks)
        }),
    ) {
        let plan = of_traffic(&amounts);
        let schedule = Schedule::new(&plan, Bytes(64)).unwrap();
        assert_sound(&plan, &schedule, &shares(&plan, &schedule));
    }
}

/// A plan by hand: `amounts[i][j]` bytes from rank `i` to rank `j`, one after another in one storage a rank.
fn of_traffic(amounts: &[Vec<u64>]) -> Plan {
    let ranks = amounts.len();
    let places = |lengths: Vec<u64>| Places {
        storages: (0u32..)
            .zip(&lengths)
            .map(|(rank, &length)| Storage {
                rank: Rank(rank),
                name: "flat".to_owned(),
                length: Bytes(length),
            })
            .collect(),
        buffers: (0u32..)
            .zip(&lengths)
            .map(|(id, &length)| Buffer {
                storage: StorageId(id),
                offset: Bytes(0),
                dtype: DType::U8,
                length: Elements(length),
            })
            .collect(),
    };
    let mut sent = vec![0; ranks];
    let mut received = vec![0; ranks];
    let mut statistics = Statistics { sent_by_rank: vec![Bytes(0); ranks], ..Statistics::default() };
    let mut copies = Vec::new();
    for (from, row) in amounts.iter().enumerate() {
        for (to, &amount) in row.iter().enumerate().filter(|(_, amount)| **amount > 0) {
            let end = |rank: usize, at: u64| End {
                buffer: BufferId(rank as u32),
                offset: Elements(at),
                strides: Dims::from_slice(&[1]),
            };
            copies.push(Copy {
                source: end(from, sent[from]),
                target: end(to, received[to]),
                shape: Dims::from_slice(&[amount]),
                parameter: ParameterId(0),
                origin: Dims::from_slice(&[0]),
            });
            sent[from] += amount;
            received[to] += amount;
            if from != to {
                statistics.bytes_sent += Bytes(amount);
            }
        }
    }
    Plan {
        version: Plan::VERSION,
        fingerprint: 0x00C0_FFEE,
        policy: Policy::Custom,
        cast: false,
        source: places(sent),
        target: places(received),
        copies,
        fills: Vec::new(),
        parameters: vec![Parameter { name: "w".to_owned(), shape: Dims::new(), dtype: DType::F32 }],
        statistics,
    }
}

/// (round, source, target, bytes) of each message.
fn lines(plan: &Plan, schedule: &Schedule) -> Vec<(usize, u32, u32, u64)> {
    let shares = shares(plan, schedule);
    let mut lines = Vec::new();
    for round in 0..schedule.rounds() as usize {
        for (rank, share) in (0u32..).zip(&shares) {
            if let Some(message) = &share.rounds[round].send {
                lines.push((round, rank, message.peer.0, message.bytes.0));
            }
        }
    }
    lines
}

#[test]
fn the_worked_example_of_the_module() {
    let plan = of_traffic(&[vec![0, 40, 16], vec![0, 0, 10], vec![0, 0, 0]]);
    let schedule = Schedule::new(&plan, Bytes(64)).unwrap();
    let expected = [(0, 0, 1, 16), (0, 1, 2, 10), (1, 0, 1, 16), (2, 0, 1, 8), (3, 0, 2, 16)];
    assert_eq!(lines(&plan, &schedule), expected);
    assert_eq!((schedule.rounds(), schedule.bound(), schedule.messages()), (4, 4, 5));
}

#[test]
fn everybody_to_everybody_is_a_row_of_full_rounds() {
    // 24 ranks, 5 chunks for each other: 23 * 5 rounds, in each of which every rank sends and receives.
    let amounts: Vec<Vec<u64>> = (0..24).map(|_| vec![80; 24]).collect();
    let plan = of_traffic(&amounts);
    let schedule = Schedule::new(&plan, Bytes(64)).unwrap();
    assert_eq!((schedule.rounds(), schedule.messages()), (115, 24 * 23 * 5));
    for share in shares(&plan, &schedule) {
        assert!(share.rounds.iter().all(|round| round.send.is_some() && round.receive.is_some()));
        assert_eq!(share.local.len(), 1);
    }
}

#[test]
fn one_rank_alone_and_a_plan_without_copies_have_no_rounds() {
    for amounts in [vec![vec![1000]], vec![vec![0]], vec![]] {
        let plan = of_traffic(&amounts);
        let schedule = Schedule::new(&plan, Schedule::STAGING_DEFAULT).unwrap();
        assert_eq!((schedule.rounds(), schedule.bound(), schedule.messages()), (0, 0, 0));
        let share = schedule.share(&plan, Rank(0)).unwrap();
        assert_eq!((share.local, share.rounds), (plan.copies.clone(), vec![]));
    }
}

#[test]
fn padding_is_filled_by_its_owner_and_a_stranger_does_nothing() {
    let mut plan = of_traffic(&[vec![0, 20], vec![0, 0]]);
    plan.target.storages[1].length = Bytes(24);
    plan.target.buffers[1].length = Elements(24);
    let dims = |value| Dims::from_slice(&[value]);
    let fill = reshard_layout::Fill {
        buffer: BufferId(1),
        offset: Elements(20),
        shape: dims(4),
        strides: dims(1),
        value: vec![7],
    };
    plan.fills.push(fill.clone());
    let schedule = Schedule::new(&plan, Bytes(64)).unwrap();
    let fills = |rank| schedule.share(&plan, Rank(rank)).unwrap().fills;
    assert_eq!((fills(0), fills(1)), (vec![], vec![fill]));
    let stranger = schedule.share(&plan, Rank(9)).unwrap();
    assert_eq!(stranger, Share { rounds: vec![Default::default(); 2], ..Share::default() });
}

#[test]
fn the_fingerprint_is_of_plan_staging_and_rounds() {
    let plan = of_traffic(&[vec![0, 40], vec![90, 0]]);
    let of = |plan: &Plan, staging| Schedule::new(plan, Bytes(staging)).unwrap().fingerprint();
    let other = Plan { fingerprint: 1, ..plan.clone() };
    let all = [of(&plan, 64), of(&plan, 65), of(&plan, 128), of(&other, 64)];
    let mut distinct = all.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), all.len());
    assert_eq!(all[0], of(&plan, 64));
}

#[test]
fn refusals_are_typed() {
    let plan = of_traffic(&[vec![0, 1 << 40], vec![0, 0]]);
    let error = |plan: &Plan, staging| Schedule::new(plan, Bytes(staging)).unwrap_err();
    let small = error(&plan, 63);
    assert_eq!(small, ScheduleError::StagingTooSmall { expected: Bytes(64), found: Bytes(63) });
    assert_eq!(small.kind(), Kind::Invalid);
    let many = error(&plan, 64);
    assert_eq!(
        many.to_string(),
        "68719476736 messages of at most 16 bytes are more than the 16777216 that are scheduled"
    );
    assert_eq!((many.kind(), many.hint().is_some()), (Kind::OverBudget, true));
    let stale = Plan { version: Plan::VERSION + 1, ..plan.clone() };
    assert!(matches!(error(&stale, 256), ScheduleError::PlanVersion { .. }));
    let spoils: [fn(&mut Copy); 5] = [
        |copy| copy.source.buffer.0 = 9,
        |copy| copy.target.strides.clear(),
        |copy| copy.source.strides[0] = u64::MAX / 3,
        |copy| copy.target.offset = Elements(u64::MAX),
        |copy| {
            copy.shape = Dims::from_slice(&[1 << 40, 1 << 40]);
            copy.source.strides = Dims::from_slice(&[1, 1]);
            copy.target.strides = Dims::from_slice(&[1, 1]);
        },
    ];
    for spoil in spoils {
        let mut spoilt = plan.clone();
        spoil(&mut spoilt.copies[0]);
        let found = error(&spoilt, 1 << 20);
        assert!(matches!(found, ScheduleError::CopyMalformed { copy: 0, .. }), "{found}");
    }
    let mut casting = plan.clone();
    casting.source.buffers[0].dtype = DType::F16;
    assert!(matches!(error(&casting, 1 << 20), ScheduleError::CopyMalformed { copy: 0, .. }));
    let schedule = Schedule::new(&plan, Bytes(1 << 30)).unwrap();
    let other = Plan { fingerprint: 1, ..plan };
    let found = schedule.share(&other, Rank(0)).unwrap_err();
    assert_eq!(found, ScheduleError::OtherPlan { expected: 0x00C0_FFEE, found: 1 });
}

//! Collectives, against sums worked out by hand, in worlds of threads.

use std::sync::Arc;

use reshard_layout::Rank;
use reshard_transport::{Communicator, TransportError, World};

/// Runs one closure per rank of a world of threads, and returns what each returned, by rank.
pub(crate) fn ranks<R: Send + 'static>(
    size: usize,
    body: impl Fn(World) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let body = Arc::new(body);
    let threads: Vec<_> = World::in_process(size)
        .unwrap()
        .into_iter()
        .map(|world| {
            let body = Arc::clone(&body);
            std::thread::spawn(move || body(world))
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// A value that no other member has at any index, with a fraction so that the order of additions shows.
fn value(member: usize, index: usize) -> f32 {
    (member as f32 + 1.0) * 0.1 + (index % 1009) as f32 * 1.7 + (member * index % 13) as f32 * 1e-3
}

fn sum_in_order(size: usize, index: usize) -> f32 {
    (1..size).fold(value(0, index), |sum, member| sum + value(member, index))
}

fn data(member: usize, length: usize) -> Vec<f32> {
    (0..length).map(|index| value(member, index)).collect()
}

#[test]
fn two_members_by_hand() {
    let sums = ranks(2, |world| {
        let group = world.everyone().unwrap();
        let mut data = if world.rank() == Rank(0) { [1.0, 2.0, 3.0] } else { [10.0, 20.0, -3.0] };
        group.all_reduce(&mut data).unwrap();
        let mut mine = [0.0];
        group.reduce_scatter(&data[..2], &mut mine).unwrap();
        world.leave().unwrap();
        (data, mine)
    });
    assert_eq!(sums, [([11.0, 22.0, 0.0], [22.0]), ([11.0, 22.0, 0.0], [44.0])]);
}

#[test]
fn every_size_and_length() {
    // One past a box of 64 Ki numbers, several boxes, less than a member each, and nothing.
    for size in 1..=8 {
        for length in [0, 1, 7, 65_536, 65_537, 200_003] {
            check_reduce(size, length);
        }
    }
}

fn check_reduce(size: usize, length: usize) {
    let results = ranks(size, move |world| {
        let group = world.everyone().unwrap();
        let mut sums = data(group.position(), length);
        group.all_reduce(&mut sums).unwrap();
        let each = length / size;
        let mut part = vec![f32::NAN; each];
        group.reduce_scatter(&data(group.position(), each * size), &mut part).unwrap();
        world.leave().unwrap();
        (sums, part)
    });
    for (member, (sums, part)) in results.iter().enumerate() {
        for (index, sum) in sums.iter().enumerate() {
            assert_eq!(sum.to_bits(), sum_in_order(size, index).to_bits(), "size {size}, index {index}");
        }
        for (index, sum) in part.iter().enumerate() {
            let expected = sum_in_order(size, member * part.len() + index);
            assert_eq!(sum.to_bits(), expected.to_bits(), "size {size}, member {member}, index {index}");
        }
    }
}

#[test]
fn gather_and_broadcast_carry_every_byte() {
    let byte = |member: usize, index: usize| (member * 31 + index * 7 + index / 256) as u8;
    for length in [0, 1, 262_144, 600_001] {
        let gathered = ranks(3, move |world| {
            // Group order is not rank order.
            let group = world.group(&[Rank(2), Rank(0), Rank(1)]).unwrap();
            let mine: Vec<u8> = (0..length).map(|index| byte(group.position(), index)).collect();
            let mut all = vec![0xFF; 3 * length];
            group.all_gather(&mine, &mut all).unwrap();
            let mut sent = mine;
            group.broadcast(&mut sent, 1).unwrap();
            world.leave().unwrap();
            (all, sent)
        });
        for (all, sent) in gathered {
            assert!((0..3 * length).all(|index| all[index] == byte(index / length, index % length)));
            assert!((0..length).all(|index| sent[index] == byte(1, index)));
        }
    }
}

#[test]
fn a_rank_is_in_several_groups() {
    // A 2x2 grid: rows {0,1} {2,3}, columns {0,2} {1,3}, used in turns, and a second group of the same members.
    let results = ranks(4, |world| {
        let rank = world.rank().0;
        let row = world.group(&[Rank(rank / 2 * 2), Rank(rank / 2 * 2 + 1)]).unwrap();
        let column = world.group(&[Rank(rank % 2), Rank(rank % 2 + 2)]).unwrap();
        let again = world.group(&[Rank(rank % 2), Rank(rank % 2 + 2)]).unwrap();
        let alone = world.group(&[Rank(rank)]).unwrap();
        let mut data = [rank as f32 + 1.0];
        for _ in 0..50 {
            row.all_reduce(&mut data).unwrap();
            column.all_reduce(&mut data).unwrap();
            again.barrier().unwrap();
            data[0] /= 4.0;
            alone.all_reduce(&mut data).unwrap();
        }
        world.leave().unwrap();
        data[0]
    });
    assert_eq!(results, [2.5; 4]);
}

#[test]
fn different_calls_are_the_same_error_everywhere() {
    let results = ranks(3, |world| {
        let group = world.everyone().unwrap();
        let result = if world.rank() == Rank(1) {
            group.all_reduce(&mut [1.0, 2.0])
        } else {
            group.all_reduce(&mut [1.0, 2.0, 3.0])
        };
        world.leave().unwrap();
        result
    });
    let expected = TransportError::CollectiveMismatch {
        rank: Rank(1),
        expected: "all_reduce of 12 bytes".to_owned(),
        found: "all_reduce of 8 bytes".to_owned(),
    };
    assert_eq!(results, vec![Err(expected); 3]);
}

#[test]
fn lists_that_are_no_group_are_refused() {
    let worlds = World::in_process(2).unwrap();
    for members in [&[][..], &[Rank(1)], &[Rank(0), Rank(0)], &[Rank(0), Rank(2)]] {
        let error = worlds[0].group(members).unwrap_err();
        assert!(matches!(error, TransportError::InvalidGroup { rank: Rank(0), .. }), "{error}");
    }
}

#[test]
fn a_thread_that_fails_or_panics_or_gives_up_is_seen_by_all() {
    for (how, cause) in
        [("fail", "out of luck"), ("panic", "panicked"), ("drop", "gave up its world without leaving it")]
    {
        let mut worlds = World::in_process(3).unwrap();
        let failing = worlds.remove(1);
        let waiting: Vec<_> = worlds
            .into_iter()
            .map(|world| {
                std::thread::spawn(move || {
                    let error = world.everyone().and_then(|group| group.barrier()).unwrap_err();
                    assert_eq!(world.failure(), Some(error.clone()));
                    error
                })
            })
            .collect();
        let failing = std::thread::spawn(move || match how {
            "fail" => drop(failing.fail("out of luck")),
            // `resume_unwind` panics without a message on stderr.
            "panic" => std::panic::resume_unwind(Box::new(failing.rank())),
            _ => drop(failing),
        });
        let expected = TransportError::PeerFailed { rank: Rank(1), cause: cause.to_owned() };
        for thread in waiting {
            assert_eq!(thread.join().unwrap(), expected);
        }
        assert_eq!(failing.join().is_err(), how == "panic");
    }
}

#[test]
fn waiting_for_a_rank_that_left_is_an_error() {
    let mut worlds = World::in_process(2).unwrap();
    let second = worlds.remove(1);
    second.leave().unwrap();
    let error = worlds[0].everyone().unwrap().barrier().unwrap_err();
    assert!(
        matches!(&error, TransportError::PeerFailed { rank: Rank(1), cause } if cause.contains("left")),
        "{error}"
    );
}

#[test]
fn a_timeout_names_who_is_late_and_is_everybodys() {
    let worlds = World::in_process_within(3, std::time::Duration::from_millis(1)).unwrap();
    let error = worlds[0].everyone().unwrap().barrier().unwrap_err();
    let waiting_for = "ranks [1, 2] in barrier".to_owned();
    assert_eq!(error, TransportError::Timeout { rank: Rank(0), waiting_for, seconds: 0 });
    assert_eq!(worlds[2].failure(), Some(error));
}

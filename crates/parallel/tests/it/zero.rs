//! The closed forms of ZeRO against an enumeration of every element, and the reference's worked examples.

use std::num::NonZeroU64;

use reshard_layout::{DType, Elements};
use reshard_parallel::zero::{
    FlatGroup, FlatRules, PartitionOver, SliceShard, SubGroup, ZeroOptions, round_robin, sub_groups,
};

fn ranks(count: u64) -> NonZeroU64 {
    NonZeroU64::new(count).unwrap()
}

fn numbered(numels: &[u64]) -> Vec<(usize, Elements)> {
    numels.iter().map(|numel| Elements(*numel)).enumerate().collect()
}

/// (parameter, rank, offset in the partition, offset in the parameter, count), by parameter.
fn placed(group: &FlatGroup, partitions: u64) -> Vec<(usize, u64, u64, u64, u64)> {
    let mut list: Vec<_> = (0..partitions)
        .flat_map(|rank| {
            group.fragments(rank).map(move |f| (f.parameter, rank, f.offset.0, f.first.0, f.length.0))
        })
        .collect();
    list.sort_unstable();
    list
}

#[test]
fn the_worked_examples_of_stages_one_and_two() {
    let rules = FlatRules::partitioned(ranks(3), DType::Bf16, false, false);
    let group = FlatGroup::new(&numbered(&[5, 4, 8]), rules);
    assert_eq!(
        (rules.alignment, group.length(), group.partition_length()),
        (Elements(6), Elements(18), Elements(6))
    );
    let expected = [(0, 0, 0, 0, 5), (1, 0, 5, 0, 1), (1, 1, 0, 1, 3), (2, 1, 3, 0, 3), (2, 2, 0, 3, 5)];
    assert_eq!(placed(&group, 3), expected);
    assert_eq!([0, 1, 2].map(|rank| group.padding(rank).0), [0, 0, 1]);

    let group = FlatGroup::new(&numbered(&[3]), FlatRules::partitioned(ranks(8), DType::F32, false, false));
    assert_eq!((group.length(), group.partition_length()), (Elements(16), Elements(2)));
    assert_eq!(placed(&group, 8), [(0, 0, 0, 0, 2), (0, 1, 0, 2, 1)]);
    assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(|rank| group.padding(rank).0), [0, 1, 2, 2, 2, 2, 2, 2]);

    let rules = FlatRules::partitioned(ranks(2), DType::Bf16, true, false);
    let group = FlatGroup::new(&numbered(&[9, 2, 6]), rules);
    assert_eq!(group.entries().iter().map(|entry| entry.offset.0).collect::<Vec<_>>(), [0, 16, 24]);
    assert_eq!((group.length(), group.length() - group.unpadded()), (Elements(32), Elements(2)));
    assert_eq!(placed(&group, 2), [(0, 0, 0, 0, 9), (1, 1, 0, 0, 2), (2, 1, 8, 0, 6)]);

    assert_eq!(round_robin(7, ranks(3)), [0, 3, 6, 1, 4, 2, 5]);
    assert_eq!(round_robin(2, ranks(5)), [0, 1]);
}

#[test]
fn stage_zero_has_no_padding() {
    let group = FlatGroup::new(&numbered(&[5, 0, 3]), FlatRules::REPLICATED);
    assert_eq!((group.length(), group.padding(0)), (Elements(8), Elements(0)));
    assert_eq!(placed(&group, 1), [(0, 0, 0, 0, 5), (2, 0, 5, 0, 3)]);
}

fn shard(parameter: usize, numel: u64, partitions: u64) -> SliceShard {
    let over = PartitionOver::DataParallel;
    SliceShard { parameter, numel: Elements(numel), over, partitions: ranks(partitions) }
}

#[test]
fn the_worked_examples_of_stage_three() {
    let group = &sub_groups(&[vec![shard(0, 5, 4)]], Elements(100))[0];
    assert_eq!(group.entries[0].slot, Elements(2));
    assert_eq!([0, 1, 2, 3].map(|rank| group.entries[0].held(rank).1.0), [2, 2, 1, 0]);
    // (3, 3) over two ranks: 9 elements, slot 5.
    let group = &sub_groups(&[vec![shard(0, 9, 2)]], Elements(100))[0];
    assert_eq!(
        [0, 1].map(|rank| group.entries[0].held(rank)).map(|(first, length)| (first.0, length.0)),
        [(0, 5), (5, 4)]
    );
    assert_eq!(group.length, Elements(5));
}

fn parameters(group: &SubGroup) -> Vec<usize> {
    group.entries.iter().map(|entry| entry.parameter).collect()
}

#[test]
fn a_sub_group_closes_once_it_is_large_enough() {
    // Slots 2, 2, 2 and 3, with a size of 3: the second overshoots, the last closes.
    let shards = vec![shard(0, 4, 2), shard(1, 3, 2), shard(2, 4, 2), shard(3, 5, 2), shard(4, 1, 2)];
    let groups = sub_groups(std::slice::from_ref(&shards), Elements(3));
    assert_eq!(groups.iter().map(parameters).collect::<Vec<_>>(), [vec![0, 1], vec![2, 3], vec![4]]);
    assert_eq!(groups.iter().map(|g| (g.offset.0, g.length.0)).collect::<Vec<_>>(), [(0, 4), (4, 5), (9, 1)]);
    // Reaching the size is enough.
    let groups = sub_groups(std::slice::from_ref(&shards), Elements(4));
    assert_eq!(groups.iter().map(parameters).collect::<Vec<_>>(), [vec![0, 1], vec![2, 3], vec![4]]);
    // As many as there are is not too few.
    assert_eq!(sub_groups(std::slice::from_ref(&shards), Elements(10)).len(), 1);
    assert_eq!(sub_groups(&[shards], Elements(1)).len(), 5);
}

#[test]
fn a_group_is_split_by_who_partitions_in_order_of_first_appearance() {
    let world =
        |parameter| SliceShard { over: PartitionOver::World, partitions: ranks(4), ..shard(parameter, 8, 4) };
    let first = vec![shard(0, 8, 2), world(1), shard(2, 8, 2), shard(3, 0, 2), world(4)];
    let groups = sub_groups(&[first, vec![world(5)]], Elements(100));
    let shape: Vec<_> = groups.iter().map(|g| (g.group, g.over, g.offset.0, parameters(g))).collect();
    let expected = [
        (0, PartitionOver::DataParallel, 0, vec![0, 2]),
        (0, PartitionOver::World, 8, vec![1, 4]),
        (1, PartitionOver::World, 12, vec![5]),
    ];
    assert_eq!(shape, expected);
}

#[test]
fn flat_windows_hold_what_an_enumeration_puts_there() {
    for (numels, count) in small_cases() {
        for (aligned, dealt) in [(false, false), (true, false), (false, true), (true, true)] {
            let rules = FlatRules::partitioned(ranks(count), DType::F32, aligned, dealt);
            let group = FlatGroup::new(&numbered(&numels), rules);

            // One list, element by element; four floats are 16 bytes.
            let mut present: Vec<usize> = (0..numels.len()).filter(|index| numels[*index] > 0).collect();
            if dealt {
                let mut buckets = vec![Vec::new(); usize::try_from(count).unwrap()];
                for (turn, index) in present.drain(..).enumerate() {
                    let bucket = turn % buckets.len();
                    buckets[bucket].push(index);
                }
                present = buckets.concat();
            }
            let mut flat: Vec<Option<(usize, u64)>> = Vec::new();
            for index in present {
                while aligned && !flat.len().is_multiple_of(4) {
                    flat.push(None);
                }
                flat.extend((0..numels[index]).map(|element| Some((index, element))));
            }
            while !(flat.len() as u64).is_multiple_of(2 * count) {
                flat.push(None);
            }
            assert_eq!(group.length().0, flat.len() as u64, "{numels:?} over {count}");
            let window = flat.len() / usize::try_from(count).unwrap();
            for (rank, expected) in flat.chunks(window.max(1)).enumerate() {
                let mut derived = vec![None; window];
                for fragment in group.fragments(rank as u64) {
                    for step in 0..fragment.length.0 {
                        let at = usize::try_from(fragment.offset.0 + step).unwrap();
                        derived[at] = Some((fragment.parameter, fragment.first.0 + step));
                    }
                }
                assert_eq!(derived, expected, "{numels:?} rank {rank} of {count}");
            }
        }
    }
}

#[test]
fn slices_hold_every_element_once() {
    for (numels, count) in small_cases() {
        let shards = numels.iter().enumerate().map(|(index, numel)| shard(index, *numel, count)).collect();
        let groups = sub_groups(&[shards], Elements(3));
        for (index, &numel) in numels.iter().enumerate() {
            let mut seen = Vec::new();
            for rank in 0..count {
                let held = groups.iter().flat_map(|group| group.fragments(rank));
                for fragment in held.filter(|fragment| fragment.parameter == index) {
                    // ceil(numel / W) elements a rank, counted out.
                    let slot = (1..=numel).find(|slot| slot * count >= numel).unwrap();
                    assert_eq!(fragment.first.0, slot * rank, "{numels:?} over {count}");
                    seen.extend(fragment.first.0..fragment.first.0 + fragment.length.0);
                }
            }
            assert_eq!(seen, (0..numel).collect::<Vec<_>>(), "{numels:?} over {count}");
        }
    }
}

/// Three parameters of 0 to 6 elements, over 1 to 5 ranks.
fn small_cases() -> impl Iterator<Item = (Vec<u64>, u64)> {
    (0..343u64).flat_map(|code| (1..6).map(move |count| (vec![code % 7, code / 7 % 7, code / 49], count)))
}

#[test]
fn small_parameters_stay_gathered() {
    let options = ZeroOptions::default();
    assert!(options.persistent(Elements(100_000)) && !options.persistent(Elements(100_001)));
}

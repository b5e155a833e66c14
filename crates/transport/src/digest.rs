//! Digests of the copies between each pair of ranks, as the reader and the read see them.
//!
//! ```text
//!            target 0   target 1
//!   source 0    d00        d01      rank 0 knows its row and its column, rank 1 knows its own:
//!   source 1    d10        d11      both must hold the same d01 and d10
//! ```
//!
//! A rank that planned its share alone holds no more than its row and column; that is what is compared.

use std::collections::BTreeMap;

use reshard_layout::{Buffer, Places, Rank};
use reshard_plan::{End, Plan};
use xxhash_rust::xxh3::Xxh3Default;

/// Digests of the copies of a plan from and to one rank, by pair of source and target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairDigests {
    by_pair: BTreeMap<(Rank, Rank), u64>,
}

impl PairDigests {
    /// Digests the copies that `rank` reads or that are read from it, in plan order.
    #[must_use]
    pub fn new(plan: &Plan, rank: Rank) -> Self {
        let mut states: BTreeMap<(Rank, Rank), Xxh3Default> = BTreeMap::new();
        for copy in &plan.copies {
            let (source, target) = (plan.source_rank(copy), plan.target_rank(copy));
            if source != rank && target != rank {
                continue;
            }
            let state = states.entry((source, target)).or_default();
            add_end(state, &plan.source, &copy.source);
            add_end(state, &plan.target, &copy.target);
            add_numbers(state, &copy.shape);
            add_numbers(state, &[u64::from(copy.parameter.0)]);
            add_numbers(state, &copy.origin);
        }
        Self { by_pair: states.into_iter().map(|(pair, state)| (pair, state.digest())).collect() }
    }

    /// The digest of the copies from one rank to another; 0 where there are none.
    #[must_use]
    pub fn pair(&self, source: Rank, target: Rank) -> u64 {
        self.by_pair.get(&(source, target)).copied().unwrap_or(0)
    }
}

/// A list of numbers, with its length before it so that no two lists of lists look the same.
fn add_numbers(state: &mut Xxh3Default, numbers: &[u64]) {
    state.update(&(numbers.len() as u64).to_le_bytes());
    for number in numbers {
        state.update(&number.to_le_bytes());
    }
}

fn add_text(state: &mut Xxh3Default, text: &str) {
    state.update(&(text.len() as u64).to_le_bytes());
    state.update(text.as_bytes());
}

fn add_end(state: &mut Xxh3Default, places: &Places, end: &End) {
    let Buffer { storage, offset, dtype, length } = *places.buffer(end.buffer);
    let storage = places.storage(storage);
    add_text(state, &storage.name);
    add_text(state, dtype.name());
    add_numbers(state, &[storage.length.0, offset.0, length.0, end.offset.0]);
    add_numbers(state, &end.strides);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of what is fed.
    fn fed(feed: impl Fn(&mut Xxh3Default)) -> u64 {
        let mut state = Xxh3Default::new();
        feed(&mut state);
        state.digest()
    }

    #[test]
    fn parts_of_other_lengths_feed_other_bytes() {
        let lists = |lists: &[&[u64]]| fed(|state| lists.iter().for_each(|list| add_numbers(state, list)));
        // All of these are 1, 2, 3 end to end.
        let same: [&[&[u64]]; 5] =
            [&[&[1, 2, 3]], &[&[1, 2], &[3]], &[&[1], &[2, 3]], &[&[], &[1, 2, 3]], &[&[1, 2, 3], &[]]];
        let digests: std::collections::BTreeSet<u64> = same.into_iter().map(lists).collect();
        assert_eq!(digests.len(), same.len());
        let texts = |texts: [&str; 2]| fed(|state| texts.iter().for_each(|text| add_text(state, text)));
        assert_ne!(texts(["flat", "f32"]), texts(["flatf", "32"]));
    }
}

//! Digests of the copies between each pair of ranks, as the reader and the read see them.
//!
//! ```text
//!            target 0   target 1
//!   source 0    d00        d01      rank 0 knows its row and its column, rank 1 knows its own:
//!   source 1    d10        d11      both must hold the same d01 and d10
//! ```
//!
//! A rank that planned its share alone holds no more than its row and column; that is what is compared.

use reshard_layout::{Buffer, Places, Rank};
use reshard_plan::{End, Plan};
use xxhash_rust::xxh3::Xxh3Default;

/// Digests of a plan's copies by pair of ranks; 0 for a pair without copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PairDigests {
    size: usize,
    by_pair: Vec<u64>,
}

impl PairDigests {
    /// Digests every copy of a plan whose ranks are below `size`, and none of the others.
    #[must_use]
    pub fn new(plan: &Plan, size: usize) -> Self {
        let mut states: Vec<Option<Xxh3Default>> = vec![None; size * size];
        for copy in &plan.copies {
            let (source, target) = (plan.source_rank(copy).index(), plan.target_rank(copy).index());
            if source >= size || target >= size {
                continue;
            }
            let state = states[source * size + target].get_or_insert_with(Xxh3Default::new);
            add_end(state, &plan.source, &copy.source);
            add_end(state, &plan.target, &copy.target);
            add_numbers(state, &copy.shape);
            add_numbers(state, &[u64::from(copy.parameter.0)]);
            add_numbers(state, &copy.origin);
        }
        let by_pair = states.into_iter().map(|state| state.map_or(0, |state| state.digest())).collect();
        Self { size, by_pair }
    }

    /// The digest of the copies from one rank to another; 0 for none, and for ranks that are not digested.
    #[must_use]
    pub fn pair(&self, source: Rank, target: Rank) -> u64 {
        if source.index() >= self.size || target.index() >= self.size {
            return 0;
        }
        self.by_pair[source.index() * self.size + target.index()]
    }
}

/// A list of numbers, with its length before it so that no two lists of lists look the same.
fn add_numbers(state: &mut Xxh3Default, numbers: &[u64]) {
    state.update(&(numbers.len() as u64).to_le_bytes());
    for number in numbers {
        state.update(&number.to_le_bytes());
    }
}

fn add_end(state: &mut Xxh3Default, places: &Places, end: &End) {
    let Buffer { storage, offset, dtype, length } = *places.buffer(end.buffer);
    let storage = places.storage(storage);
    for text in [storage.name.as_str(), dtype.name()] {
        add_numbers(state, &[text.len() as u64]);
        state.update(text.as_bytes());
    }
    add_numbers(state, &[storage.length.0, offset.0, length.0, end.offset.0]);
    add_numbers(state, &end.strides);
}

//! Which process stands on which slot.
//!
//! ```text
//! slot                     0 1 2 3
//! nothing given     rank   0 1 2 3
//! first=8           rank   8 9 10 11
//! order=0.2.1.3     rank   0 2 1 3
//! ```

use std::fmt;

use reshard_layout::Rank;

use super::Slot;

/// The ranks of a topology, by slot.
///
/// Invariant: `order`, if any, lists each rank from `first` on once. Whoever builds it checks that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Numbering {
    pub(super) first: Rank,
    pub(super) order: Option<Vec<Rank>>,
}

impl Numbering {
    /// The rank of a slot that exists.
    pub(super) fn rank(&self, slot: Slot) -> Rank {
        match &self.order {
            Some(order) => order[slot.0 as usize],
            None => Rank(self.first.0 + slot.0),
        }
    }
}

/// The keys that say it, each after a comma.
impl fmt::Display for Numbering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first != Rank(0) {
            write!(f, ",first={}", self.first)?;
        }
        for (index, rank) in self.order.iter().flatten().enumerate() {
            write!(f, "{}{rank}", if index == 0 { ",order=" } else { "." })?;
        }
        Ok(())
    }
}

//! Declared holders against true ones.
//!
//! ```text
//!   rank 0: rows 0..4, locations [0]         rank 1 holds row 3 too: the piece of rank 0 should have said so
//!   rank 1: rows 3..8, locations [1]
//! ```

use std::collections::BTreeMap;

use super::{AffineFault, AffinePiece};
use crate::join::{overlapping, refine};
use crate::region::{Region, volume};

/// The ranks that hold any of a piece must be exactly those that it declares, and each must hold all of it.
///
/// A rank with as many elements as the parameter holds every one of them, unless it holds some twice, which
/// the layout's own checks refuse: such ranks belong to every cell and cut none.
pub(super) fn check(shape: &[u64], held: &[(u32, &AffinePiece, Region)]) -> Result<(), AffineFault> {
    let mut elements: BTreeMap<u32, u64> = BTreeMap::new();
    for (rank, _, region) in held {
        *elements.entry(*rank).or_default() += region.volume();
    }
    let total = volume(shape).unwrap_or(u64::MAX);
    let everything: Vec<u32> =
        elements.iter().filter(|(_, held)| **held == total).map(|(rank, _)| *rank).collect();
    let is_partial = |rank: &u32| everything.binary_search(rank).is_err();
    let (partial, whole): (Vec<_>, Vec<_>) = held.iter().partition(|(rank, ..)| is_partial(rank));
    let partial_regions: Vec<&Region> = partial.iter().map(|(_, _, region)| region).collect();
    let mut fault = None;
    let mut compare = |rank: u32, piece: &AffinePiece, found: &[u32]| {
        let mut declared = piece.locations.clone();
        declared.sort_unstable();
        declared.dedup();
        if declared != found && fault.is_none() {
            fault = Some(AffineFault::Holders { rank, declared, found: found.to_vec() });
        }
    };
    refine(&Region::whole(shape), &partial_regions, &mut |_, holders| {
        let found = sorted(holders.iter().map(|&at| partial[at].0).chain(everything.iter().copied()));
        for &at in holders {
            compare(partial[at].0, partial[at].1, &found);
        }
    });
    let whole_regions: Vec<&Region> = whole.iter().map(|(_, _, region)| region).collect();
    for ((rank, piece, region), others) in whole.iter().zip(overlapping(&whole_regions, &partial_regions)) {
        let mut common: BTreeMap<u32, u64> = BTreeMap::new();
        for at in others {
            let part = partial[at].2.intersection(region).map_or(0, |part| part.volume());
            *common.entry(partial[at].0).or_default() += part;
        }
        let any = sorted(common.keys().chain(&everything).copied());
        let all = common.iter().filter(|(_, held)| **held == region.volume()).map(|(rank, _)| rank);
        compare(*rank, piece, &any);
        compare(*rank, piece, &sorted(all.chain(&everything).copied()));
    }
    fault.map_or(Ok(()), Err)
}

fn sorted(ranks: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut ranks: Vec<u32> = ranks.collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

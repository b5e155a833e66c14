//! What ranks tell each other to agree, and the verdict that each draws from it.
//!
//! ```text
//!   | fingerprint | version | stamp | length of refusal | refusal ... |    one a rank, all-gathered
//!   verdict: the plans differ, else the versions differ, else the first refusal in group order, else go
//! ```

use reshard_layout::Rank;

use crate::communicator::Communicator;
use crate::digest::PairDigests;
use crate::error::{CAUSE_BYTES_MAX, TransportError, shortened};

const HEAD: usize = 32;
const BYTES: usize = HEAD + CAUSE_BYTES_MAX;

/// What one rank says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ballot {
    /// Of the plan that it holds.
    pub(crate) fingerprint: u64,
    /// The version that it is about to move, or has moved.
    pub(crate) version: u64,
    /// What its transport's `offer` returned.
    pub(crate) stamp: u64,
    /// Why it cannot go on.
    pub(crate) refusal: Option<String>,
}

impl Ballot {
    /// A ballot that carries a stamp, or refuses because of an error.
    pub(crate) fn new(fingerprint: u64, version: u64, stamp: Result<u64, TransportError>) -> Self {
        let (stamp, refusal) = match stamp {
            Ok(stamp) => (stamp, None),
            Err(error) => (0, Some(error.to_string())),
        };
        Self { fingerprint, version, stamp, refusal }
    }

    /// Everybody's ballots, in group order.
    pub(crate) fn exchange(&self, communicator: &dyn Communicator) -> Result<Vec<Self>, TransportError> {
        let mut all = vec![0; BYTES * communicator.ranks().len()];
        communicator.all_gather(&self.to_bytes(), &mut all)?;
        Ok(all.chunks_exact(BYTES).map(Self::from_bytes).collect())
    }

    fn to_bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        // No refusal is 0, an empty one 1: a refusal without words is still one.
        let refusal = self.refusal.clone().map(shortened);
        let length = refusal.as_ref().map_or(0, |refusal| 1 + refusal.len() as u64);
        for (index, number) in [self.fingerprint, self.version, self.stamp, length].into_iter().enumerate() {
            bytes[8 * index..][..8].copy_from_slice(&number.to_le_bytes());
        }
        let refusal = refusal.unwrap_or_default();
        bytes[HEAD..][..refusal.len()].copy_from_slice(refusal.as_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let number = |index: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[8 * index..][..8]);
            u64::from_le_bytes(number)
        };
        let refusal = number(3).checked_sub(1).map(|length| {
            let length = (length as usize).min(CAUSE_BYTES_MAX);
            String::from_utf8_lossy(&bytes[HEAD..][..length]).into_owned()
        });
        Self { fingerprint: number(0), version: number(1), stamp: number(2), refusal }
    }
}

/// The verdict on everybody's ballots: the same on every rank.
pub(crate) fn judge(ranks: &[Rank], ballots: &[Ballot]) -> Result<(), TransportError> {
    let (reference, first) = (ranks[0], &ballots[0]);
    let votes = || ranks.iter().copied().zip(ballots);
    if let Some((rank, other)) = votes().find(|(_, other)| other.fingerprint != first.fingerprint) {
        let (expected, found) = (first.fingerprint, other.fingerprint);
        return Err(TransportError::PlanMismatch { rank, reference, expected, found });
    }
    if let Some((rank, other)) = votes().find(|(_, other)| other.version != first.version) {
        let (expected, found) = (first.version, other.version);
        return Err(TransportError::VersionMismatch { rank, reference, expected, found });
    }
    match votes().find_map(|(rank, ballot)| Some((rank, ballot.refusal.clone()?))) {
        Some((rank, cause)) => Err(TransportError::Refused { rank, cause }),
        None => Ok(()),
    }
}

/// Compares, for every pair of members, what the one that is read and the one that reads hold of it.
pub(crate) fn judge_pairs(
    communicator: &dyn Communicator,
    digests: &PairDigests,
) -> Result<(), TransportError> {
    let ranks = communicator.ranks();
    let own = ranks[communicator.position()];
    let row = ranks.iter().map(|&other| digests.pair(own, other));
    let column = ranks.iter().map(|&other| digests.pair(other, own));
    let mine: Vec<u8> = row.chain(column).flat_map(u64::to_le_bytes).collect();
    let mut all = vec![0; mine.len() * ranks.len()];
    communicator.all_gather(&mine, &mut all)?;
    let digest = |member: usize, index: usize| &all[member * mine.len() + 8 * index..][..8];
    for (source, &source_rank) in ranks.iter().enumerate() {
        for (target, &target_rank) in ranks.iter().enumerate() {
            // The row of the source, the column of the target.
            if digest(source, target) != digest(target, ranks.len() + source) {
                return Err(TransportError::CopiesMismatch { source_rank, target_rank });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ballots_survive_the_wire() {
        for refusal in [None, Some(String::new()), Some("é".repeat(CAUSE_BYTES_MAX / 2))] {
            let ballot = Ballot { fingerprint: u64::MAX - 1, version: 7, stamp: 3, refusal };
            assert_eq!(Ballot::from_bytes(&ballot.to_bytes()), ballot);
        }
    }
}

//! What can go wrong while bytes move.

use reshard_layout::Rank;

/// Errors of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransportError {
    /// Another rank failed or died; every survivor gets this same error.
    #[error("rank {rank} failed: {cause}")]
    PeerFailed {
        /// The rank that failed first.
        rank: Rank,
        /// What it said, or how its death was seen.
        cause: String,
    },
}

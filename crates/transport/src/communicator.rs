//! Plain collectives among a group of ranks.

use reshard_layout::Rank;

use crate::error::TransportError;
use crate::transport::sealed::Member;

/// A fixed, ordered group of ranks that call the same collectives in the same order.
///
/// Every method blocks (parked, not spinning) until the group has made the call. All members must pass
/// buffers of the same length. The reductions add in group order, so that the sum is the same bits on every
/// member and in every run. If any rank of the world fails or dies, every waiting call on every
/// rank returns the same error. This crate alone implements it.
pub trait Communicator: Member + Send + Sync {
    /// The members, in group order.
    fn ranks(&self) -> &[Rank];

    /// This process' position in [`ranks`](Self::ranks).
    fn position(&self) -> usize;

    /// Waits for all members.
    fn barrier(&self) -> Result<(), TransportError>;

    /// `all[i * mine.len()..][..mine.len()]` becomes member i's `mine`.
    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<(), TransportError>;

    /// Every member's `data` becomes the root's (`root` is a position in the group).
    fn broadcast(&self, data: &mut [u8], root: usize) -> Result<(), TransportError>;

    /// Every member's `data` becomes the sum over the members, added in group order.
    fn all_reduce(&self, data: &mut [f32]) -> Result<(), TransportError>;

    /// `mine` becomes the part of the summed `data` that begins at `position() * mine.len()`;
    /// `data.len()` is `mine.len()` times the group's size.
    fn reduce_scatter(&self, data: &[f32], mine: &mut [f32]) -> Result<(), TransportError>;
}

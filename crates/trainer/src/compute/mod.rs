//! Forward and backward passes of a model that is cut over a tensor-parallel group.
//!
//! ```text
//! forward:   h ----------------+-> h + sum(partial) + bias        only h is kept, never the graph
//!             '-> partial -sum-'
//! backward:  the partial is computed again from h, with a graph; the gradient of h is g + sum(partial's part)
//! ```
//!
//! The sums over the group are plain calls between graphs, so every rank makes the same calls in the same
//! order, whatever it holds. Since a block's graph lives only while the block is differentiated, its weights
//! need to live no longer either: that is what lets ZeRO-3 free them.

mod backward;
mod decoder;
mod graph;
mod plain;
mod weights;

pub use weights::Meter;

pub(crate) use backward::Gradient;
pub(crate) use decoder::{Decoder, Fills, ShardSource, TokenShape};
pub(crate) use plain::{cross_entropy, lookup_gradient};
pub(crate) use weights::Shard;

//! The group of one process that stands for all ranks: nobody to wait for.

use reshard_layout::{Bytes, Rank};

use crate::communicator::Communicator;
use crate::error::TransportError;
use crate::rendezvous::WorldId;
use crate::transport::sealed::Member;

/// A group whose only member is one rank; no world is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alone {
    rank: [Rank; 1],
}

impl Alone {
    /// The group of this rank.
    #[must_use]
    pub fn new(rank: Rank) -> Self {
        Self { rank: [rank] }
    }

    fn copy<V: Copy>(&self, call: &str, from: &[V], to: &mut [V]) -> Result<(), TransportError> {
        if from.len() != to.len() {
            return Err(TransportError::BufferLength {
                rank: self.rank[0],
                call: call.to_owned(),
                expected: Bytes(size_of_val(from) as u64),
                found: Bytes(size_of_val(to) as u64),
            });
        }
        to.copy_from_slice(from);
        Ok(())
    }
}

impl Member for Alone {
    fn world(&self) -> Option<WorldId> {
        None
    }
}

impl Communicator for Alone {
    fn ranks(&self) -> &[Rank] {
        &self.rank
    }

    fn position(&self) -> usize {
        0
    }

    fn barrier(&self) -> Result<(), TransportError> {
        Ok(())
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) -> Result<(), TransportError> {
        self.copy("all_gather", mine, all)
    }

    fn broadcast(&self, _data: &mut [u8], root: usize) -> Result<(), TransportError> {
        if root == 0 {
            return Ok(());
        }
        Err(TransportError::PositionOutOfRange { rank: self.rank[0], found: root, size: 1 })
    }

    fn all_reduce(&self, _data: &mut [f32]) -> Result<(), TransportError> {
        Ok(())
    }

    fn reduce_scatter(&self, data: &[f32], mine: &mut [f32]) -> Result<(), TransportError> {
        self.copy("reduce_scatter", data, mine)
    }
}

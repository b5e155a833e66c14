//! This rank's own storages, as sources that are read by position: what its files are written from.
//!
//! ```text
//!   layout of all ranks   storage 0 (rank 0)   1 (rank 0)   2 (rank 1)   3 (rank 1) ...
//!   memory of rank 1                                         weights.0    weights.1      others: an error
//! ```

use std::collections::HashMap;
use std::io;

use reshard_formats::Kept;
use reshard_layout::{Bytes, Places, Rank, StorageId};
use reshard_parallel::engine::State;
use reshard_transport::ReadAt;

use crate::storage::Storage;
use crate::zero::Stored;

/// The name in a checkpoint of what is stored.
pub(super) fn kept(stored: Stored) -> Kept {
    match stored {
        Stored::Weights => Kept::Weights,
        Stored::State(State::Fp32) => Kept::Master,
        Stored::State(state) => Kept::State(state.name().to_owned()),
    }
}

/// The storages of one rank, by their ids in a layout of all ranks.
pub(super) struct OwnStorages<'a> {
    memory: HashMap<StorageId, &'a [u8]>,
}

impl<'a> OwnStorages<'a> {
    /// Finds each storage by its name among those that the rank has in `places`.
    pub(super) fn new(places: &Places, rank: Rank, storages: &'a [Storage]) -> Self {
        let find = |name: &str| storages.iter().find(|storage| storage.spec().name == name);
        let of_rank = places.of_rank(rank);
        let memory = of_rank.filter_map(|(id, known)| Some((id, find(&known.name)?.memory().as_slice())));
        Self { memory: memory.collect() }
    }
}

impl ReadAt for OwnStorages<'_> {
    fn read_at(&self, storage: StorageId, offset: Bytes, into: &mut [u8]) -> io::Result<()> {
        let memory = self.memory.get(&storage).ok_or_else(|| io::Error::other("it is another rank's"))?;
        let begin = usize::try_from(offset.0).unwrap_or(usize::MAX);
        let read = memory.get(begin..).and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(read.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

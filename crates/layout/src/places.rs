//! Where bytes live: storages (what a process or a file owns) and buffers (typed windows of them).
//!
//! ```text
//! storage 4 of rank 1  "flat.0"   |------------------------- 96 bytes -------------------------|
//! buffer  7                                 ^offset 16   |-- 24 elements of bf16 = 48 bytes --|
//! ```

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, DType, Elements, Rank};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an index into its table.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

id!(
    /// Names a [`Storage`] of one layout: its position in [`Places::storages`].
    StorageId
);
id!(
    /// Names a [`Buffer`] of one layout: its position in [`Places::buffers`].
    BufferId
);
id!(
    /// Names a parameter of one layout. Opaque to everything that moves bytes.
    ParameterId
);

/// A byte range that one rank owns: an allocation or a flat buffer. It is what a binding binds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Storage {
    /// The process that owns it.
    pub rank: Rank,
    /// What its owner calls it, unique among the storages of that rank.
    pub name: String,
    /// Its length.
    pub length: Bytes,
}

/// A typed window of a storage. It holds no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Buffer {
    /// The storage it looks into.
    pub storage: StorageId,
    /// Where in the storage it begins.
    pub offset: Bytes,
    /// The type of its elements.
    pub dtype: DType,
    /// Its length.
    pub length: Elements,
}

/// All storages and buffers of one layout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Places {
    /// Storages, by [`StorageId`].
    pub storages: Vec<Storage>,
    /// Buffers, by [`BufferId`].
    pub buffers: Vec<Buffer>,
}

impl Places {
    /// The buffer with this id.
    ///
    /// # Panics
    /// If the id belongs to another layout.
    #[must_use]
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// The storage with this id.
    ///
    /// # Panics
    /// If the id belongs to another layout.
    #[must_use]
    pub fn storage(&self, id: StorageId) -> &Storage {
        &self.storages[id.index()]
    }

    /// The process that owns a buffer's storage.
    #[must_use]
    pub fn rank_of(&self, buffer: BufferId) -> Rank {
        self.storage(self.buffer(buffer).storage).rank
    }

    /// The storages of one rank, with their ids.
    pub fn of_rank(&self, rank: Rank) -> impl Iterator<Item = (StorageId, &Storage)> {
        (0u32..).map(StorageId).zip(&self.storages).filter(move |(_, storage)| storage.rank == rank)
    }
}

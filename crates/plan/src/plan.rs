//! The plan as a value: ranks, ids and element offsets, never an address.

use reshard_layout::{Bytes, DType, Fill, Parameter, Places, Rank};
use serde::{Deserialize, Serialize};

use crate::copy::{Copy, wire_type};

/// Which holder a box is read from, where several ranks hold it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Policy {
    /// The lowest-numbered holder.
    Lowest,
    /// The target rank itself if it holds the box, else the lowest-numbered holder.
    Local,
    /// The target rank itself if it holds the box, else the holder that sends least so far, the
    /// lowest-numbered of these.
    #[default]
    Balanced,
    /// A caller's own choice, made by [`plan_with`](crate::plan_with) or [`Options::ask`](crate::Options::ask).
    Custom,
}

impl Policy {
    /// Reads the name of a policy that needs no caller.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Lowest, Self::Local, Self::Balanced].into_iter().find(|policy| policy.name() == name)
    }

    /// Its name, as `--policy` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lowest => "lowest",
            Self::Local => "local",
            Self::Balanced => "balanced",
            Self::Custom => "custom",
        }
    }
}

/// What a plan adds up to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Pieces of the source layout.
    pub source_pieces: u64,
    /// Pieces of the target layout.
    pub target_pieces: u64,
    /// Copies after coalescing.
    pub copies: u64,
    /// Bytes whose source and target rank are the same, as the target holds them.
    pub bytes_local: Bytes,
    /// Bytes that go from one rank to another, in the narrower of the two types where a copy casts.
    pub bytes_sent: Bytes,
    /// Bytes that each rank sends to others, by rank.
    pub sent_by_rank: Vec<Bytes>,
    /// Bytes that each rank receives from others, by rank.
    pub received_by_rank: Vec<Bytes>,
}

/// The copies that turn what a source layout holds into what a target layout holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of the plan's form: [`Plan::VERSION`] of the library that made it.
    pub version: u32,
    /// Hash of both layouts, the options and the copies: equal on every rank that planned from the same inputs.
    pub fingerprint: u64,
    /// How sources were chosen.
    pub policy: Policy,
    /// Whether copies may cast from one float type to another: [`Options::cast`](crate::Options::cast).
    pub cast: bool,
    /// Storages and buffers that are read.
    pub source: Places,
    /// Storages and buffers that are written.
    pub target: Places,
    /// The copies, ordered by target buffer, target offset and source buffer.
    pub copies: Vec<Copy>,
    /// Target padding, disjoint from what the copies write.
    pub fills: Vec<Fill>,
    /// The target's parameters, by id. For reports only.
    pub parameters: Vec<Parameter>,
    /// What it adds up to.
    pub statistics: Statistics,
}

impl Plan {
    /// Version of the form and of the planner's rules that this library makes, proves and moves.
    pub const VERSION: u32 = 2;

    /// The rank that a copy is written on.
    #[must_use]
    pub fn target_rank(&self, copy: &Copy) -> Rank {
        self.target.rank_of(copy.target.buffer)
    }

    /// The rank that a copy is read from.
    #[must_use]
    pub fn source_rank(&self, copy: &Copy) -> Rank {
        self.source.rank_of(copy.source.buffer)
    }

    /// The types of a copy's source and target buffer. They differ only in a plan that may [`cast`](Self::cast).
    #[must_use]
    pub fn types(&self, copy: &Copy) -> (DType, DType) {
        (self.source.buffer(copy.source.buffer).dtype, self.target.buffer(copy.target.buffer).dtype)
    }

    /// The type in which a copy's elements travel between ranks: that of both buffers, or the narrower one. The
    /// source's if both are as wide.
    #[must_use]
    pub fn wire(&self, copy: &Copy) -> DType {
        let (source, target) = self.types(copy);
        wire_type(source, target)
    }

    /// The bytes that a copy counts as: on the wire, or as the target holds them if they stay on their rank.
    #[must_use]
    pub fn bytes(&self, copy: &Copy) -> Bytes {
        let is_local = self.source_rank(copy) == self.target_rank(copy);
        copy.elements().bytes(if is_local { self.types(copy).1 } else { self.wire(copy) })
    }
}

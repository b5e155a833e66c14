//! What can go wrong while bytes move.
//!
//! ```text
//! rank 2 dies ──► hub writes PeerFailed{2, ...} once ──► rank 0, 1, 3: Err(PeerFailed{2, ...})
//! ```
//!
//! Errors are values that travel: the failure of one rank is written once, and every rank reads the same one.

use reshard_layout::{Bytes, DType, Rank};
use serde::{Deserialize, Serialize};

/// Errors of this crate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
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
    /// A rank waited too long; every rank gets this same error.
    #[error("rank {rank} timed out after {seconds} s, waiting for {waiting_for}")]
    Timeout {
        /// The rank that gave up first.
        rank: Rank,
        /// The call, and the ranks that had not come, or the launcher that had not answered.
        waiting_for: String,
        /// How long it waited.
        seconds: u64,
    },
    /// Processes that a launcher started never came to its world.
    #[error("ranks {} did not join within {seconds} s", Numbers(ranks))]
    NotJoined {
        /// The ranks that are missing.
        ranks: Vec<Rank>,
        /// How long the launcher waited.
        seconds: u64,
    },
    /// A rank's process could not be started.
    #[error("could not start rank {rank}: {cause}")]
    NotStarted {
        /// The rank.
        rank: Rank,
        /// What the system said.
        cause: String,
    },
    /// The process that holds the world together is gone.
    #[error("rank {rank} lost its launcher: the rendezvous socket was closed")]
    LauncherGone {
        /// The rank that noticed.
        rank: Rank,
    },
    /// No rendezvous of this name takes connections.
    #[error("no rendezvous named {name}: {cause}")]
    NoRendezvous {
        /// The name that was tried.
        name: String,
        /// What the system said.
        cause: String,
    },
    /// An environment variable that a rank needs is missing or not a number.
    #[error("the environment variable {variable} should hold {expected}, found {found}")]
    Environment {
        /// The variable.
        variable: String,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// A rank number that the world does not have.
    #[error("rank {rank} is out of range: the world has {size} ranks")]
    RankOutOfRange {
        /// The number that was asked for.
        rank: Rank,
        /// The number of ranks.
        size: usize,
    },
    /// A rank number that another process holds or held.
    #[error("rank {rank} is taken by another process")]
    RankTaken {
        /// The number that was asked for.
        rank: Rank,
    },
    /// A process of another user tried to join.
    #[error("a process of user {found} may not join a world of user {expected}")]
    ForeignUser {
        /// The user id of the launcher.
        expected: u32,
        /// The user id of the process.
        found: u32,
    },
    /// A list of ranks that is no group: empty, repeated, out of range, or without the calling rank.
    #[error("rank {rank} cannot form a group of ranks {members:?}: {cause}")]
    InvalidGroup {
        /// The rank that asked.
        rank: Rank,
        /// The list.
        members: Vec<Rank>,
        /// What is wrong with it.
        cause: String,
    },
    /// The members of a group made different calls, or passed different lengths.
    #[error("rank {rank} called {found} where the group called {expected}")]
    CollectiveMismatch {
        /// The first member, in group order, that differs from the group's first.
        rank: Rank,
        /// The call of the group's first member.
        expected: String,
        /// The call of the other member.
        found: String,
    },
    /// A collective was given a buffer whose length does not fit the group.
    #[error("rank {rank}: {call} needs {expected} bytes, found {found}")]
    BufferLength {
        /// The rank that made the call.
        rank: Rank,
        /// The call.
        call: String,
        /// The length that fits.
        expected: Bytes,
        /// The length that was passed.
        found: Bytes,
    },
    /// A broadcast from a position that the group does not have.
    #[error("rank {rank}: position {found} is out of range: the group has {size} members")]
    PositionOutOfRange {
        /// The rank that made the call.
        rank: Rank,
        /// The position.
        found: usize,
        /// The number of members.
        size: usize,
    },
    /// A storage that its rank has not published.
    #[error("rank {rank} has published no storage named {name}")]
    StorageUnknown {
        /// The rank that was asked.
        rank: Rank,
        /// The storage's name.
        name: String,
    },
    /// A storage that its rank has published again while another transport's sync was to read it.
    #[error("rank {rank} has published another storage named {name} meanwhile")]
    StorageReplaced {
        /// The rank that was asked.
        rank: Rank,
        /// The storage's name.
        name: String,
    },
    /// A storage that the plan needs and the binding lacks.
    #[error("storage {name} of rank {rank} is not bound: the plan needs its {expected} bytes")]
    StorageMissing {
        /// The owner.
        rank: Rank,
        /// The storage's name.
        name: String,
        /// The length that the plan expects.
        expected: Bytes,
    },
    /// A storage whose memory has another length than the plan says.
    #[error("storage {name} of rank {rank} has {found} bytes, the plan expects {expected}")]
    StorageLength {
        /// The owner.
        rank: Rank,
        /// The storage's name.
        name: String,
        /// The length that the plan expects.
        expected: Bytes,
        /// The length of the memory.
        found: Bytes,
    },
    /// A buffer whose address is no multiple of its element size.
    #[error("storage {name} of rank {rank} lies {excess} bytes past an address that is aligned for {dtype}")]
    StorageMisaligned {
        /// The owner.
        rank: Rank,
        /// The storage's name.
        name: String,
        /// The type that needs alignment.
        dtype: DType,
        /// How far past an aligned address the buffer begins.
        excess: Bytes,
    },
    /// A storage that other ranks must read, bound to memory that only its owner sees.
    #[error("storage {name} of rank {rank} is read by other ranks, but is not bound to shared memory")]
    StorageNotShared {
        /// The owner.
        rank: Rank,
        /// The storage's name.
        name: String,
    },
    /// A binding names a storage that the plan does not have.
    #[error("the plan has no storage {found}: it has {expected}")]
    StorageOutOfRange {
        /// The number of storages of the plan.
        expected: usize,
        /// The id that was bound.
        found: u32,
    },
    /// A copy that would read or write past the end of its buffer or storage.
    #[error("copy {copy}: the {side} ends at byte {found} of storage {name} of rank {rank}, past {expected}")]
    CopyOutOfBounds {
        /// The copy's position in the plan.
        copy: usize,
        /// `source` or `target`.
        side: String,
        /// The owner of the storage.
        rank: Rank,
        /// The storage's name.
        name: String,
        /// The bytes that there are.
        expected: Bytes,
        /// The byte at which the copy ends; the largest number when it does not fit 64 bits.
        found: Bytes,
    },
    /// A copy whose parts do not fit together.
    #[error("copy {copy} is malformed: {cause}")]
    CopyMalformed {
        /// The copy's position in the plan.
        copy: usize,
        /// What does not fit.
        cause: String,
    },
    /// A copy that casts, which the transports of this crate do not.
    #[error(
        "{parameter}: the plan casts {source_dtype} to {target_dtype}, and this transport moves bits as they are"
    )]
    CastUnsupported {
        /// The parameter.
        parameter: String,
        /// The type of the source buffer.
        source_dtype: DType,
        /// The type of the target buffer.
        target_dtype: DType,
    },
    /// A plan of another version of its form.
    #[error("the plan has version {found}, this library moves version {expected}")]
    PlanVersion {
        /// The version that this library moves.
        expected: u32,
        /// The version of the plan.
        found: u32,
    },
    /// A fill whose parts do not fit together.
    #[error("fill {fill} is malformed: {cause}")]
    FillMalformed {
        /// The fill's position in the plan.
        fill: usize,
        /// What does not fit.
        cause: String,
    },
    /// Memory from a file descriptor has another length than expected.
    #[error("shared memory has {found} bytes, expected {expected}")]
    MemoryLength {
        /// The length that was expected.
        expected: Bytes,
        /// The length that the descriptor has.
        found: Bytes,
    },
    /// Memory from a file descriptor that its owner could still shrink.
    #[error("shared memory is not sealed against shrinking")]
    MemoryNotSealed,
    /// Ranks hold different plans; every rank gets this same error, and no byte was moved.
    #[error("rank {rank} holds plan {found:016x}, rank {reference} holds {expected:016x}")]
    PlanMismatch {
        /// The rank that differs.
        rank: Rank,
        /// The rank it was compared with.
        reference: Rank,
        /// The plan's fingerprint on the reference rank.
        expected: u64,
        /// The plan's fingerprint on the rank that differs.
        found: u64,
    },
    /// Two ranks disagree on the copies between them; no byte was moved.
    #[error("ranks {source_rank} and {target_rank} hold different copies from the one to the other")]
    CopiesMismatch {
        /// The rank that is read.
        source_rank: Rank,
        /// The rank that is written.
        target_rank: Rank,
    },
    /// Ranks want different versions; every rank gets this same error, and no byte was moved.
    #[error("rank {rank} moves version {found}, rank {reference} moves version {expected}")]
    VersionMismatch {
        /// The rank that differs.
        rank: Rank,
        /// The rank it was compared with.
        reference: Rank,
        /// The version on the reference rank.
        expected: u64,
        /// The version on the rank that differs.
        found: u64,
    },
    /// A rank could not take part; every rank gets this same error, and no byte was moved.
    #[error("rank {rank} refused the sync: {cause}")]
    Refused {
        /// The rank that refused first, in group order.
        rank: Rank,
        /// Its reason.
        cause: String,
    },
    /// A rank found wrong values after the move; every rank gets this same error, targets stay torn.
    #[error("rank {rank} moved its bytes, but not to its satisfaction: {cause}")]
    NotVerified {
        /// The first such rank, in group order.
        rank: Rank,
        /// What it found.
        cause: String,
    },
    /// The group's members are not the plan's ranks, or the transport moves for other ranks.
    #[error("the plan needs rank {rank}, which is not in the group")]
    RankMissing {
        /// The rank.
        rank: Rank,
    },
    /// A transport of one world and a group of another.
    #[error("rank {rank} moves bytes in one world, but agrees with its peers in another")]
    WorldMismatch {
        /// The rank.
        rank: Rank,
    },
    /// Sources may not be read any more: a rank of this process left a sync of this world early.
    #[error("rank {rank} may not read the sources of others: a sync of its world was abandoned")]
    SyncAbandoned {
        /// The rank that wanted to read.
        rank: Rank,
    },
    /// A message that is not part of the rendezvous protocol.
    #[error("unexpected message while {doing}: {found}")]
    Protocol {
        /// What the rank was doing.
        doing: String,
        /// What came.
        found: String,
    },
    /// A system call failed.
    #[error("could not {operation}: {cause}")]
    System {
        /// What was tried.
        operation: String,
        /// What the system said.
        cause: String,
    },
}

/// Who has to act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Category {
    /// Another rank, or the launcher, failed, died, is late, refuses or disagrees.
    Peer,
    /// The system did not give a process, memory, a descriptor or a connection.
    System,
    /// The caller passed what contradicts itself, the plan or the world.
    Invalid,
    /// The plan is right, but asks for what this crate does not do.
    Unsupported,
}

impl TransportError {
    /// Who has to act on it.
    #[must_use]
    pub fn category(&self) -> Category {
        match self {
            Self::PeerFailed { .. }
            | Self::Timeout { .. }
            | Self::NotJoined { .. }
            | Self::LauncherGone { .. }
            | Self::CollectiveMismatch { .. }
            | Self::PlanMismatch { .. }
            | Self::CopiesMismatch { .. }
            | Self::VersionMismatch { .. }
            | Self::Refused { .. }
            | Self::NotVerified { .. }
            | Self::StorageReplaced { .. }
            | Self::SyncAbandoned { .. }
            | Self::Protocol { .. } => Category::Peer,
            Self::NotStarted { .. } | Self::NoRendezvous { .. } | Self::System { .. } => Category::System,
            Self::Environment { .. }
            | Self::RankOutOfRange { .. }
            | Self::RankTaken { .. }
            | Self::ForeignUser { .. }
            | Self::InvalidGroup { .. }
            | Self::BufferLength { .. }
            | Self::PositionOutOfRange { .. }
            | Self::StorageUnknown { .. }
            | Self::StorageMissing { .. }
            | Self::StorageLength { .. }
            | Self::StorageMisaligned { .. }
            | Self::StorageNotShared { .. }
            | Self::StorageOutOfRange { .. }
            | Self::CopyOutOfBounds { .. }
            | Self::CopyMalformed { .. }
            | Self::PlanVersion { .. }
            | Self::FillMalformed { .. }
            | Self::MemoryLength { .. }
            | Self::MemoryNotSealed
            | Self::RankMissing { .. }
            | Self::WorldMismatch { .. } => Category::Invalid,
            Self::CastUnsupported { .. } => Category::Unsupported,
        }
    }

    /// Whether another rank, or the launcher, is the cause.
    #[must_use]
    pub fn is_peer_failure(&self) -> bool {
        self.category() == Category::Peer
    }

    /// The error of a message that should have brought a descriptor.
    pub(crate) fn no_descriptor(doing: &str) -> Self {
        let cause = "none came with the message; is the limit of open files (ulimit -n) reached?";
        Self::system(&format!("take a descriptor, {doing}"), cause)
    }

    /// The error of a failed system call.
    pub(crate) fn system(operation: &str, cause: impl std::fmt::Display) -> Self {
        Self::System { operation: operation.to_owned(), cause: cause.to_string() }
    }
}

/// Ranks as plain numbers.
pub(crate) struct Numbers<'a>(pub(crate) &'a [Rank]);

impl std::fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|rank| rank.0)).finish()
    }
}

/// The longest cause, in bytes, that travels between ranks.
pub(crate) const CAUSE_BYTES_MAX: usize = 600;

/// Cuts a text to what travels between ranks, at a character boundary.
pub(crate) fn shortened(mut cause: String) -> String {
    let mut end = CAUSE_BYTES_MAX.min(cause.len());
    while !cause.is_char_boundary(end) {
        end -= 1;
    }
    cause.truncate(end);
    cause
}

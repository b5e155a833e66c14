//! A plan's messages in rounds, so that staging is bounded and no rank waits for another without end.
//!
//! ```text
//!   bytes           0 -> 1: 40     chunks of 16     0 -> 1: 16 16 8      sends 0: 4, 1: 1     bound 4
//!                   0 -> 2: 16                      0 -> 2: 16           receives 1: 3, 2: 2
//!                   1 -> 2: 10                      1 -> 2: 10
//!
//!   round 0   0 ─16─> 1   1 ─10─> 2        in each round a rank sends at most one message,
//!   round 1   0 ─16─> 1                    and receives at most one: as many rounds as the
//!   round 2   0 ── 8─> 1                   busiest rank has messages in one direction,
//!   round 3   0 ─16─> 2                    and never more
//! ```
//!
//! What goes from one rank to another is one stream: its copies by width of the element on the wire, widest
//! first, then in the plan's order; each copy row-major. It is cut every chunk, a multiple of 16 bytes, so that
//! every box of a message begins at a multiple of its element's size. A pair's messages keep their order: the
//! k-th that one sends is the k-th that the other receives, without any tag.

mod colour;
mod error;
mod pairs;
mod share;

use reshard_layout::{Bytes, Rank};
use xxhash_rust::xxh3::Xxh3Default;

use crate::plan::Plan;
use pairs::Pair;

pub use error::ScheduleError;
pub use share::{Message, Round, Share, WireBox};

/// When each message of a plan goes. Equal plans and equal staging give equal schedules on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    plan: u64,
    staging: Bytes,
    chunk: Bytes,
    rounds: u32,
    bound: u32,
    /// Who has copies for whom, ordered by source, then target; local copies too, which have no messages.
    pairs: Vec<Pair>,
    /// Positions in the plan of each pair's copies, in the order of its stream; one pair after another.
    copies: Vec<u32>,
    /// The round of each message, ascending in a pair; one pair after another.
    round_of: Vec<u32>,
    fingerprint: u64,
}

impl Schedule {
    /// The staging that is enough for good speed on most machines: 256 MiB.
    pub const STAGING_DEFAULT: Bytes = Bytes(256 << 20);

    /// The least staging: two chunks of 16 bytes in each direction.
    pub const STAGING_MIN: Bytes = Bytes(4 * Self::CHUNK_UNIT);

    /// The most messages that are scheduled, over all ranks.
    pub const MESSAGES_MAX: u64 = 1 << 24;

    /// Chunks are multiples of this, and it is one of every element's size.
    const CHUNK_UNIT: u64 = 16;

    /// Schedules a plan so that no rank needs more than `staging` bytes for what it sends and receives: two
    /// chunks in each direction. The number of rounds is the least that there can be.
    ///
    /// ```
    /// use reshard_layout::{Block, Bytes, DType, Elements, Geometry, Layout, LayoutBuilder, Rank, Region};
    /// use reshard_plan::{Policy, Schedule, plan};
    ///
    /// /// A vector of 10 elements on one rank.
    /// fn whole(rank: u32) -> Layout {
    ///     let mut builder = LayoutBuilder::new();
    ///     let w = builder.parameter("w", [10], DType::F32);
    ///     let storage = builder.storage(Rank(rank), "w", Bytes(40));
    ///     let buffer = builder.buffer(storage, Bytes(0), DType::F32, Elements(10));
    ///     let geometry = builder.geometry(Geometry::whole(&[10]));
    ///     builder.place(w, buffer, Elements(0), geometry);
    ///     builder.build().unwrap()
    /// }
    ///
    /// let plan = plan(&whole(0), &whole(1), Policy::Balanced)?;
    /// let schedule = Schedule::new(&plan, Bytes(64))?;
    /// assert_eq!((schedule.chunk(), schedule.rounds()), (Bytes(16), 3));
    /// let share = schedule.share(&plan, Rank(0))?;
    /// let sent: Vec<u64> = share.rounds.iter().map(|round| round.send.as_ref().unwrap().bytes.0).collect();
    /// assert_eq!(sent, [16, 16, 8]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ScheduleError`] if staging is below [`STAGING_MIN`](Self::STAGING_MIN) or so small that there would be
    /// more than [`MESSAGES_MAX`](Self::MESSAGES_MAX) messages, or if the plan is malformed.
    pub fn new(plan: &Plan, staging: Bytes) -> Result<Self, ScheduleError> {
        if staging < Self::STAGING_MIN {
            return Err(ScheduleError::StagingTooSmall { expected: Self::STAGING_MIN, found: staging });
        }
        let chunk = Bytes(staging.0 / 4 / Self::CHUNK_UNIT * Self::CHUNK_UNIT);
        let (pairs, copies) = pairs::pairs(plan, chunk)?;
        let remote: Vec<&Pair> = pairs.iter().filter(|pair| pair.source != pair.target).collect();
        let bound = colour::bound(&remote);
        let round_of = colour::colour(&remote);
        let mut schedule = Self {
            plan: plan.fingerprint,
            staging,
            chunk,
            rounds: round_of.iter().max().map_or(0, |last| last + 1),
            bound,
            pairs,
            copies,
            round_of,
            fingerprint: 0,
        };
        schedule.fingerprint = schedule.digest();
        Ok(schedule)
    }

    /// The most bytes that a rank keeps for what it sends and receives.
    #[must_use]
    pub fn staging(&self) -> Bytes {
        self.staging
    }

    /// The most bytes of a message: a quarter of the staging, rounded down to a multiple of 16.
    #[must_use]
    pub fn chunk(&self) -> Bytes {
        self.chunk
    }

    /// The number of rounds.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// What the number of rounds cannot be below: the most messages that one rank sends, or receives. It is
    /// reached.
    #[must_use]
    pub fn bound(&self) -> u32 {
        self.bound
    }

    /// The number of messages, over all ranks.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.round_of.len() as u64
    }

    /// Hash of the plan's fingerprint, the staging and every message's round.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// What one rank does. A rank that the plan does not know does nothing in each round.
    ///
    /// # Errors
    /// [`ScheduleError::OtherPlan`] if `plan` is not the one that was scheduled.
    pub fn share(&self, plan: &Plan, rank: Rank) -> Result<Share, ScheduleError> {
        if plan.fingerprint != self.plan || plan.copies.len() != self.copies.len() {
            return Err(ScheduleError::OtherPlan { expected: self.plan, found: plan.fingerprint });
        }
        Ok(share::of(self, plan, rank))
    }

    fn digest(&self) -> u64 {
        let mut digest = Xxh3Default::new();
        let mut feed = |number: u64| digest.update(&number.to_le_bytes());
        feed(self.plan);
        feed(self.staging.0);
        for pair in self.pairs.iter().filter(|pair| !pair.messages.is_empty()) {
            feed(u64::from(pair.source.0));
            feed(u64::from(pair.target.0));
            feed(u64::from(pair.messages.end));
        }
        self.round_of.iter().for_each(|&round| feed(u64::from(round)));
        digest.digest()
    }
}

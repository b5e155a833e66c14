//! Topologies: how many ranks stand on which axis, and which process each of them is.
//!
//! ```text
//! autotp:tp=2,dp=2             slot  0  1  2  3       autotp:tp=2,copies=2,first=4,order=4.6.5.7
//!                              tp    0  1  0  1              slot  0  1  2  3
//!                              dp    0  0  1  1              tp    0  1  0  1
//!                              rank  0  1  2  3              copy  0  0  1  1
//!                                                            rank  4  6  5  7
//! ```
//!
//! A *slot* is a position in the topology: `tp` runs fastest, then `dp`, then `copies` (engines with pipeline stages
//! say where `pp` stands). `first` numbers the ranks from another one than 0; `order` names the rank of each slot.

mod engine;
mod numbering;
mod parse;

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use reshard_layout::Rank;

use self::numbering::Numbering;
use crate::error::ParallelError;
use crate::zero::{Init, Stage};

pub use engine::{EngineKind, EnginePlace, EngineTopology};

/// The most ranks of a topology, and the largest value of any of its numbers.
const WORLD_MAX: u32 = 1 << 20;

/// A position in a topology, counted with `tp` fastest, then `dp`, then `copies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a slot stands on each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Position in the tensor-parallel group.
    pub tp_rank: u32,
    /// Position in the data-parallel group.
    pub dp_rank: u32,
    /// The copy of the whole.
    pub copy: u32,
}

/// A topology of any engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Topology {
    /// DeepSpeed: AutoTP and ZeRO.
    AutoTp(AutoTp),
    /// An engine that stores each parameter in a tensor of its own, whole or fused with others.
    Engine(EngineTopology),
}

impl Topology {
    /// Reads `engine:key=value,...`; keys that are absent count 1, or are off.
    ///
    /// # Errors
    /// Usage, for anything that is not the grammar; unsupported, for engines and keys that it names but that have no
    /// layout here.
    pub fn parse(text: &str) -> Result<Self, ParallelError> {
        parse::topology(text)
    }

    /// The number of ranks.
    #[must_use]
    pub fn world(&self) -> u32 {
        match self {
            Self::AutoTp(topology) => topology.world(),
            Self::Engine(topology) => topology.world(),
        }
    }

    /// The rank of each slot.
    #[must_use]
    pub fn ranks(&self) -> Vec<Rank> {
        match self {
            Self::AutoTp(topology) => topology.ranks(),
            Self::Engine(topology) => topology.ranks(),
        }
    }
}

impl FromStr for Topology {
    type Err = ParallelError;
    fn from_str(text: &str) -> Result<Self, ParallelError> {
        Self::parse(text)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AutoTp(topology) => topology.fmt(f),
            Self::Engine(topology) => topology.fmt(f),
        }
    }
}

/// DeepSpeed's AutoTP over `tp` ranks, ZeRO over `dp`, and independent copies of both.
///
/// Invariants, in the order of their checks: (1) `init` only at stage 3; (2) `copies` above 1 not with `init=zero`;
/// (3) at most 2^20 ranks; (4) `order`, if any, lists each rank from `first` on once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AutoTp {
    tp: NonZeroU32,
    dp: NonZeroU32,
    copies: NonZeroU32,
    stage: Stage,
    init: Option<Init>,
    numbering: Numbering,
}

impl AutoTp {
    /// Tensor-parallel ranks.
    #[must_use]
    pub fn tp(&self) -> NonZeroU32 {
        self.tp
    }

    /// Data-parallel ranks.
    #[must_use]
    pub fn dp(&self) -> NonZeroU32 {
        self.dp
    }

    /// Independent copies.
    #[must_use]
    pub fn copies(&self) -> NonZeroU32 {
        self.copies
    }

    /// The ZeRO stage.
    #[must_use]
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether and over what the model is built under `zero.Init`.
    #[must_use]
    pub fn init(&self) -> Option<Init> {
        self.init
    }

    /// The number of ranks.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.tp.get() * self.dp.get() * self.copies.get()
    }

    /// All slots.
    pub fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        (0..self.world()).map(Slot)
    }

    /// The rank of each slot.
    #[must_use]
    pub fn ranks(&self) -> Vec<Rank> {
        self.slots().map(|slot| self.rank(slot)).collect()
    }

    /// The rank of a slot.
    ///
    /// # Panics
    /// If there is no such slot: a bug of the caller.
    #[must_use]
    pub fn rank(&self, slot: Slot) -> Rank {
        assert!(slot.0 < self.world(), "slot {slot} of a topology of {} ranks", self.world());
        self.numbering.rank(slot)
    }

    /// Where a slot stands.
    #[must_use]
    pub fn place(&self, slot: Slot) -> Place {
        let (tp, dp) = (self.tp.get(), self.dp.get());
        Place { tp_rank: slot.0 % tp, dp_rank: slot.0 / tp % dp, copy: slot.0 / tp / dp }
    }

    /// The slot that stands at a place.
    #[must_use]
    pub fn slot(&self, place: Place) -> Slot {
        Slot((place.copy * self.dp.get() + place.dp_rank) * self.tp.get() + place.tp_rank)
    }

    /// Invariants 1 to 3.
    fn check(&self) -> Result<(), ParallelError> {
        let other = format!("zero={}", self.stage.number());
        if let (Some(init), true) = (self.init, self.stage != Stage::Three) {
            return Err(ParallelError::TopologyContradiction {
                key: "init",
                value: parse::word(parse::INITS, init).to_owned(),
                other,
                reason: "zero.Init partitions weights, which only stage 3 does",
            });
        }
        if self.copies.get() > 1 && self.init == Some(Init::World) {
            return Err(ParallelError::TopologyUnsupported {
                what: format!("copies={} with init=zero, which partitions over one world,", self.copies),
                supported: "copies without init=zero".to_owned(),
            });
        }
        check_world(&[("tp", self.tp), ("dp", self.dp), ("copies", self.copies)])
    }
}

/// A text that parses to the same topology, without the keys that say what holds anyway, `tp` apart.
impl fmt::Display for AutoTp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "autotp:tp={}", self.tp)?;
        for (key, value, absent) in
            [("dp", self.dp.get(), 1), ("copies", self.copies.get(), 1), ("zero", self.stage.number(), 0)]
        {
            if value != absent {
                write!(f, ",{key}={value}")?;
            }
        }
        if let Some(init) = self.init {
            write!(f, ",init={}", parse::word(parse::INITS, init))?;
        }
        self.numbering.fmt(f)
    }
}

/// Refuses a product of axes that is more than a topology may have.
fn check_world(axes: &[(&str, NonZeroU32)]) -> Result<(), ParallelError> {
    // Each of at most four axes is at most 2^20 long, so the product fits in 128 bits.
    let maximum = u64::from(WORLD_MAX);
    let world: u128 = axes.iter().map(|(_, size)| u128::from(size.get())).product();
    if world <= u128::from(maximum) {
        return Ok(());
    }
    let axes = axes.iter().map(|(key, size)| format!("{key}={size}")).collect::<Vec<_>>().join(", ");
    Err(ParallelError::WorldTooLarge { axes, world, maximum })
}

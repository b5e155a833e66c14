//! Topologies of engines that store each parameter in tensors of their own: vLLM, SGLang, Megatron, plain files.
//!
//! ```text
//! vllm:tp=2,pp=2,dp=2             megatron:tp=2,pp=2,dp=2
//! slot   0 1 2 3 4 5 6 7          slot   0 1 2 3 4 5 6 7
//! tp     0 1 0 1 0 1 0 1          tp     0 1 0 1 0 1 0 1
//! stage  0 0 1 1 0 0 1 1          dp     0 0 1 1 0 0 1 1
//! dp     0 0 0 0 1 1 1 1          stage  0 0 0 0 1 1 1 1
//! ```
//!
//! `copies` is the slowest axis of both. Sources: the group constructors of vLLM (`data, pipeline, tensor`) and of
//! Megatron-core (`tp-cp-ep-dp-pp`, first fastest).

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use reshard_layout::Rank;

use super::numbering::Numbering;
use super::{Slot, check_world};
use crate::error::ParallelError;

/// Rows of Megatron's vocabulary are a multiple of this and of the tensor-parallel ranks, unless `pad` says otherwise
/// (`make_vocab_size_divisible_by`).
pub(super) const PAD: u32 = 128;

/// An engine that has a layout of dense models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// Megatron-core, with the layers of Transformer Engine.
    Megatron,
    /// The tensors of a Hugging Face checkpoint, all on one rank.
    Hf,
}

impl EngineKind {
    pub(super) const ALL: [Self; 4] = [Self::Vllm, Self::Sglang, Self::Megatron, Self::Hf];

    /// The word that stands for it in a topology.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Megatron => "megatron",
            Self::Hf => "hf",
        }
    }
}

/// Where a slot of an engine stands on each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EnginePlace {
    /// Position in the tensor-parallel group.
    pub tp_rank: u32,
    /// Pipeline stage.
    pub stage: u32,
    /// Position in the data-parallel group.
    pub dp_rank: u32,
    /// The copy of the whole.
    pub copy: u32,
}

/// Tensor-parallel ranks, pipeline stages and replicas of an engine.
///
/// Invariants, in the order of their checks: (1) `vp` above 1 only with `pp` above 1 and without `layers`; (2) `layers`,
/// if any, has a number for each stage; (3) at most 2^20 ranks; (4) `order`, if any, lists each rank from `first` on
/// once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EngineTopology {
    pub(super) kind: EngineKind,
    pub(super) tp: NonZeroU32,
    pub(super) pp: NonZeroU32,
    pub(super) vp: NonZeroU32,
    pub(super) dp: NonZeroU32,
    pub(super) copies: NonZeroU32,
    pub(super) layers: Option<Vec<u32>>,
    pub(super) pad: NonZeroU32,
    pub(super) numbering: Numbering,
}

impl EngineTopology {
    /// The engine.
    #[must_use]
    pub fn kind(&self) -> EngineKind {
        self.kind
    }

    /// Tensor-parallel ranks.
    #[must_use]
    pub fn tp(&self) -> NonZeroU32 {
        self.tp
    }

    /// Pipeline stages.
    #[must_use]
    pub fn pp(&self) -> NonZeroU32 {
        self.pp
    }

    /// Chunks of layers that each stage holds (virtual pipeline stages).
    #[must_use]
    pub fn vp(&self) -> NonZeroU32 {
        self.vp
    }

    /// The layers of each stage, where they are given.
    #[must_use]
    pub fn layers(&self) -> Option<&[u32]> {
        self.layers.as_deref()
    }

    /// What the rows of the vocabulary are padded to, a tensor-parallel rank (Megatron).
    #[must_use]
    pub fn pad(&self) -> NonZeroU64 {
        self.pad.into()
    }

    /// The number of ranks.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.tp.get() * self.pp.get() * self.dp.get() * self.copies.get()
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
    pub fn place(&self, slot: Slot) -> EnginePlace {
        let (tp, pp, dp) = (self.tp.get(), self.pp.get(), self.dp.get());
        let (tp_rank, above) = (slot.0 % tp, slot.0 / tp);
        let copy = above / pp / dp;
        let (stage, dp_rank) = match self.kind {
            EngineKind::Megatron => (above / dp % pp, above % dp),
            EngineKind::Vllm | EngineKind::Sglang | EngineKind::Hf => (above % pp, above / pp % dp),
        };
        EnginePlace { tp_rank, stage, dp_rank, copy }
    }

    /// Invariants 1 to 3.
    pub(super) fn check(&self) -> Result<(), ParallelError> {
        let contradiction = |key, value: String, other: String, reason| {
            Err(ParallelError::TopologyContradiction { key, value, other, reason })
        };
        if self.vp.get() > 1 && self.pp.get() == 1 {
            let reason = "virtual stages are chunks of pipeline stages";
            return contradiction("vp", self.vp.to_string(), "pp=1".to_owned(), reason);
        }
        if let Some(layers) = self.dotted_layers() {
            if self.vp.get() > 1 {
                let reason = "virtual stages are equal";
                return contradiction("layers", layers, format!("vp={}", self.vp), reason);
            }
            if self.layers.as_ref().is_some_and(|layers| layers.len() as u64 != u64::from(self.pp.get())) {
                let reason = "each stage has one number of layers";
                return contradiction("layers", layers, format!("pp={}", self.pp), reason);
            }
        }
        check_world(&[("tp", self.tp), ("pp", self.pp), ("dp", self.dp), ("copies", self.copies)])
    }

    fn dotted_layers(&self) -> Option<String> {
        let layers = self.layers.as_ref()?;
        Some(layers.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
    }
}

/// A text that parses to the same topology, without the keys that say what holds anyway.
impl fmt::Display for EngineTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        if self.kind != EngineKind::Hf {
            text = format!(",tp={}", self.tp);
        }
        for (key, value, absent) in [
            ("pp", self.pp, 1),
            ("vp", self.vp, 1),
            ("dp", self.dp, 1),
            ("copies", self.copies, 1),
            ("pad", self.pad, PAD),
        ] {
            if value.get() != absent {
                text += &format!(",{key}={value}");
            }
        }
        if let Some(layers) = self.dotted_layers() {
            text += &format!(",layers={layers}");
        }
        text += &self.numbering.to_string();
        f.write_str(self.kind.name())?;
        match text.strip_prefix(',') {
            Some(keys) => write!(f, ":{keys}"),
            None => Ok(()),
        }
    }
}

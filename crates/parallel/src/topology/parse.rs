//! The grammar of topologies.
//!
//! ```text
//! topology = engine [ ":" part { "," part } ]        autotp:tp=2,dp=4,zero=3,init=zero
//! part     = key "=" value                           autotp:tp=4,copies=2
//! order    = rank { "." rank }                       autotp:tp=2,first=8,order=9.8
//! layers   = number { "." number }                   megatron:tp=8,pp=2,layers=38.42
//! ```

use std::num::NonZeroU32;

use reshard_layout::Rank;

use super::engine::{EngineKind, EngineTopology, PAD};
use super::numbering::Numbering;
use super::{AutoTp, Topology, WORLD_MAX};
use crate::error::ParallelError;
use crate::zero::{Init, Stage};

const ENGINES: &str = "autotp, vllm, sglang, megatron, hf";
const ENGINES_LATER: [&str; 1] = ["fsdp"];

/// The keys of one engine.
#[derive(Clone, Copy)]
struct Grammar {
    engine: &'static str,
    keys: &'static str,
    /// Keys that mean something to the engine, but that no layout can be derived for.
    later: &'static [&'static str],
}

const AUTO_TP: Grammar = Grammar {
    engine: "autotp",
    keys: "tp, dp, copies, zero, init, first, order",
    later: &["pp", "ep", "etp"],
};

fn grammar(kind: EngineKind) -> Grammar {
    let (keys, later): (_, &[&str]) = match kind {
        EngineKind::Vllm => ("tp, pp, dp, copies, layers, first, order", &["ep"]),
        EngineKind::Sglang => ("tp, copies, first, order", &["pp", "dp", "ep"]),
        EngineKind::Megatron => ("tp, pp, vp, dp, copies, layers, pad, first, order", &["cp", "ep", "etp"]),
        EngineKind::Hf => ("copies, first, order", &[]),
    };
    Grammar { engine: kind.name(), keys, later }
}

const STAGES: &[(&str, Stage)] =
    &[("0", Stage::Zero), ("1", Stage::One), ("2", Stage::Two), ("3", Stage::Three)];
pub(super) const INITS: &[(&str, Init)] = &[("zero", Init::World), ("dp", Init::DataParallel)];

/// The word that stands for a value.
pub(super) fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, known)| *known == value).map_or("", |(word, _)| word)
}

pub(super) fn topology(text: &str) -> Result<Topology, ParallelError> {
    let (engine, rest) = match text.split_once(':') {
        Some((engine, rest)) => (engine, Some(rest)),
        None => (text, None),
    };
    if engine == AUTO_TP.engine {
        return auto_tp(&Keys::read(text, rest, AUTO_TP)?).map(Topology::AutoTp);
    }
    if let Some(kind) = EngineKind::ALL.into_iter().find(|kind| kind.name() == engine) {
        return engine_topology(kind, &Keys::read(text, rest, grammar(kind))?).map(Topology::Engine);
    }
    if ENGINES_LATER.contains(&engine) {
        return Err(unsupported(format!("engine {engine:?}"), ENGINES));
    }
    Err(ParallelError::EngineUnknown {
        engine: engine.to_owned(),
        text: text.to_owned(),
        known: ENGINES.to_owned(),
    })
}

fn auto_tp(keys: &Keys<'_>) -> Result<AutoTp, ParallelError> {
    let mut topology = AutoTp {
        tp: keys.count("tp")?,
        dp: keys.count("dp")?,
        copies: keys.count("copies")?,
        stage: keys.word("zero", STAGES)?.unwrap_or_default(),
        init: keys.word("init", INITS)?,
        numbering: keys.numbering()?,
    };
    topology.check()?;
    topology.numbering.order = keys.order(topology.world())?;
    Ok(topology)
}

fn engine_topology(kind: EngineKind, keys: &Keys<'_>) -> Result<EngineTopology, ParallelError> {
    let mut topology = EngineTopology {
        kind,
        tp: keys.count("tp")?,
        pp: keys.count("pp")?,
        vp: keys.count("vp")?,
        dp: keys.count("dp")?,
        copies: keys.count("copies")?,
        layers: keys.get("layers").map(|value| numbers("layers", value, 1, WORLD_MAX)).transpose()?,
        pad: keys.number("pad", 1)?.or(Some(PAD)).and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN),
        numbering: keys.numbering()?,
    };
    topology.check()?;
    topology.numbering.order = keys.order(topology.world())?;
    Ok(topology)
}

/// Ranks that list each of a world's once.
fn order(first: Rank, world: u32, value: &str) -> Result<Vec<Rank>, ParallelError> {
    let listed = numbers("order", value, 0, u32::MAX)?;
    let (found, expected) = (listed.len() as u64, u64::from(world));
    if found != expected {
        return Err(ParallelError::OrderLength { value: value.to_owned(), found, expected });
    }
    let (first, last) = (first.0, first.0 + world - 1);
    let mut seen = vec![false; listed.len()];
    for &rank in &listed {
        let wrong =
            |problem| ParallelError::OrderRank { value: value.to_owned(), first, last, rank, problem };
        let index = rank.checked_sub(first).map(|index| index as usize);
        let slot = index.and_then(|index| seen.get_mut(index)).ok_or_else(|| wrong("not one of them"))?;
        if std::mem::replace(slot, true) {
            return Err(wrong("listed twice"));
        }
    }
    Ok(listed.into_iter().map(Rank).collect())
}

fn unsupported(what: String, supported: &str) -> ParallelError {
    ParallelError::TopologyUnsupported { what, supported: supported.to_owned() }
}

/// Numbers between dots.
fn numbers(key: &str, value: &str, minimum: u32, maximum: u32) -> Result<Vec<u32>, ParallelError> {
    value.split('.').map(|text| whole_number(key, text, minimum, maximum)).collect()
}

fn whole_number(key: &str, value: &str, minimum: u32, maximum: u32) -> Result<u32, ParallelError> {
    // `u32::from_str` alone would let a plus sign pass.
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.parse().ok().filter(|number| digits && (minimum..=maximum).contains(number));
    number.ok_or_else(|| ParallelError::TopologyNumber {
        key: key.to_owned(),
        value: value.to_owned(),
        minimum: u64::from(minimum),
        maximum: u64::from(maximum),
    })
}

/// The keys of one text, each at most once.
struct Keys<'a> {
    text: &'a str,
    grammar: Grammar,
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> Keys<'a> {
    fn read(text: &'a str, rest: Option<&'a str>, grammar: Grammar) -> Result<Self, ParallelError> {
        let mut keys = Keys { text, grammar, given: Vec::new() };
        for part in rest.into_iter().flat_map(|rest| rest.split(',')) {
            keys.add(part)?;
        }
        Ok(keys)
    }

    fn add(&mut self, part: &'a str) -> Result<(), ParallelError> {
        let Grammar { engine, keys: known, later } = self.grammar;
        let (key, value) = part.split_once('=').ok_or_else(|| ParallelError::TopologyPart {
            part: part.to_owned(),
            text: self.text.to_owned(),
            known: known.to_owned(),
        })?;
        if later.contains(&key) {
            return Err(unsupported(format!("key {key}={value:?} of engine {engine:?}"), known));
        }
        if !known.split(", ").any(|known| known == key) {
            return Err(ParallelError::KeyUnknown {
                engine: engine.to_owned(),
                key: key.to_owned(),
                value: value.to_owned(),
                known: known.to_owned(),
            });
        }
        if let Some(first) = self.get(key) {
            let (key, first, second) = (key.to_owned(), first.to_owned(), value.to_owned());
            return Err(ParallelError::KeyRepeated { key, first, second });
        }
        self.given.push((key, value));
        Ok(())
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.given.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    fn number(&self, key: &str, minimum: u32) -> Result<Option<u32>, ParallelError> {
        self.get(key).map(|value| whole_number(key, value, minimum, WORLD_MAX)).transpose()
    }

    fn count(&self, key: &str) -> Result<NonZeroU32, ParallelError> {
        Ok(self.number(key, 1)?.and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN))
    }

    /// The ranks in their own order.
    fn numbering(&self) -> Result<Numbering, ParallelError> {
        Ok(Numbering { first: Rank(self.number("first", 0)?.unwrap_or(0)), order: None })
    }

    fn order(&self, world: u32) -> Result<Option<Vec<Rank>>, ParallelError> {
        let first = self.numbering()?.first;
        self.get("order").map(|value| order(first, world, value)).transpose()
    }

    fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, ParallelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let found = words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning);
        found.map(Some).ok_or_else(|| ParallelError::TopologyWord {
            key: key.to_owned(),
            value: value.to_owned(),
            known: words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", "),
        })
    }
}

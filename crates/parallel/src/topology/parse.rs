//! The grammar of topologies.
//!
//! ```text
//! topology = engine [ ":" part { "," part } ]        autotp:tp=2,dp=4,zero=3,init=zero
//! part     = key "=" value                           autotp:tp=4,copies=2
//! order    = rank { "." rank }                       autotp:tp=2,first=8,order=9.8
//! ```

use std::num::NonZeroU32;

use reshard_layout::Rank;

use super::{AutoTp, Topology, WORLD_MAX};
use crate::error::ParallelError;
use crate::zero::{Init, Stage};

const ENGINES: &str = "autotp";
const ENGINES_LATER: [&str; 4] = ["fsdp", "megatron", "vllm", "sglang"];
const KEYS: &str = "tp, dp, copies, zero, init, first, order";
const KEYS_LATER: [&str; 3] = ["pp", "ep", "etp"];

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
    match engine {
        "autotp" => auto_tp(text, rest).map(Topology::AutoTp),
        _ if ENGINES_LATER.contains(&engine) => Err(unsupported(format!("engine {engine:?}"), ENGINES)),
        _ => Err(ParallelError::EngineUnknown {
            engine: engine.to_owned(),
            text: text.to_owned(),
            known: ENGINES.to_owned(),
        }),
    }
}

fn auto_tp(text: &str, rest: Option<&str>) -> Result<AutoTp, ParallelError> {
    let mut keys = Keys { text, given: Vec::new() };
    for part in rest.into_iter().flat_map(|rest| rest.split(',')) {
        keys.add(part)?;
    }
    let mut topology = AutoTp {
        tp: keys.count("tp")?,
        dp: keys.count("dp")?,
        copies: keys.count("copies")?,
        stage: keys.word("zero", STAGES)?.unwrap_or_default(),
        init: keys.word("init", INITS)?,
        first: Rank(keys.number("first", 0)?.unwrap_or(0)),
        order: None,
    };
    topology.check()?;
    if let Some(value) = keys.get("order") {
        topology.order = Some(order(&topology, value)?);
    }
    Ok(topology)
}

/// Invariant 4 of [`AutoTp`].
fn order(topology: &AutoTp, value: &str) -> Result<Vec<Rank>, ParallelError> {
    let numbers = value.split('.').map(|text| whole_number("order", text, 0, u32::MAX));
    let listed = numbers.collect::<Result<Vec<u32>, _>>()?;
    let (found, expected) = (listed.len() as u64, u64::from(topology.world()));
    if found != expected {
        return Err(ParallelError::OrderLength { value: value.to_owned(), found, expected });
    }
    let (first, last) = (topology.first.0, topology.first.0 + topology.world() - 1);
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
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> Keys<'a> {
    fn add(&mut self, part: &'a str) -> Result<(), ParallelError> {
        let (key, value) = part.split_once('=').ok_or_else(|| ParallelError::TopologyPart {
            part: part.to_owned(),
            text: self.text.to_owned(),
            known: KEYS.to_owned(),
        })?;
        if KEYS_LATER.contains(&key) {
            return Err(unsupported(format!("key {key}={value:?} of engine \"autotp\""), KEYS));
        }
        if !KEYS.split(", ").any(|known| known == key) {
            return Err(ParallelError::KeyUnknown {
                engine: "autotp".to_owned(),
                key: key.to_owned(),
                value: value.to_owned(),
                known: KEYS.to_owned(),
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

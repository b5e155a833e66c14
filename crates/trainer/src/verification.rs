//! Comparing, bit for bit, what a rollout engine holds with what it must hold, and naming what differs.
//!
//! ```text
//! expected  up_proj  3f80 4000 4040      from the oracle
//! found     up_proj  3f80 4000 7fc0      in the memory that the engine generates from: 1 differs, at [0, 2]
//! ```

use std::fmt;

use reshard_layout::{DType, Rank};
use reshard_parallel::RankStorage;

use crate::model::Model;
use crate::rollout::shard_bytes;

/// The bytes that a rollout engine must hold, by parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    shards: Vec<Vec<u8>>,
    size: usize,
}

impl Expectation {
    /// An expectation from the bytes of every parameter's shard, elements in row-major order; none on ranks that
    /// hold nothing.
    pub(crate) fn new(dtype: DType, shards: Vec<Vec<u8>>) -> Self {
        Self { shards, size: dtype.size() as usize }
    }

    /// Compares, bit for bit, the memory that a rollout engine generates from: `memory` gives the bytes of one of
    /// its storages.
    #[must_use]
    pub fn compare<'a>(
        &self,
        model: &Model,
        description: &RankStorage,
        memory: impl Fn(usize) -> &'a [u8],
    ) -> Verification {
        let mut verification = Verification::default();
        for (index, expected) in self.shards.iter().enumerate() {
            let parameter = &model.parameters()[index];
            let found = shard_bytes(description, index, &memory);
            let elements = expected.len() / self.size;
            let stored = |at: usize| found.get(at * self.size..(at + 1) * self.size);
            let right = expected.chunks_exact(self.size).enumerate();
            let wrong: Vec<usize> =
                right.filter(|(at, right)| stored(*at) != Some(*right)).map(|(at, _)| at).collect();
            verification.elements += elements as u64;
            verification.mismatches += wrong.len() as u64;
            if let Some(first) = wrong.first() {
                let logical = parameter.logical_index(description.tp_rank as usize, *first);
                verification.differing.push(Mismatch {
                    parameter: parameter.name.clone(),
                    rank: description.rank,
                    elements: wrong.len() as u64,
                    first: coordinate(logical, &parameter.shape),
                });
            }
        }
        verification
    }
}

/// Elements of one parameter that differ on one rank.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Mismatch {
    /// The parameter.
    pub parameter: String,
    /// The rollout rank that holds the wrong elements.
    pub rank: Rank,
    /// How many differ.
    pub elements: u64,
    /// The first of them, as a coordinate of the whole parameter.
    pub first: Vec<u64>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parameter, rank, elements, first } = self;
        write!(f, "{parameter}: {elements} elements differ on rollout rank {rank}, the first at {first:?}")
    }
}

/// The outcome of a bitwise comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Verification {
    /// Elements that were compared.
    pub elements: u64,
    /// Elements that differ.
    pub mismatches: u64,
    /// Where, by parameter and rank.
    pub differing: Vec<Mismatch>,
}

impl Verification {
    /// Adds another rank's outcome.
    pub fn merge(&mut self, other: Self) {
        self.elements += other.elements;
        self.mismatches += other.mismatches;
        self.differing.extend(other.differing);
    }
}

fn coordinate(mut index: usize, shape: &[usize]) -> Vec<u64> {
    let mut at = vec![0; shape.len()];
    for (place, extent) in at.iter_mut().zip(shape).rev() {
        *place = (index % extent) as u64;
        index /= extent;
    }
    at
}

//! Replicas that should be equal, compared: whole parameters over all ranks, shards over the ranks that share them.
//!
//! ```text
//! down_proj.bias   rank 0: 7a31   rank 1: 05c2   rank 2: 7a31   rank 3: 05c2     -> drifted, ranks 1 3
//! up_proj.weight   rank 0: 1111   rank 1: 2222   rank 2: 1111   rank 3: 2222     -> shards of tp 0 and tp 1: fine
//! ```

use reshard_layout::Rank;
use reshard_parallel::engine::State;

use crate::error::TrainerError;
use crate::random::mix;
use crate::trainer::Groups;
use crate::zero::{Stored, ZeroEngine};

/// A parameter whose replicas differ.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Drift {
    /// The parameter.
    pub parameter: String,
    /// The ranks whose replica is not that of the lowest rank that has one.
    pub ranks: Vec<Rank>,
}

/// The parameters whose replicas differ between ranks: weights, and masters with them. A collective call of all
/// ranks of the trainer, each of which gets the same answer.
///
/// A plan reads one of several holders and is right only if all of them hold the same: call this before the first
/// sync of a training job that does not start every rank from the same seed.
///
/// # Errors
/// If a peer fails.
pub fn drifted(engine: &ZeroEngine, groups: &Groups) -> Result<Vec<Drift>, TrainerError> {
    let model = engine.model();
    let count = model.parameters().len();
    let mut digests = Vec::with_capacity(8 * count);
    for parameter in 0..count {
        let weights = engine.gather_shard(Stored::Weights, parameter)?;
        let masters = engine.gather_shard(Stored::State(State::Fp32), parameter)?;
        digests.extend(digest(&weights, digest(&masters, 0)).to_le_bytes());
    }
    let ranks = groups.world.ranks();
    let mut all = vec![0; digests.len() * ranks.len()];
    groups.world.all_gather(&digests, &mut all)?;
    let tp = groups.tp.ranks().len();
    let found = |rank: usize, parameter: usize| &all[(rank * count + parameter) * 8..][..8];
    let mut drifts = Vec::new();
    for (index, parameter) in model.parameters().iter().enumerate() {
        let reference = |rank: usize| if parameter.cut.is_some() { rank % tp } else { 0 };
        let differs = |rank: &usize| found(*rank, index) != found(reference(*rank), index);
        let differing: Vec<Rank> = (0..ranks.len()).filter(differs).map(|rank| ranks[rank]).collect();
        if !differing.is_empty() {
            drifts.push(Drift { parameter: parameter.name.clone(), ranks: differing });
        }
    }
    Ok(drifts)
}

fn digest(bytes: &[u8], start: u64) -> u64 {
    bytes.chunks(8).fold(mix(start ^ bytes.len() as u64), |state, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(state ^ u64::from_le_bytes(word))
    })
}

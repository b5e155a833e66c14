//! What the demo has found.
//!
//! ```text
//! { "model": .., "train": .., "rollout": .., "losses": [5.6, 5.2, ..],
//!   "paths": [ { "name": "affine", "seconds": {..}, "bytes": {..}, "verified": {..}, .. }, .. ] }
//! ```

use reshard_layout::Bytes;
use serde::{Deserialize, Serialize};

use crate::gather::Mismatch;

/// The outcome of a demo. Its JSON keys are stable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DemoReport {
    /// The model.
    pub model: ModelReport,
    /// The trainer's topology.
    pub train: String,
    /// The rollout engines' topology.
    pub rollout: String,
    /// The loss before each step.
    pub losses: Vec<f32>,
    /// Every way that was tried.
    pub paths: Vec<PathReport>,
    /// What the first rollout engine says.
    pub samples: Samples,
    /// What the trainer keeps and needs.
    pub memory: MemoryReport,
}

impl DemoReport {
    /// Whether no element differed, by any way, at any time.
    #[must_use]
    pub fn is_equal(&self) -> bool {
        self.paths.iter().all(|path| path.verified.mismatches == 0)
    }
}

/// The model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReport {
    /// Its name.
    pub name: String,
    /// Elements of all its parameters.
    pub parameters: u64,
}

/// One way of moving weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    /// `affine` or `gather`.
    pub name: String,
    /// How long it took, on the slowest rank.
    pub seconds: PathSeconds,
    /// What one sync moves.
    pub bytes: PathBytes,
    /// The most memory that any rank needed besides weights and targets.
    pub staging_bytes_max: Bytes,
    /// Rounds of communication of one sync: with shared memory none, by gather one a collective.
    pub rounds: u64,
    /// Pieces of both layouts; 0 where there are none.
    pub pieces: Pieces,
    /// The bitwise comparison after every sync.
    pub verified: Verified,
}

/// Durations of one way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathSeconds {
    /// Building both layouts, once.
    pub layouts: f64,
    /// Planning, once.
    pub plan: f64,
    /// The first sync, before any training step.
    pub first: f64,
    /// The syncs after training.
    pub repeats: Vec<f64>,
}

/// Bytes of one sync, over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathBytes {
    /// That stay on their rank.
    pub local: Bytes,
    /// That go from one rank to another.
    pub sent: Bytes,
}

/// Pieces of the two layouts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pieces {
    /// Of the source.
    pub source: u64,
    /// Of the target.
    pub target: u64,
}

/// All comparisons of one way together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    /// Elements that were compared.
    pub elements: u64,
    /// Elements that differed.
    pub mismatches: u64,
    /// Where the first differing comparison found them, by parameter and rank.
    pub differing: Vec<Mismatch>,
}

/// What the first rollout engine says to the same prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// The prompt.
    pub prompt: String,
    /// Greedily, with the weights before training.
    pub before: String,
    /// Greedily, with the weights after it.
    pub after: String,
    /// Drawn at random, with the weights after it.
    pub sampled: String,
}

/// Memory of the trainer, on the rank that needs most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryReport {
    /// Weights and optimizer states that a rank keeps.
    pub kept_bytes: Bytes,
    /// Gradients that outlive a block.
    pub gradient_bytes: Bytes,
    /// The most bytes of working weights that were alive at once while computing: one block's in f32, with what
    /// ZeRO-3 needs to gather them. Backward fills and computes a block again rather than keep its graph.
    pub working_weight_bytes_max: Bytes,
}

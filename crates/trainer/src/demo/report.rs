//! What the demo has found.
//!
//! ```text
//! { "model": .., "train": .., "rollout": .., "losses": [5.6, 5.2, ..],
//!   "paths": [ { "name": "affine", "seconds": {..}, "bytes": {..}, "verified": {..}, .. }, .. ] }
//! ```

use reshard_layout::Bytes;
use serde::{Deserialize, Serialize};

use crate::verification::Mismatch;

/// The outcome of a demo. Its JSON keys are stable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DemoReport {
    /// The model.
    pub model: ModelReport,
    /// The trainer's topology.
    pub train: String,
    /// The rollout engines' topology.
    pub rollout: String,
    /// Steps that the checkpoint had taken from which the trainer went on; 0 without one.
    pub steps_before: u64,
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
    /// `affine`, `gather` or `checkpoint`.
    pub name: String,
    /// How long it took, on the slowest rank.
    pub seconds: PathSeconds,
    /// What one sync moves.
    pub bytes: PathBytes,
    /// The most memory that any rank needed besides weights and targets; files are not memory.
    pub staging_bytes_max: Bytes,
    /// Rounds of communication of one sync: with shared memory none, by gather one a collective, by checkpoint one
    /// each time that all ranks wait for a file of another.
    pub rounds: u64,
    /// Pieces of both layouts; 0 where there are none.
    pub pieces: Pieces,
    /// The bitwise comparison after every sync, with what each element must be: before training its initial value,
    /// after it the optimizer's f32 master, rounded. Every way is compared with that and none with another way; both
    /// are found element by element, by an [`Oracle`](crate::Oracle) that neither plans nor gathers as the ways do.
    pub verified: Verified,
}

/// Durations of one way.
///
/// A sync begins, on all ranks together, with what the way itself needs before the first byte moves (for affine
/// binding and the agreement, for checkpoint writing and converting the files), and ends when the last rank's targets hold every byte. The comparison and the
/// agreement on its outcome come after that and are in no way's seconds.
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
    /// Of the targets, those that their own rank stored as trainer before the sync and that came by no way outside
    /// it: by checkpoint none.
    pub local: Bytes,
    /// That go from one rank to another: by affine those that targets need, by gather all that the collectives
    /// bring, whatever of it is kept. By checkpoint all that is written to files, and the tensors that are read from
    /// them: master weights and moments are saved, saved again as a Universal checkpoint, and the masters read.
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

/// What the first rollout copy says to the same prompt, right after a sync by affine where that is tried, so with
/// weights that came from the trainer's own storage by the plan; else by the last way.
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

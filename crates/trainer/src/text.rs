//! The bytes of a text as training data: which sequences a step takes, and a data-parallel rank's share of them.
//!
//! ```text
//! text    T h e   k e e p e r ...        start chosen by (seed, step, sequence)
//! inputs  <256> T h e   k e e            targets are the inputs one token later
//! targets T     h e   k e e p
//! step of 8 sequences over dp 3: 0 1 2 | 3 4 5 | 6 7
//! ```

use std::path::Path;
use std::sync::Arc;

use reshard_layout::Bytes;

use crate::error::TrainerError;
use crate::model::BEGIN_OF_TEXT;
use crate::random::Stream;

/// The text that the demo trains on unless it is given another.
pub const DEFAULT_TEXT: &str = include_str!("../data/lighthouse.txt");

/// Tokens of a training sequence.
pub(crate) const SEQUENCE_TOKENS: usize = 32;
/// Sequences of a training step, unless more ranks want one each.
const SEQUENCES: usize = 8;

/// A rank's share of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) inputs: Vec<u32>,
    pub(crate) targets: Vec<u32>,
    pub(crate) sequences: usize,
    /// Tokens of all ranks' shares.
    pub(crate) tokens_global: usize,
}

/// Training sequences of a text, the same for the same seed whoever asks.
#[derive(Clone, Debug)]
pub(crate) struct Batches {
    text: Arc<[u8]>,
    seed: u64,
    sequences: usize,
}

impl Batches {
    /// Batches for `dp` data-parallel ranks, each of which gets at least one sequence a step.
    pub(crate) fn new(text: &[u8], seed: u64, dp: usize) -> Result<Self, TrainerError> {
        check_text(text, None)?;
        Ok(Self { text: text.into(), seed, sequences: SEQUENCES.max(dp) })
    }

    /// Sequences of one step.
    pub(crate) fn sequences(&self) -> usize {
        self.sequences
    }

    /// The share of one data-parallel rank of `dp` in a step.
    pub(crate) fn share(&self, step: u64, dp_rank: usize, dp: usize) -> Share {
        let starts = Stream::new(self.seed, "batch");
        let choices = (self.text.len() - SEQUENCE_TOKENS + 1) as u64;
        let own = self.sequences * dp_rank / dp..self.sequences * (dp_rank + 1) / dp;
        let (mut inputs, mut targets) = (Vec::new(), Vec::new());
        for sequence in own.clone() {
            let index = step * self.sequences as u64 + sequence as u64;
            let start = (starts.bits(index) % choices) as usize;
            let bytes = self.text[start..start + SEQUENCE_TOKENS].iter().map(|byte| u32::from(*byte));
            targets.extend(bytes);
            inputs.push(BEGIN_OF_TEXT);
            inputs.extend_from_slice(&targets[targets.len() - SEQUENCE_TOKENS..targets.len() - 1]);
        }
        let tokens_global = self.sequences * SEQUENCE_TOKENS;
        Share { inputs, targets, sequences: own.len(), tokens_global }
    }
}

/// Whether a text, perhaps from a file, has at least two different sequences.
pub(crate) fn check_text(text: &[u8], path: Option<&Path>) -> Result<(), TrainerError> {
    let (found, minimum) = (Bytes(text.len() as u64), Bytes(SEQUENCE_TOKENS as u64 + 2));
    if found < minimum {
        return Err(TrainerError::TextTooShort { path: path.map(Path::to_owned), found, minimum });
    }
    Ok(())
}

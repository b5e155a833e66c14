//! What can go wrong in the trainer, with the facts.

use reshard_layout::{Bytes, DType};
use reshard_parallel::ParallelError;
use reshard_transport::TransportError;
use thiserror::Error;

/// Why a trainer or a rollout engine cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrainerError {
    /// No layout can be derived from the model and the topology.
    #[error(transparent)]
    Parallel(#[from] ParallelError),
    /// Another rank failed, or bytes could not be moved.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// A tensor operation failed: a bug in this crate, or no memory.
    #[error("tensor operation failed: {0}")]
    Tensor(#[from] candle_core::Error),
    /// A block was computed without one of its weights.
    #[error("block is computed without {weight}")]
    MissingWeight {
        /// The weight's role.
        weight: String,
    },
    /// A backward pass gave a parameter no gradient.
    #[error("parameter {parameter:?} got no gradient")]
    MissingGradient {
        /// The parameter.
        parameter: String,
    },
    /// The vocabulary is too small for bytes and the mark that begins a text.
    #[error("vocabulary {vocabulary} is smaller than {minimum}: 256 bytes and the begin of text")]
    VocabularyTooSmall {
        /// Rows of the embedding.
        vocabulary: u64,
        /// The fewest that are needed.
        minimum: u64,
    },
    /// The text is too short to train on.
    #[error("text has {found} bytes, at least {minimum} are needed")]
    TextTooShort {
        /// Its length.
        found: Bytes,
        /// The least length.
        minimum: Bytes,
    },
    /// Weights can be stored as f32 or bf16.
    #[error("weights cannot be stored as {dtype}: f32 and bf16 are known")]
    DTypeUnsupported {
        /// What was asked for.
        dtype: DType,
    },
    /// Logits are not numbers: some weight was never written.
    #[error("the logits after {position} tokens are not numbers: some weight was never written")]
    NotANumber {
        /// Tokens of the text that was continued.
        position: usize,
    },
}

//! What can go wrong in the trainer, with the facts.

use std::path::PathBuf;

use reshard_formats::FormatError;
use reshard_layout::{Bytes, DType, LayoutError};
use reshard_parallel::ParallelError;
use reshard_plan::PlanError;
use reshard_transport::{FillError, TransportError};
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
    /// A key of the model's configuration holds a value with which nothing can be computed.
    #[error("{key:?} in the model configuration is {value}, not {expected}")]
    ModelInvalid {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        expected: &'static str,
    },
    /// A key of the model's configuration asks for a computation that this crate does not have.
    #[error("{key:?} in the model configuration is {value}, which is not supported; supported: {supported}")]
    ModelUnsupported {
        /// The key.
        key: &'static str,
        /// Its value, as JSON.
        value: String,
        /// What is computed.
        supported: &'static str,
    },
    /// A model cannot be used.
    #[error("{model}: {cause}")]
    InModel {
        /// Its name or file.
        model: String,
        /// Why.
        cause: Box<TrainerError>,
    },
    /// The text is too short to train on.
    #[error("text{} has {found} bytes, at least {minimum} are needed", of_file(path))]
    TextTooShort {
        /// Its file, where it is from one.
        path: Option<PathBuf>,
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
    /// Two descriptions of storages contradict each other.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The trainer's layout and the rollout's make no plan.
    #[error(transparent)]
    Plan(Box<PlanError>),
    /// A checkpoint cannot be read, converted or written.
    #[error(transparent)]
    Format(Box<FormatError>),
    /// What a checkpoint holds could not be put in place.
    #[error(transparent)]
    Fill(Box<FillError>),
    /// A checkpoint lacks what training goes on from.
    #[error("{}: {missing} is not in this checkpoint", path.display())]
    CheckpointIncomplete {
        /// The checkpoint.
        path: PathBuf,
        /// What is not there.
        missing: String,
    },
    /// A checkpoint from which this trainer cannot go on.
    #[error("cannot go on from {}: {cause}", path.display())]
    Resume {
        /// The checkpoint.
        path: PathBuf,
        /// Why not.
        cause: Box<TrainerError>,
    },
    /// The way through files was asked for, and no folder given.
    #[error("the way checkpoint needs a folder that all ranks see, and there is none")]
    ScratchMissing,
    /// Values that ranks or processes tell each other could not be read.
    #[error("message between ranks could not be read: {0}")]
    Message(#[from] serde_json::Error),
    /// A file could not be read, or a pipe failed.
    #[error("could not {operation}: {cause}")]
    Io {
        /// What was tried.
        operation: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// More rollout ranks than trainer ranks to live on.
    #[error("rollout tp={tp} x copies={copies} needs {needed} ranks, the trainer has {found}")]
    RolloutTooLarge {
        /// Tensor-parallel ranks of a copy.
        tp: u32,
        /// Copies.
        copies: u32,
        /// Their product.
        needed: u32,
        /// Ranks of the trainer.
        found: u32,
    },
    /// A model too large for the memory of one machine, once in every process.
    #[error(
        "model {model} has {parameters} elements, in each of {processes} processes: the demo takes at most {maximum} \
         in all"
    )]
    ModelTooLarge {
        /// The model.
        model: String,
        /// Its elements.
        parameters: u64,
        /// Processes that would each hold some of it.
        processes: u32,
        /// The most elements of all processes together.
        maximum: u64,
    },
    /// More processes than the demo starts on one machine.
    #[error("the demo would start {needed} processes; at most {maximum}")]
    WorldTooLarge {
        /// Processes that were asked for.
        needed: u32,
        /// The limit.
        maximum: u32,
    },
    /// The demo numbers its own processes.
    #[error("topology {topology:?} names its own ranks; the demo numbers its processes from 0 in order")]
    RanksRenamed {
        /// The topology.
        topology: String,
    },
    /// A rollout engine keeps whole tensor-parallel shards.
    #[error(
        "rollout topology {topology:?} has {key}={value}, which a rollout engine has not; use tp and copies"
    )]
    RolloutPartitioned {
        /// The topology.
        topology: String,
        /// The key that only a trainer takes.
        key: &'static str,
        /// Its value.
        value: u32,
    },
    /// Replicas differ, so that a sync would depend on which of them is read.
    #[error(
        "replicas of {parameter:?} differ: ranks {ranks:?} hold other values than the lowest holder{}",
        also(others)
    )]
    Drifted {
        /// The first parameter with differing replicas.
        parameter: String,
        /// The ranks that differ from the lowest-numbered holder.
        ranks: Vec<u32>,
        /// The other parameters that have drifted.
        others: Vec<String>,
    },
    /// Logits are not numbers: some weight was never written.
    #[error("the logits after {position} tokens are not numbers: some weight was never written")]
    NotANumber {
        /// Tokens of the text that was continued.
        position: usize,
    },
}

impl From<PlanError> for TrainerError {
    fn from(error: PlanError) -> Self {
        Self::Plan(Box::new(error))
    }
}

impl From<FormatError> for TrainerError {
    fn from(error: FormatError) -> Self {
        Self::Format(Box::new(error))
    }
}

impl From<FillError> for TrainerError {
    fn from(error: FillError) -> Self {
        Self::Fill(Box::new(error))
    }
}

fn of_file(path: &Option<PathBuf>) -> String {
    path.as_ref().map_or_else(String::new, |path| format!(" {}", path.display()))
}

/// Names a few; the rest are counted.
fn also(others: &[String]) -> String {
    const NAMED: usize = 4;
    match others.len() {
        0 => String::new(),
        count if count <= NAMED => format!("; so do those of {}", others.join(", ")),
        count => format!("; so do those of {} and {} more", others[..NAMED].join(", "), count - NAMED),
    }
}

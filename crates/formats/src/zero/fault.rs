//! What can be wrong with a ZeRO checkpoint. The file is named by [`FormatError::Zero`], the key in it here.

use std::path::Path;

use reshard_layout::Kind;

use crate::error::FormatError;

/// What is wrong with a ZeRO checkpoint, or beyond this library.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ZeroFault {
    /// A folder without model states.
    #[error(
        "no model states here: neither mp_rank_XX_model_states.pt nor zero_pp_rank_X_mp_rank_XX_model_states.pt"
    )]
    NoModelFile,
    /// Two files for one rank.
    #[error("{first} and {second} stand for one rank")]
    TwoFiles {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// Files of two runs.
    #[error("{first} and {second} are of different ZeRO stages: files of two runs in one folder")]
    TwoStages {
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// Pipeline parallelism.
    #[error("{name} is a file of a pipeline's layer; pipeline parallel checkpoints are not read")]
    PipelineFile {
        /// The file.
        name: String,
    },
    /// Pipeline parallelism, as the model states say.
    #[error("pp_degree is {degree}; pipeline parallel checkpoints are not read")]
    Pipeline {
        /// Its degree.
        degree: u64,
    },
    /// Expert parallelism.
    #[error("{name} is a file of an expert; expert parallel checkpoints are not read")]
    ExpertFile {
        /// The file.
        name: String,
    },
    /// Expert parallelism, as a file says.
    #[error("{key} is there; expert parallel checkpoints are not read")]
    Experts {
        /// The key that says so.
        key: String,
    },
    /// `latest` names no folder below.
    #[error("{tag:?} is no name of a folder below this one")]
    BadTag {
        /// Its text.
        tag: String,
    },
    /// `latest` is no list of one name.
    #[error("{found} bytes are more than the name of a folder, at most {limit}")]
    LatestTooLong {
        /// Its length.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// Another number of files than ranks.
    #[error(
        "expected {expected} {kind} files, for {tensor_ranks} tensor-parallel and {data_ranks} data-parallel ranks, \
         found {found}: {odd}"
    )]
    FileCount {
        /// Model or optimizer.
        kind: &'static str,
        /// How many there should be.
        expected: u64,
        /// How many there are.
        found: u64,
        /// Tensor-parallel ranks.
        tensor_ranks: u64,
        /// Data-parallel ranks that have a file of their own.
        data_ranks: u64,
        /// The first file that is missing or too much.
        odd: String,
    },
    /// A key that is not there.
    #[error("no {key}")]
    Missing {
        /// The key, with those above it.
        key: String,
    },
    /// A value of another type.
    #[error("{key} is no {expected}")]
    WrongType {
        /// The key, with those above it.
        key: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A number that is over a limit.
    #[error("{key} is {found}, the limit is {limit}")]
    TooLarge {
        /// The key, with those above it.
        key: String,
        /// The number.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// Two numbers that should be equal.
    #[error("{key} is {found}, expected {expected} ({because})")]
    Disagrees {
        /// The key, with those above it.
        key: String,
        /// What it should be.
        expected: u64,
        /// What it is.
        found: u64,
        /// Why.
        because: &'static str,
    },
    /// The record of where fragments lie is not where they lie.
    #[error(
        "param_slice_mappings of group {group} says that {parameter} is {}, by param_shapes it is {}",
        place(.recorded), place(.computed)
    )]
    Mapping {
        /// The group.
        group: usize,
        /// The parameter.
        parameter: String,
        /// What the file says.
        recorded: Option<(u64, u64)>,
        /// What follows from the order of the parameters.
        computed: Option<(u64, u64)>,
    },
    /// No partition count fits the sub-group.
    #[error(
        "{what} has {length} elements a rank, which slices over neither {data_ranks} (data parallel) nor {world} \
         (all) ranks give"
    )]
    NoPartitionCount {
        /// The sub-group or parameter.
        what: String,
        /// Its length in the file.
        length: u64,
        /// Data-parallel ranks.
        data_ranks: u64,
        /// All ranks.
        world: u64,
    },
    /// Two partition counts fit, and they mean different things.
    #[error(
        "{what} fits a partition over {data_ranks} (data parallel) and over {world} (all) ranks; \
         it is too small to tell which it is"
    )]
    TwoPartitionCounts {
        /// The sub-group or parameter.
        what: String,
        /// Data-parallel ranks.
        data_ranks: u64,
        /// All ranks.
        world: u64,
    },
    /// States that lie elsewhere.
    #[error("sub-group {group} is empty here: its states were swapped out to another device")]
    Swapped {
        /// The sub-group.
        group: usize,
    },
    /// Nothing says how tensor-parallel shards join.
    #[error(
        "no universal_checkpoint_info, which says how the shards of {tensor_ranks} tensor-parallel ranks join; \
         training under AutoTP writes it, other trainers hand it to save_checkpoint(client_state=...)"
    )]
    NoUniversalInfo {
        /// Tensor-parallel ranks.
        tensor_ranks: u64,
    },
    /// A newer form of that information.
    #[error("{key} is {found}, newer than {known}: it may mean what is not known here")]
    Newer {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// The newest that is known.
        known: String,
    },
    /// The trainer itself says that a parameter's shards cannot be joined.
    #[error("{parameter}: its shards cannot be joined, as the trainer noted: {reason}")]
    CannotJoin {
        /// The parameter.
        parameter: String,
        /// The trainer's words.
        reason: String,
    },
    /// Shards that do not fit together.
    #[error("{parameter}: tensor-parallel rank {rank} has a shard of shape {found:?}, {expected}")]
    Shard {
        /// The parameter.
        parameter: String,
        /// The rank.
        rank: usize,
        /// Its shape.
        found: Vec<u64>,
        /// What it should be.
        expected: String,
    },
    /// A rank without a parameter that others have.
    #[error("{parameter}: tensor-parallel rank {rank} does not have it")]
    NotEverywhere {
        /// The parameter.
        parameter: String,
        /// The rank.
        rank: usize,
    },
    /// A state of a parameter that is kept multiplied by a number.
    #[error("{parameter}: its shards are scaled; how {state} scales with them depends on the optimizer")]
    ScaledState {
        /// The parameter.
        parameter: String,
        /// The state.
        state: String,
    },
    /// Files that were written at different steps.
    #[error("{key} is {found}, in {first} it is {expected}: files of different steps")]
    Steps {
        /// Which count.
        key: String,
        /// The file that was read first.
        first: String,
        /// The count there.
        expected: String,
        /// The count here.
        found: String,
    },
    /// What all data-parallel ranks should say alike.
    #[error("{key} is another than in {first}")]
    NotShared {
        /// The key.
        key: String,
        /// The file that was read first.
        first: String,
    },
    /// Sub-parameters that were not cut evenly, in a form that does not record widths.
    #[error(
        "{parameter}: a part of {extent} rows does not divide by {tensor_ranks}, and no widths are recorded"
    )]
    UnevenParts {
        /// The parameter.
        parameter: String,
        /// Its extent.
        extent: u64,
        /// Tensor-parallel ranks.
        tensor_ranks: u64,
    },
    /// A pattern that is no regular expression, or one that is not understood here.
    #[error("{key}: the pattern {pattern:?} is not understood: {cause}")]
    Pattern {
        /// The key.
        key: String,
        /// The pattern.
        pattern: String,
        /// Why not.
        cause: String,
    },
    /// A name that two patterns of one list match.
    #[error("{key}: {parameter} matches both {first:?} and {second:?}")]
    TwoPatterns {
        /// The key.
        key: String,
        /// The parameter.
        parameter: String,
        /// One pattern.
        first: String,
        /// The other.
        second: String,
    },
}

impl ZeroFault {
    /// Whether it contradicts itself, is beyond this library, or over a limit.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::PipelineFile { .. }
            | Self::Pipeline { .. }
            | Self::ExpertFile { .. }
            | Self::Experts { .. }
            | Self::Swapped { .. }
            | Self::TwoPartitionCounts { .. }
            | Self::Newer { .. }
            | Self::CannotJoin { .. }
            | Self::UnevenParts { .. }
            | Self::ScaledState { .. }
            | Self::Pattern { .. } => Kind::Unsupported,
            Self::TooLarge { .. } | Self::LatestTooLong { .. } => Kind::OverBudget,
            _ => Kind::Invalid,
        }
    }

    pub(super) fn at(self, path: &Path) -> FormatError {
        FormatError::Zero { path: path.to_owned(), fault: self }
    }
}

/// Where a fragment lies.
fn place(fragment: &Option<(u64, u64)>) -> String {
    fragment.map_or("nowhere".to_owned(), |(start, length)| format!("at {start}, {length} elements long"))
}

//! What can be wrong with a model configuration or a topology, with the facts.
//!
//! ```text
//! Usage        what was typed is wrong      exit code 2
//! Invalid      a file contradicts itself    exit code 3
//! Unsupported  true, but not expressible    exit code 4
//! ```

use thiserror::Error;

/// How a caller should treat a [`ParallelError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Category {
    /// What the user typed is wrong.
    Usage,
    /// A configuration contradicts itself.
    Invalid,
    /// Legal, but this crate cannot express it.
    Unsupported,
}

/// Why no layout can be derived.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// The model configuration is not a JSON object.
    #[error("the model configuration is not a JSON object: {reason}")]
    ConfigSyntax {
        /// What the JSON reader met.
        reason: String,
    },
    /// A key that the layout depends on is missing.
    #[error("the model configuration has no {key:?}")]
    ConfigKeyMissing {
        /// The missing key.
        key: &'static str,
    },
    /// A key holds a value of another type.
    #[error("{key:?} in the model configuration is {found}, not {expected}")]
    ConfigKeyType {
        /// The key.
        key: &'static str,
        /// What it should hold.
        expected: &'static str,
        /// What it holds, as JSON.
        found: String,
    },
    /// A number of the configuration is out of range.
    #[error("{key:?} in the model configuration is {value}, outside {minimum} to {maximum}")]
    ConfigNumber {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The smallest legal value.
        minimum: u64,
        /// The largest legal value.
        maximum: u64,
    },
    /// A number of the configuration is not a multiple of another one that it must be a multiple of.
    #[error("{key:?} in the model configuration is {value}, not a multiple of {divisor_key:?} = {divisor}")]
    ConfigMultiple {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The key that must divide it.
        divisor_key: &'static str,
        /// The value of that key.
        divisor: u64,
    },
    /// The model has more elements than 64 bits count.
    #[error("parameter {parameter:?} takes the model past {maximum} elements")]
    ModelTooLarge {
        /// The parameter at which the limit is passed.
        parameter: String,
        /// The limit.
        maximum: u64,
    },
    /// A model family whose parameters this crate does not know.
    #[error("model type {model_type:?} is not supported; known: {known}")]
    ModelUnsupported {
        /// `model_type` of the configuration.
        model_type: String,
        /// The families that are known.
        known: String,
    },
    /// A key of a known family asks for a layout that this crate does not know.
    #[error("{key:?} in the model configuration is not supported: {value}")]
    ConfigUnsupported {
        /// The key.
        key: &'static str,
        /// Its value, as JSON.
        value: String,
    },

    /// The text has no known engine before its colon.
    #[error("unknown engine {engine:?} in topology {text:?}; known: {known}")]
    EngineUnknown {
        /// What stands where the engine should.
        engine: String,
        /// The whole text.
        text: String,
        /// The engines that are known.
        known: String,
    },
    /// A part between commas is not `key=value`.
    #[error("{part:?} in topology {text:?} is not key=value; known keys: {known}")]
    TopologyPart {
        /// The part.
        part: String,
        /// The whole text.
        text: String,
        /// The keys that are known.
        known: String,
    },
    /// A key that the engine does not have.
    #[error("unknown key {key:?} (value {value:?}) for engine {engine:?}; known: {known}")]
    KeyUnknown {
        /// The engine.
        engine: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The keys that are known.
        known: String,
    },
    /// A key is given twice.
    #[error("key {key:?} is given twice: {first:?} and {second:?}")]
    KeyRepeated {
        /// The key.
        key: String,
        /// Its first value.
        first: String,
        /// Its second value.
        second: String,
    },
    /// A value is not a whole number in range.
    #[error("{key}={value:?} is not a whole number from {minimum} to {maximum}")]
    TopologyNumber {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The smallest legal value.
        minimum: u64,
        /// The largest legal value.
        maximum: u64,
    },
    /// A value is none of the known words.
    #[error("{key}={value:?} is not known; known: {known}")]
    TopologyWord {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The words that are known.
        known: String,
    },
    /// Two keys exclude each other.
    #[error("{key}={value} contradicts {other}: {reason}")]
    TopologyContradiction {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The other key and its value, or that it is absent.
        other: String,
        /// Why they exclude each other.
        reason: &'static str,
    },
    /// More ranks than a topology may have.
    #[error("{axes} make {world} ranks; at most {maximum}")]
    WorldTooLarge {
        /// The axes, as `tp=4, dp=2`.
        axes: String,
        /// Their product.
        world: u128,
        /// The limit.
        maximum: u64,
    },
    /// `order` does not list one rank a slot.
    #[error("order={value} lists {found} ranks; the topology has {expected}")]
    OrderLength {
        /// The value of `order`.
        value: String,
        /// Ranks listed.
        found: u64,
        /// Ranks of the topology.
        expected: u64,
    },
    /// `order` is not a permutation of the ranks of the topology.
    #[error("order={value} must list each of the ranks {first} to {last} once; {rank} is {problem}")]
    OrderRank {
        /// The value of `order`.
        value: String,
        /// The first rank of the topology.
        first: u32,
        /// The last rank of the topology.
        last: u32,
        /// The rank at fault.
        rank: u32,
        /// "listed twice" or "not one of them".
        problem: &'static str,
    },
    /// An engine or a key that the grammar knows but that no layout can be derived for.
    #[error("{what} is not supported; supported: {supported}")]
    TopologyUnsupported {
        /// The engine or the key.
        what: String,
        /// What is supported in its place.
        supported: String,
    },

    /// Vocabulary-parallel layers refuse a rank without rows.
    #[error(
        "{parameter:?} has {rows} rows for tp={tp}: rank {tp_rank} would hold none of a vocabulary-parallel layer"
    )]
    VocabularyTooSmall {
        /// The parameter.
        parameter: String,
        /// Its rows.
        rows: u64,
        /// Tensor-parallel ranks.
        tp: u32,
        /// The first rank without a row.
        tp_rank: u32,
    },
    /// An engine cannot cut what the model has so many of.
    #[error("{engine} cannot cut {what} = {value} over tp={tp}: {reason}")]
    EngineCut {
        /// The engine.
        engine: &'static str,
        /// What is cut: a key of the configuration, or what follows from it.
        what: &'static str,
        /// How many there are.
        value: u64,
        /// Tensor-parallel ranks.
        tp: u32,
        /// What the engine asks for.
        reason: String,
    },
    /// An engine has no tensor that would hold a parameter.
    #[error("{engine} has no tensor for {parameter:?}: {reason}")]
    EngineTensorMissing {
        /// The engine.
        engine: &'static str,
        /// The parameter.
        parameter: String,
        /// What the engine does instead.
        reason: &'static str,
    },
    /// Pipeline stages do not hold the layers of the model.
    #[error("{engine} cannot place {layers} layers on stages {stages}: {reason}")]
    EngineStages {
        /// The engine.
        engine: &'static str,
        /// Decoder blocks of the model.
        layers: u32,
        /// The stages, as the topology gives them.
        stages: String,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// An option is zero that counts something.
    #[error("option {option} must be at least 1")]
    OptionZero {
        /// The option.
        option: &'static str,
    },
}

impl ParallelError {
    /// How to treat it.
    #[must_use]
    pub fn category(&self) -> Category {
        match self {
            Self::ConfigSyntax { .. }
            | Self::ConfigKeyMissing { .. }
            | Self::ConfigKeyType { .. }
            | Self::ConfigNumber { .. }
            | Self::ConfigMultiple { .. }
            | Self::ModelTooLarge { .. } => Category::Invalid,
            Self::ModelUnsupported { .. }
            | Self::ConfigUnsupported { .. }
            | Self::TopologyUnsupported { .. }
            | Self::VocabularyTooSmall { .. }
            | Self::EngineCut { .. }
            | Self::EngineTensorMissing { .. }
            | Self::EngineStages { .. } => Category::Unsupported,
            Self::EngineUnknown { .. }
            | Self::TopologyPart { .. }
            | Self::KeyUnknown { .. }
            | Self::KeyRepeated { .. }
            | Self::TopologyNumber { .. }
            | Self::TopologyWord { .. }
            | Self::TopologyContradiction { .. }
            | Self::WorldTooLarge { .. }
            | Self::OrderLength { .. }
            | Self::OrderRank { .. }
            | Self::OptionZero { .. } => Category::Usage,
        }
    }
}

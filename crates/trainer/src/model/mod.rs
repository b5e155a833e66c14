//! The model as the trainer computes it: parameters with their cuts, and blocks between all-reduces.
//!
//! ```text
//! Embedding | Attention 0 | Mlp 0 | Attention 1 | Mlp 1 | ... | Head
//!           ^ each block takes the hidden states, whole on every rank, and gives them back whole
//! ```

mod blocks;
mod built_in;
mod computable;
mod cut;

pub use blocks::{Block, BlockKind};
pub use built_in::{BuiltIn, TINY, UNEVEN};
pub(crate) use computable::check_functions;
pub use cut::{AxisCut, ShardedParameter};

use std::num::NonZeroU32;

use reshard_parallel::model::ModelConfig;

use crate::error::TrainerError;

/// The token that begins every text; bytes are tokens 0 to 255.
pub const BEGIN_OF_TEXT: u32 = 256;

/// The numbers that the computation needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dimensions {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of one attention head.
    pub head_dim: usize,
    /// Rows of the embedding and of the head.
    pub vocabulary: usize,
    /// Epsilon of the normalisations.
    pub epsilon: f32,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
}

/// A model cut over a tensor-parallel group.
///
/// Invariants, in the order of their checks: (1) the vocabulary holds every byte and
/// [`BEGIN_OF_TEXT`]; (2) heads are of even width; (3) the epsilon and (4) the base of the rotary embedding are
/// positive and finite; (5) the cuts exist for this size of the group.
#[derive(Clone, Debug)]
pub struct Model {
    config: ModelConfig,
    tp: NonZeroU32,
    dimensions: Dimensions,
    parameters: Vec<ShardedParameter>,
    blocks: Vec<Block>,
}

impl Model {
    /// Cuts a model over `tp` ranks by the AutoTP rules.
    ///
    /// # Errors
    /// [`TrainerError::VocabularyTooSmall`], [`TrainerError::ModelInvalid`], or where no such cut exists.
    pub fn new(config: &ModelConfig, tp: NonZeroU32) -> Result<Self, TrainerError> {
        computable::check_numbers(config)?;
        let parameters = cut::sharded_parameters(config, tp)?;
        let blocks = blocks::blocks(config, &parameters);
        let dimensions = Dimensions {
            hidden: config.hidden_size() as usize,
            head_dim: config.head_dim() as usize,
            vocabulary: config.vocab_size() as usize,
            epsilon: config.rms_norm_eps() as f32,
            rope_theta: config.rope_theta(),
        };
        Ok(Self { config: config.clone(), tp, dimensions, parameters, blocks })
    }

    /// The configuration that it was made from.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Size of the tensor-parallel group.
    #[must_use]
    pub fn tp(&self) -> NonZeroU32 {
        self.tp
    }

    /// The numbers that the computation needs.
    #[must_use]
    pub fn dimensions(&self) -> &Dimensions {
        &self.dimensions
    }

    /// All parameters, in the order of the model's modules.
    #[must_use]
    pub fn parameters(&self) -> &[ShardedParameter] {
        &self.parameters
    }

    /// All blocks, in the order of the forward pass.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Elements of all parameters together.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.parameters.iter().map(|parameter| parameter.elements() as u64).sum()
    }
}

//! Tensor parallelism: which box of a parameter each rank of the group computes with (DeepSpeed AutoTP).
//!
//! ```text
//! q k v gate up, lm_head   column   axis 0 (bias too)     4 kv heads, tp 3: 2|1|1 heads of q, k, v and o
//! o down                   row      axis 1 (bias whole)   144 MLP rows, tp 3: 48|48|48
//! norms, untied embedding  whole                          257 head rows, tp 2: 129|128
//! tied embedding = head    column   axis 0
//! ```
//!
//! Sources: DeepSpeed 0.19.8 `module_inject/tp_shard.py` (widths), `module_inject/layers.py` (axes and biases).

use std::num::{NonZeroU32, NonZeroU64};

use reshard_layout::{Region, Shard};

use crate::error::ParallelError;
use crate::model::{ModelConfig, ModelParameter, Projection, Role};

/// Layers whose width is never cut by heads.
const NEVER_BY_HEADS: [&str; 6] = ["gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"];
/// Names, exact, of layers whose width is never cut by heads.
const LAST_LINEAR: [&str; 2] = ["lm_head", "embed_out"];

/// The width of each rank's shard of an axis of `total`, as DeepSpeed 0.19.8 `get_shard_size_list` gives it.
///
/// `name` is the module's: an axis of attention is cut in whole key-value heads, an MLP or a head in
/// multiples of `grain`. Widths may be zero; they sum to `total`.
#[must_use]
pub fn shard_widths(
    total: u64,
    tp: NonZeroU32,
    kv_heads: Option<NonZeroU64>,
    grain: NonZeroU64,
    name: &str,
) -> Vec<u64> {
    let (ranks, last) = (u64::from(tp.get()), u64::from(tp.get()) - 1);
    let even = |count: u64, rank: u64| count / ranks + u64::from(rank < count % ranks);
    let by_heads = kv_heads.map(NonZeroU64::get).filter(|heads| {
        total.is_multiple_of(*heads)
            && !name.contains("mlp")
            && !LAST_LINEAR.contains(&name)
            && !NEVER_BY_HEADS.iter().any(|part| name.contains(part))
    });
    let width = |rank: u64| match by_heads {
        Some(heads) => total / heads * even(heads, rank),
        None if total >= grain.get() => {
            let tail = if rank == last { total % grain } else { 0 };
            even(total / grain, rank) * grain.get() + tail
        }
        None => even(total, rank),
    };
    (0..ranks).map(width).collect()
}

/// How a parameter lies over a tensor-parallel group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cut {
    /// Every rank has all of it.
    Whole,
    /// Rank `t` has the next `widths[t]` coordinates of an axis.
    Axis {
        /// The axis.
        axis: usize,
        /// One width a rank; zero is legal. They sum to the parameter's extent.
        widths: Vec<u64>,
    },
}

impl Cut {
    /// Where the shard of a rank begins in a parameter with this many axes.
    ///
    /// # Panics
    /// If the cut has no such rank.
    #[must_use]
    pub fn origin(&self, axes: usize, tp_rank: u32) -> Vec<u64> {
        let mut origin = vec![0; axes];
        if let Self::Axis { axis, widths } = self {
            origin[*axis] = widths[..tp_rank as usize].iter().sum();
        }
        origin
    }

    /// The shape of the shard of a rank.
    ///
    /// # Panics
    /// If the cut has no such rank.
    #[must_use]
    pub fn shard_shape(&self, shape: &[u64], tp_rank: u32) -> Vec<u64> {
        let mut shard = shape.to_vec();
        if let Self::Axis { axis, widths } = self {
            shard[*axis] = widths[tp_rank as usize];
        }
        shard
    }

    /// The shard of a rank, as a box of a parameter of shape `shape`.
    ///
    /// # Panics
    /// If the cut has no such rank.
    #[must_use]
    pub fn shard(&self, shape: &[u64], tp_rank: u32) -> Shard {
        Shard::of_box(shape, Region::new(self.origin(shape.len(), tp_rank), self.shard_shape(shape, tp_rank)))
    }
}

/// Whether AutoTP replaces the module that owns a parameter. The bias of a row-parallel layer is whole on every
/// rank and yet belongs to a replaced module.
#[must_use]
pub fn replaced(config: &ModelConfig, parameter: &ModelParameter, tp: NonZeroU32) -> bool {
    let replaceable = match parameter.role {
        Role::Weight(_) | Role::Bias(_) | Role::Head => true,
        Role::Embedding => config.tie_word_embeddings(),
        Role::Norm(_) => false,
    };
    replaceable && tp.get() > 1
}

/// How AutoTP cuts a parameter of a model over `tp` ranks.
///
/// # Errors
/// Unsupported, where a tied embedding leaves a rank without a row: DeepSpeed's vocabulary-parallel layers
/// refuse it.
pub fn cut(config: &ModelConfig, parameter: &ModelParameter, tp: NonZeroU32) -> Result<Cut, ParallelError> {
    cut_in_grains(config, parameter, tp, NonZeroU64::MIN)
}

/// As [`cut`], with widths outside attention in multiples of `grain` (DeepSpeed's `tp_grain_size`).
///
/// # Errors
/// As [`cut`].
pub fn cut_in_grains(
    config: &ModelConfig,
    parameter: &ModelParameter,
    tp: NonZeroU32,
    grain: NonZeroU64,
) -> Result<Cut, ParallelError> {
    if !replaced(config, parameter, tp) {
        return Ok(Cut::Whole);
    }
    let axis = match parameter.role {
        Role::Bias(Projection::Output | Projection::Down) => return Ok(Cut::Whole),
        Role::Weight(Projection::Output | Projection::Down) => 1,
        _ => 0,
    };
    let rows = parameter.shape[axis];
    // A tied embedding is cut as the head that it is.
    let module = match parameter.role {
        Role::Embedding | Role::Head => "lm_head",
        _ => module_of(&parameter.name),
    };
    let widths = shard_widths(rows, tp, NonZeroU64::new(config.num_key_value_heads()), grain, module);
    if parameter.role == Role::Embedding && widths.contains(&0) {
        let without = (0..).zip(&widths).find(|(_, width)| **width == 0).map_or(0, |(rank, _)| rank);
        return Err(ParallelError::VocabularyTooSmall {
            parameter: parameter.name.clone(),
            rows,
            tp: tp.get(),
            tp_rank: without,
        });
    }
    Ok(Cut::Axis { axis, widths })
}

/// `model.layers.0.mlp.up_proj.weight` -> `model.layers.0.mlp.up_proj`.
fn module_of(parameter: &str) -> &str {
    parameter.rsplit_once('.').map_or(parameter, |(module, _)| module)
}

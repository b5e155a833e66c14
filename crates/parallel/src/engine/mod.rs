//! Engines: a model and a topology together, as what every rank stores.
//!
//! ```text
//! ModelConfig + topology + options ─► DeepSpeed   ─► RankStorage of each slot   ─► Layout of all
//!                                  └► DenseEngine ─► EngineTensors of each slot ─► Layout of all
//!                                     vllm, sglang, megatron, hf: a scheme each
//! ```

mod deepspeed;
mod dense;
mod fused;
mod hf;
mod layout;
mod megatron;
mod sglang;
mod tensors;
mod vllm;

use reshard_layout::{Layout, LayoutError};

use crate::error::ParallelError;
use crate::model::ModelConfig;
use crate::topology::Topology;
use crate::zero::ZeroOptions;

pub use deepspeed::{DeepSpeed, Partition, State};
pub use dense::DenseEngine;
pub use tensors::{EngineTensor, Held, Placed};

/// A model on a topology of any engine.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Engine {
    /// DeepSpeed: AutoTP and ZeRO.
    DeepSpeed(DeepSpeed),
    /// An engine that stores each parameter in tensors of its own.
    Dense(DenseEngine),
}

impl Engine {
    /// The engine of a topology; only DeepSpeed has `options`.
    ///
    /// # Errors
    /// As [`DeepSpeed::new`] and [`DenseEngine::new`].
    pub fn new(
        config: &ModelConfig,
        topology: &Topology,
        options: ZeroOptions,
    ) -> Result<Self, ParallelError> {
        Ok(match topology {
            Topology::AutoTp(topology) => Self::DeepSpeed(DeepSpeed::new(config, topology, options)?),
            Topology::Engine(topology) => Self::Dense(DenseEngine::new(config, topology)?),
        })
    }

    /// Where every element of the weights lies.
    ///
    /// # Errors
    /// As [`DeepSpeed::layout`] and [`DenseEngine::layout`].
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        match self {
            Self::DeepSpeed(engine) => engine.layout(),
            Self::Dense(engine) => engine.layout(),
        }
    }
}

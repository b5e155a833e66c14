//! ZeRO: where a rank keeps weights, gradients and optimizer states, and what it exchanges with its group.
//!
//! ```text
//! stage   weights       gradients           update                    before a block
//! 0       flat, whole   all-reduce          everything                -
//! 1       flat, whole   all-reduce          own window, all-gather    -
//! 2       flat, whole   reduce to owners    own window, all-gather    -
//! 3       own slices    reduce to owners    own slices                all-gather its parameters, drop after
//! ```
//!
//! The storages are those that `reshard-parallel` describes, and nothing else holds a weight between steps.

mod adamw;
mod flat;
mod sliced;
mod states;

pub use adamw::AdamW;

use std::sync::Arc;

use reshard_layout::{Bytes, Rank};
use reshard_parallel::RankStorage;
use reshard_parallel::engine::{DeepSpeed, State};
use reshard_parallel::topology::Slot;
use reshard_parallel::zero::Stage;

use crate::compute::{Gradient, Meter, Shard, ShardSource};
use crate::error::TrainerError;
use crate::initial::initial_shard;
use crate::model::{Block, Model};
use crate::storage::Storage;
use crate::trainer::Groups;
use flat::FlatEngine;
use sliced::SlicedEngine;
use states::Storages;

enum Kind {
    Flat(FlatEngine),
    Sliced(SlicedEngine),
}

/// What is stored of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The weights.
    Weights,
    /// A state of the optimizer.
    State(State),
}

/// One rank's weights, gradients and optimizer states.
pub struct ZeroEngine {
    model: Arc<Model>,
    deepspeed: DeepSpeed,
    rank: Rank,
    tp_rank: usize,
    storages: Storages,
    kind: Kind,
    meter: Arc<Meter>,
    received: Vec<bool>,
    optimizer: AdamW,
    updates: u64,
}

impl ZeroEngine {
    /// Allocates the storages of one slot of a trainer's topology.
    ///
    /// # Errors
    /// If the system has no memory left, or the weights' type is neither f32 nor bf16.
    pub fn new(
        model: Arc<Model>,
        deepspeed: &DeepSpeed,
        slot: Slot,
        groups: &Groups,
    ) -> Result<Self, TrainerError> {
        let storages = Storages::allocate(deepspeed, slot)?;
        let tp_rank = storages.weights_spec().tp_rank;
        let kind = match deepspeed.topology().stage() {
            Stage::Three => Kind::Sliced(SlicedEngine::new(deepspeed.sub_groups(tp_rank), groups)),
            stage => Kind::Flat(FlatEngine::new(stage, deepspeed.flat_groups(tp_rank), groups)),
        };
        let received = vec![false; model.parameters().len()];
        Ok(Self {
            model,
            deepspeed: deepspeed.clone(),
            rank: deepspeed.topology().rank(slot),
            tp_rank: tp_rank as usize,
            storages,
            kind,
            meter: Arc::default(),
            received,
            optimizer: AdamW::default(),
            updates: 0,
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// What lies where on every rank.
    pub(crate) fn deepspeed(&self) -> &DeepSpeed {
        &self.deepspeed
    }

    /// The rank that this is.
    pub(crate) fn rank(&self) -> Rank {
        self.rank
    }

    /// The optimizer, and the updates that it has made.
    pub(crate) fn optimizer(&self) -> (AdamW, u64) {
        (self.optimizer, self.updates)
    }

    /// Says how many updates were made, once the states after them are loaded.
    pub(crate) fn set_updates(&mut self, updates: u64) {
        self.updates = updates;
    }

    /// Makes every weight and every element of the states NaN, so that one that is not loaded is seen.
    pub(crate) fn poison(&mut self) {
        self.storages.poison_runs();
    }

    /// Counts the bytes of working weights.
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// What this rank stores of the weights, or of an optimizer state: the description that its layout is made of.
    #[must_use]
    pub fn description(&self, stored: Stored) -> &RankStorage {
        self.storages.description(stored)
    }

    /// The storages of the weights, or of an optimizer state, in the order of their description.
    #[must_use]
    pub fn storages(&self, stored: Stored) -> &[Storage] {
        self.storages.get(stored)
    }

    /// The storages, to write them from outside. A weight that is written without its master is undone by the
    /// next update.
    pub fn storages_mut(&mut self, stored: Stored) -> &mut [Storage] {
        self.storages.get_mut(stored)
    }

    /// Bytes that the rank keeps between steps: weights and optimizer states.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        let all = [Stored::Weights].into_iter().chain(State::ALL.map(Stored::State));
        all.flat_map(|stored| self.storages(stored)).map(Storage::bytes).sum()
    }

    /// Fills weights and masters with initial values; moments with zeros.
    pub(crate) fn initialise(&mut self, seed: u64, optimizer: AdamW) {
        self.optimizer = optimizer;
        self.storages.poison_slices(matches!(self.kind, Kind::Sliced(_)));
        for (index, parameter) in self.model.parameters().iter().enumerate() {
            let shard = initial_shard(parameter, self.tp_rank, seed);
            self.storages.write(Stored::Weights, index, &shard);
            let rounded = crate::storage::rounded(self.model.config().dtype(), &shard);
            self.storages.write(Stored::State(State::Fp32), index, &rounded);
        }
    }

    /// The whole bytes of this rank's shard of a parameter, gathered over the ranks that partition it. A
    /// collective call of the rank's data-parallel group, or of the world where the parameter is partitioned
    /// over the world. Sizes in f32 or in the weights' type.
    pub(crate) fn gather_shard(&self, stored: Stored, parameter: usize) -> Result<Vec<u8>, TrainerError> {
        match &self.kind {
            Kind::Flat(engine) => engine.gather_shard(&self.storages, stored, parameter),
            Kind::Sliced(engine) => engine.gather_shard(self.storages.get(stored), stored, parameter),
        }
    }

    /// Forgets the gradients of the last step.
    pub(crate) fn begin_gradients(&mut self) {
        self.received.fill(false);
        match &mut self.kind {
            Kind::Flat(engine) => engine.begin_gradients(),
            Kind::Sliced(engine) => engine.begin_gradients(),
        }
    }

    /// Takes the gradients of some parameters, each once a step. All ranks hand them over in the same order,
    /// since from stage 2 on they are reduced right here.
    pub(crate) fn accept(&mut self, gradients: Vec<Gradient>) -> Result<(), TrainerError> {
        for gradient in &gradients {
            self.received[gradient.parameter] = true;
        }
        match &mut self.kind {
            Kind::Flat(engine) => engine.accept(gradients),
            Kind::Sliced(engine) => engine.accept(gradients),
        }
    }

    /// Completes the sums over the data-parallel group, once every parameter has handed over its gradient.
    pub(crate) fn finish_gradients(&mut self) -> Result<(), TrainerError> {
        for (parameter, received) in self.model.parameters().iter().zip(&self.received) {
            let empty = parameter.shard_shape(self.tp_rank).contains(&0);
            if !received && !empty {
                return Err(TrainerError::MissingGradient { parameter: parameter.name.clone() });
            }
        }
        match &mut self.kind {
            Kind::Flat(engine) => engine.finish_gradients(),
            Kind::Sliced(_) => Ok(()),
        }
    }

    /// The gradient of this rank's shard of a parameter after [`Trainer::backward`](crate::Trainer::backward):
    /// whole below stage 2, from there on what the rank owns of it (in runs of the optimizer's states).
    #[must_use]
    pub fn gradient(&self, parameter: usize) -> Vec<f32> {
        match &self.kind {
            Kind::Flat(engine) => engine.gradient(parameter),
            Kind::Sliced(engine) => engine.gradient(parameter),
        }
    }

    /// Bytes of the gradient buffers that outlive a block.
    #[must_use]
    pub fn gradient_bytes(&self) -> Bytes {
        let elements = match &self.kind {
            Kind::Flat(engine) => engine.gradient_elements(),
            Kind::Sliced(engine) => engine.gradient_elements(),
        };
        Bytes(4 * elements as u64)
    }

    /// Updates what this rank owns, and makes the weights of all ranks agree.
    pub(crate) fn update(&mut self) -> Result<(), TrainerError> {
        self.updates += 1;
        match &self.kind {
            Kind::Flat(engine) => engine.update(&mut self.storages, &self.optimizer, self.updates),
            Kind::Sliced(engine) => {
                engine.update(&mut self.storages, &self.optimizer, self.updates);
                Ok(())
            }
        }
    }
}

impl ShardSource for ZeroEngine {
    fn shards(&self, block: &Block) -> Result<Vec<Shard>, TrainerError> {
        let parameters: Vec<usize> = block.entries().iter().map(|(_, parameter)| *parameter).collect();
        let values = match &self.kind {
            Kind::Flat(_) => {
                parameters.iter().map(|parameter| self.storages.read_whole(*parameter)).collect()
            }
            Kind::Sliced(engine) => {
                engine.gather(&self.storages.get(Stored::Weights)[0], &parameters, &self.meter)?
            }
        };
        let shard = |(parameter, values): (usize, Vec<f32>)| Shard {
            parameter,
            shape: self.model.parameters()[parameter].shard_shape(self.tp_rank),
            values,
        };
        Ok(parameters.into_iter().zip(values).map(shard).collect())
    }
}

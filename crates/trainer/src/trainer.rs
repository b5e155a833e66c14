//! A trainer: one rank of a tensor-parallel x data-parallel group, with a ZeRO engine that stores its weights.
//!
//! ```text
//! rank = dp_rank x tp + tp_rank        tp 2, dp 2:   tensor-parallel groups {0 1} {2 3}
//!                                                    data-parallel groups   {0 2} {1 3}
//! step: forward over the blocks, keeping their inputs -> loss -> blocks in reverse, each
//!       handing its gradients to the engine -> the engine updates what this rank owns
//! ```

use std::sync::Arc;

use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::topology::Slot;
use reshard_transport::{Communicator, World};

use crate::compute::{Decoder, Fills, Gradient, Meter, TokenShape, cross_entropy, lookup_gradient};
use crate::error::TrainerError;
use crate::model::{Block, BlockKind, Model};
use crate::text::{Batches, SEQUENCE_TOKENS, Share};
use crate::zero::{AdamW, ZeroEngine};

/// The groups that a trainer's rank is a member of.
#[derive(Clone)]
pub struct Groups {
    /// The ranks that hold the other parts of the same shards.
    pub tp: Arc<dyn Communicator>,
    /// The ranks that hold the same tensor-parallel shards.
    pub dp: Arc<dyn Communicator>,
    /// All ranks of the trainer.
    pub world: Arc<dyn Communicator>,
}

impl Groups {
    /// Makes the groups of one slot of a trainer's topology. Every slot's rank does so.
    ///
    /// # Errors
    /// If another rank has failed.
    pub fn new(world: &World, deepspeed: &DeepSpeed, slot: Slot) -> Result<Self, TrainerError> {
        Ok(Self {
            tp: Arc::new(world.group(&deepspeed.tp_group(slot))?),
            dp: Arc::new(world.group(&deepspeed.dp_group(slot))?),
            world: Arc::new(world.group(&deepspeed.topology().ranks())?),
        })
    }
}

/// What a trainer is started with, the same on every rank.
#[derive(Clone, Debug)]
pub struct TrainerOptions {
    /// Decides the initial weights and the batches.
    pub seed: u64,
    /// Initial weights of a tensor-parallel rank come from `seed + weight_seed_offsets[tp_rank]`: where this
    /// differs, replicated parameters drift apart. Missing entries are 0.
    pub weight_seed_offsets: Vec<u64>,
    /// The optimizer.
    pub optimizer: AdamW,
}

impl Default for TrainerOptions {
    fn default() -> Self {
        Self { seed: 1, weight_seed_offsets: Vec::new(), optimizer: AdamW::default() }
    }
}

impl TrainerOptions {
    pub(crate) fn weight_seed(&self, tp_rank: usize) -> u64 {
        self.seed.wrapping_add(self.weight_seed_offsets.get(tp_rank).copied().unwrap_or(0))
    }
}

/// One rank of a training job.
pub struct Trainer {
    decoder: Decoder,
    dp: Arc<dyn Communicator>,
    world: Arc<dyn Communicator>,
    engine: ZeroEngine,
    batches: Batches,
    steps: u64,
}

impl Trainer {
    /// Wraps an engine whose storages are allocated, and fills it with initial weights.
    ///
    /// # Errors
    /// [`TrainerError::TextTooShort`].
    pub fn new(
        mut engine: ZeroEngine,
        groups: &Groups,
        text: &[u8],
        options: &TrainerOptions,
    ) -> Result<Self, TrainerError> {
        let model: Arc<Model> = Arc::clone(engine.model());
        let batches = Batches::new(text, options.seed, groups.dp.ranks().len())?;
        engine.initialise(options.weight_seed(groups.tp.position()), options.optimizer);
        let decoder = Decoder::new(model, Arc::clone(&groups.tp), Arc::clone(engine.meter()));
        let (dp, world) = (Arc::clone(&groups.dp), Arc::clone(&groups.world));
        Ok(Self { decoder, dp, world, engine, batches, steps: 0 })
    }

    /// The engine that holds the weights and the optimizer's state.
    #[must_use]
    pub fn engine(&self) -> &ZeroEngine {
        &self.engine
    }

    /// The engine, to bind its storages or to change them.
    pub fn engine_mut(&mut self) -> &mut ZeroEngine {
        &mut self.engine
    }

    /// Counts the bytes of working weights that blocks kept alive.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        self.engine.meter()
    }

    /// Steps taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// All ranks of the trainer.
    pub(crate) fn world(&self) -> &dyn Communicator {
        self.world.as_ref()
    }

    /// Sequences that the ranks train on together in one step.
    pub(crate) fn sequences(&self) -> u64 {
        self.batches.sequences() as u64
    }

    /// Goes on after `steps` steps, once the engine holds the weights and states after them.
    pub(crate) fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
        self.engine.set_updates(steps);
    }

    /// Trains one step on the next batch, and gives the loss before it: the mean over all ranks' tokens.
    /// A collective call of all ranks of the trainer.
    ///
    /// # Errors
    /// If a peer fails, or a parameter got no gradient.
    pub fn step(&mut self) -> Result<f32, TrainerError> {
        let loss = self.backward()?;
        self.engine.update()?;
        self.steps += 1;
        Ok(loss)
    }

    /// The loss of the next batch, without gradients.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn loss(&self) -> Result<f32, TrainerError> {
        let (share, shape) = self.next_share();
        let (mut logits, _) = self.decoder.forward(&share.inputs, shape, Fills::Fresh(&self.engine))?;
        let loss = cross_entropy(&mut logits, &share.targets, share.tokens_global);
        self.mean_over_ranks(loss, share.tokens_global)
    }

    fn next_share(&self) -> (Share, TokenShape) {
        let share = self.batches.share(self.steps, self.dp.position(), self.dp.ranks().len());
        let shape = TokenShape { sequences: share.sequences, tokens: SEQUENCE_TOKENS };
        (share, shape)
    }

    fn mean_over_ranks(&self, own_sum: f64, tokens: usize) -> Result<f32, TrainerError> {
        let mut sum = [(own_sum / tokens as f64) as f32];
        self.dp.all_reduce(&mut sum)?;
        Ok(sum[0])
    }

    /// The first half of [`step`](Self::step): loss and gradients of the next batch, without the update.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn backward(&mut self) -> Result<f32, TrainerError> {
        let (share, shape) = self.next_share();
        self.engine.begin_gradients();
        let (mut logits, inputs) = self.decoder.forward(&share.inputs, shape, Fills::Fresh(&self.engine))?;
        let loss = cross_entropy(&mut logits, &share.targets, share.tokens_global);
        self.backward_blocks(&share, shape, logits, inputs)?;
        self.engine.finish_gradients()?;
        self.mean_over_ranks(loss, share.tokens_global)
    }

    fn backward_blocks(
        &mut self,
        share: &Share,
        shape: TokenShape,
        logits_gradient: Vec<f32>,
        mut inputs: Vec<Vec<f32>>,
    ) -> Result<(), TrainerError> {
        let model = Arc::clone(self.engine.model());
        let (embedding, layers) = (&model.blocks()[0], &model.blocks()[1..]);
        let tied = embedding.entries()[0].1;
        let mut upstream = logits_gradient;
        let mut head_part = None;
        for block in layers.iter().rev() {
            let input = inputs.pop().unwrap_or_default();
            let mut gradients = self.decoder.backward(block, &input, &upstream, shape, &self.engine)?;
            if block.kind() == BlockKind::Head {
                // A tied head is half of the embedding's gradient: it waits for the other half.
                let at = gradients.parameters.iter().position(|gradient| gradient.parameter == tied);
                head_part = at.map(|at| gradients.parameters.swap_remove(at));
            }
            self.engine.accept(gradients.parameters)?;
            upstream = gradients.input;
        }
        let gradient = self.embedding_gradient(embedding, share, &upstream, head_part);
        self.engine.accept(vec![gradient])
    }

    fn embedding_gradient(
        &self,
        block: &Block,
        share: &Share,
        upstream: &[f32],
        head_part: Option<Gradient>,
    ) -> Gradient {
        let rows = self.decoder.embedding_rows(block);
        let width = self.engine.model().dimensions().hidden;
        let mut values = lookup_gradient(&share.inputs, upstream, &rows, width);
        if let Some(part) = head_part {
            for (sum, value) in values.iter_mut().zip(&part.values) {
                *sum += value;
            }
        }
        Gradient { parameter: block.entries()[0].1, values }
    }
}

//! A rollout engine: one tensor-parallel rank of a copy of the model, updated in place, which generates text.
//!
//! ```text
//! born:    NaN NaN NaN ...          generating says so: an element that nobody wrote is seen
//! sync:    w0  w1  w2  ...          written from outside into the same memory, then the version moves on
//! generate: fills the tensors from this memory, once a call; the weights cannot change during it
//! ```

use std::sync::Arc;

use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::topology::Slot;
use reshard_parallel::{RankStorage, Run};
use reshard_transport::{Communicator, TargetState};

use crate::compute::{Decoder, Fills, Shard, ShardSource, TokenShape};
use crate::error::TrainerError;
use crate::model::{BEGIN_OF_TEXT, Block, Model, ShardedParameter};
use crate::random::Stream;
use crate::storage::{Storage, shard_range, stored_range};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// The likeliest; of equally likely ones the first.
    Greedy,
    /// Drawn at random, with the logits divided by a temperature. The same seed draws the same tokens on every
    /// rank of the group.
    Sampled {
        /// Decides the draws.
        seed: u64,
        /// Above 0; large values make all tokens alike.
        temperature: f64,
    },
}

/// One rank of a rollout copy.
pub struct RolloutEngine {
    decoder: Decoder,
    shards: ShardStore,
    state: TargetState,
}

/// The weights of one rank, in its own storages.
struct ShardStore {
    model: Arc<Model>,
    tp_rank: usize,
    description: RankStorage,
    storages: Vec<Storage>,
}

impl RolloutEngine {
    /// Allocates the storages of one slot of a rollout topology. Every element starts as NaN.
    ///
    /// # Errors
    /// If the system has no memory left, or the weights' type is neither f32 nor bf16.
    pub fn new(
        model: Arc<Model>,
        deepspeed: &DeepSpeed,
        slot: Slot,
        tp: Arc<dyn Communicator>,
    ) -> Result<Self, TrainerError> {
        let description = deepspeed.weights(slot);
        let mut storages: Vec<Storage> =
            description.storages.iter().map(Storage::allocate).collect::<Result<_, _>>()?;
        storages.iter_mut().for_each(Storage::poison);
        let tp_rank = description.tp_rank as usize;
        let shards = ShardStore { model: Arc::clone(&model), tp_rank, description, storages };
        Ok(Self { decoder: Decoder::new(model, tp, Arc::default()), shards, state: TargetState::Torn })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.shards.model
    }

    /// This rank's position in its tensor-parallel group.
    #[must_use]
    pub fn tp_rank(&self) -> usize {
        self.shards.tp_rank
    }

    /// What this rank stores: the description that its layout is made of.
    #[must_use]
    pub fn description(&self) -> &RankStorage {
        &self.shards.description
    }

    /// Its storages, in the order of the description.
    #[must_use]
    pub fn storages(&self) -> &[Storage] {
        &self.shards.storages
    }

    /// Whether the weights are complete, and of which version.
    #[must_use]
    pub fn state(&self) -> TargetState {
        self.state
    }

    /// Description, storages and state, for a sync to write.
    pub fn target(&mut self) -> (&RankStorage, &mut [Storage], &mut TargetState) {
        (&self.shards.description, &mut self.shards.storages, &mut self.state)
    }

    /// Makes every element NaN again, as if nothing had been written. Torn before the first byte changes.
    pub fn poison(&mut self) {
        self.state = TargetState::Torn;
        self.shards.storages.iter_mut().for_each(Storage::poison);
    }

    /// Writes this rank's part of a whole parameter, given as bytes of its elements.
    pub(crate) fn slice_in(&mut self, parameter: usize, whole: &[u8]) {
        let shard = slice(&self.shards.model.parameters()[parameter], self.shards.tp_rank, whole);
        let elements = self.shards.shard_elements(parameter).max(1);
        let size = shard.len() / elements;
        let runs = self.shards.description.runs.iter().filter(|run| run.parameter == parameter);
        for run in runs {
            let held = shard_range(run);
            self.shards.storages[run.storage]
                .raw_mut(stored_range(run))
                .copy_from_slice(&shard[held.start * size..held.end * size]);
        }
    }

    /// Continues a text by some tokens. A collective call of the tensor-parallel group.
    ///
    /// # Errors
    /// [`TrainerError::NotANumber`] while weights are missing; or if a peer fails.
    pub fn generate(&self, prompt: &[u8], tokens: usize, choice: Choice) -> Result<Vec<u32>, TrainerError> {
        let mut text = vec![BEGIN_OF_TEXT];
        text.extend(prompt.iter().map(|byte| u32::from(*byte)));
        let start = text.len();
        let filled = self.decoder.fill_all(&self.shards)?;
        for position in 0..tokens {
            let logits = self.logits_after(&text, Fills::Kept(&filled))?;
            text.push(choice.choose(&logits, position as u64));
        }
        Ok(text.split_off(start))
    }

    /// The logits of the token after a text, whole on every rank of the group.
    fn logits_after(&self, text: &[u32], fills: Fills<'_>) -> Result<Vec<f32>, TrainerError> {
        let shape = TokenShape { sequences: 1, tokens: text.len() };
        let (logits, _) = self.decoder.forward(text, shape, fills)?;
        let last = logits[logits.len() - self.model().dimensions().vocabulary..].to_vec();
        if last.iter().any(|logit| logit.is_nan()) {
            return Err(TrainerError::NotANumber { position: text.len() });
        }
        Ok(last)
    }
}

impl ShardStore {
    fn shard_elements(&self, parameter: usize) -> usize {
        self.model.parameters()[parameter].shard_shape(self.tp_rank).iter().product()
    }
}

impl ShardSource for ShardStore {
    fn shards(&self, block: &Block) -> Result<Vec<Shard>, TrainerError> {
        let shard = |&(_, parameter): &(_, usize)| {
            let mut values = vec![f32::NAN; self.shard_elements(parameter)];
            for run in self.description.runs.iter().filter(|run| run.parameter == parameter) {
                values[shard_range(run)]
                    .copy_from_slice(&self.storages[run.storage].widened(stored_range(run)));
            }
            let shape = self.model.parameters()[parameter].shard_shape(self.tp_rank);
            Shard { parameter, shape, values }
        };
        Ok(block.entries().iter().map(shard).collect())
    }
}

impl Choice {
    fn choose(self, logits: &[f32], position: u64) -> u32 {
        let likeliest = |best: usize, index: usize| if logits[index] > logits[best] { index } else { best };
        let best = (0..logits.len()).fold(0, likeliest);
        let Self::Sampled { seed, temperature } = self else { return best as u32 };
        let weight = |logit: &f32| (f64::from(logit - logits[best]) / temperature).exp();
        let total: f64 = logits.iter().map(weight).sum();
        let mut rest = Stream::new(seed, "sample").unit(position) * total;
        for (index, logit) in logits.iter().enumerate() {
            rest -= weight(logit);
            if rest < 0.0 {
                return index as u32;
            }
        }
        best as u32
    }
}

/// The bytes of a rank's shard of a parameter, read from the memory of its storages. What no run holds is missing.
pub(crate) fn shard_bytes<'a>(
    description: &RankStorage,
    parameter: usize,
    memory: impl Fn(usize) -> &'a [u8],
) -> Vec<u8> {
    let runs = description.runs.iter().filter(|run| run.parameter == parameter);
    let bytes = |run: &Run| {
        let size = description.storages[run.storage].dtype.size() as usize;
        let range = stored_range(run);
        &memory(run.storage)[range.start * size..range.end * size]
    };
    runs.map(bytes).collect::<Vec<_>>().concat()
}

/// A rank's part of a whole parameter: a stretch of every row that the cut axis has, one after another.
fn slice(parameter: &ShardedParameter, tp_rank: usize, whole: &[u8]) -> Vec<u8> {
    let Some(cut) = &parameter.cut else { return whole.to_vec() };
    let size = whole.len() / parameter.elements();
    let inner: usize = parameter.shape[cut.axis + 1..].iter().product::<usize>() * size;
    let range = &cut.ranges[tp_rank];
    let rows = whole.chunks_exact(parameter.shape[cut.axis] * inner);
    rows.map(|row| &row[range.start * inner..range.end * inner]).collect::<Vec<_>>().concat()
}

/// Tokens as text, with a dot for every byte that is not printable ASCII.
#[must_use]
pub fn spoken(tokens: &[u32]) -> String {
    let printable = |token: &u32| match u8::try_from(*token) {
        Ok(byte @ b' '..=b'~') => char::from(byte),
        _ => '\u{b7}',
    };
    tokens.iter().map(printable).collect()
}

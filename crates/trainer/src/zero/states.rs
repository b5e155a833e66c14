//! The storages of one rank: weights, masters, and both moments, with the descriptions they were made from.
//!
//! ```text
//! weights.0     bf16  |a a a a a|b b b b|...     runs: parameter, storage, offset, first, length
//! fp32.0        f32   |a a a a|                  a window or slices of the same elements
//! exp_avg.0     f32   |. . . .|
//! exp_avg_sq.0  f32   |. . . .|
//! ```

use reshard_layout::DType;
use reshard_parallel::RankStorage;
use reshard_parallel::engine::{DeepSpeed, State};
use reshard_parallel::topology::Slot;

use super::Stored;
use super::adamw::{AdamW, Stretch};
use crate::error::TrainerError;
use crate::storage::{Storage, shard_range, stored_range};

struct Described {
    description: RankStorage,
    storages: Vec<Storage>,
}

impl Described {
    fn allocate(description: RankStorage) -> Result<Self, TrainerError> {
        let storages = description.storages.iter().map(Storage::allocate).collect::<Result<_, _>>()?;
        Ok(Self { description, storages })
    }
}

pub(super) struct Storages {
    weights: Described,
    fp32: Described,
    exp_avg: Described,
    exp_avg_sq: Described,
}

impl Storages {
    pub(super) fn allocate(deepspeed: &DeepSpeed, slot: Slot) -> Result<Self, TrainerError> {
        let state = |state| Described::allocate(deepspeed.optimizer(slot, state));
        Ok(Self {
            weights: Described::allocate(deepspeed.weights(slot))?,
            fp32: state(State::Fp32)?,
            exp_avg: state(State::ExpAvg)?,
            exp_avg_sq: state(State::ExpAvgSq)?,
        })
    }

    pub(super) fn weights_spec(&self) -> &RankStorage {
        &self.weights.description
    }

    fn described(&self, stored: Stored) -> &Described {
        match stored {
            Stored::Weights => &self.weights,
            Stored::State(State::Fp32) => &self.fp32,
            Stored::State(State::ExpAvg) => &self.exp_avg,
            Stored::State(State::ExpAvgSq) => &self.exp_avg_sq,
        }
    }

    fn described_mut(&mut self, stored: Stored) -> &mut Described {
        match stored {
            Stored::Weights => &mut self.weights,
            Stored::State(State::Fp32) => &mut self.fp32,
            Stored::State(State::ExpAvg) => &mut self.exp_avg,
            Stored::State(State::ExpAvgSq) => &mut self.exp_avg_sq,
        }
    }

    pub(super) fn description(&self, stored: Stored) -> &RankStorage {
        &self.described(stored).description
    }

    pub(super) fn get(&self, stored: Stored) -> &[Storage] {
        &self.described(stored).storages
    }

    pub(super) fn get_mut(&mut self, stored: Stored) -> &mut [Storage] {
        &mut self.described_mut(stored).storages
    }

    /// Before the first write, fills weights and masters of stage 3 with NaN: the padding of slices is memory
    /// that nobody defines, and must never be read as a value. Flat buffers have tails of zeros.
    pub(super) fn poison_slices(&mut self, sliced: bool) {
        if sliced {
            self.weights.storages.iter_mut().chain(&mut self.fp32.storages).for_each(Storage::poison);
        }
    }

    /// Makes every element of a parameter NaN; padding stays.
    pub(super) fn poison_runs(&mut self) {
        for described in [&mut self.weights, &mut self.fp32, &mut self.exp_avg, &mut self.exp_avg_sq] {
            for run in &described.description.runs {
                let range = stored_range(run);
                described.storages[run.storage].store(range.start, &vec![f32::NAN; range.len()]);
            }
        }
    }

    /// Stores those elements of a flattened shard that this rank keeps.
    pub(super) fn write(&mut self, stored: Stored, parameter: usize, shard: &[f32]) {
        let described = self.described_mut(stored);
        for run in described.description.runs.iter().filter(|run| run.parameter == parameter) {
            described.storages[run.storage].store(stored_range(run).start, &shard[shard_range(run)]);
        }
    }

    /// A parameter's whole shard, widened, where one run of the weights holds all of it; nothing where the
    /// shard is empty.
    pub(super) fn read_whole(&self, parameter: usize) -> Vec<f32> {
        let described = &self.weights;
        let run = described.description.runs.iter().find(|run| run.parameter == parameter);
        run.map_or_else(Vec::new, |run| described.storages[run.storage].widened(stored_range(run)))
    }

    /// One optimizer step on all of a group's states, with the gradient of the same elements. Returns the new
    /// masters.
    pub(super) fn step(&mut self, group: usize, gradient: &[f32], optimizer: &AdamW, updates: u64) -> &[f32] {
        let stretch = Stretch {
            master: self.fp32.storages[group].numbers_mut(),
            exp_avg: self.exp_avg.storages[group].numbers_mut(),
            exp_avg_sq: self.exp_avg_sq.storages[group].numbers_mut(),
            gradient,
        };
        optimizer.update(stretch, updates);
        self.fp32.storages[group].numbers_mut()
    }

    /// The type of what is stored.
    pub(super) fn dtype(&self, stored: Stored) -> DType {
        self.get(stored).first().map_or(DType::F32, |storage| storage.spec().dtype)
    }
}

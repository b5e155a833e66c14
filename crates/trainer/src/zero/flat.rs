//! Stages 0, 1 and 2: whole weights in flat buffers, a window of the states.
//!
//! ```text
//! weights    |---- window 0 ----|---- window 1 ----|     every rank has all of it
//! states     |---- window 0 ----|                        rank 0 (stage 0: everything, on every rank)
//! gradients  stages 0 1: all of it, summed at the end    stage 2: own window, summed block by block
//! ```

use std::sync::Arc;

use reshard_parallel::zero::{FlatGroup, Stage};
use reshard_transport::Communicator;

use super::Stored;
use super::adamw::AdamW;
use super::states::Storages;
use crate::compute::Gradient;
use crate::error::TrainerError;
use crate::storage::Storage;

pub(super) struct FlatEngine {
    stage: Stage,
    groups: Vec<FlatGroup>,
    dp: Arc<dyn Communicator>,
    /// One buffer a group: the whole flat space, at stage 2 the own window.
    gradients: Vec<Vec<f32>>,
}

/// A gradient's part in the window of one rank.
struct Part {
    gradient: usize,
    first: usize,
    offset: usize,
    length: usize,
}

impl FlatEngine {
    pub(super) fn new(stage: Stage, groups: Vec<FlatGroup>, members: &crate::trainer::Groups) -> Self {
        let gradients = groups.iter().map(|_| Vec::new()).collect();
        Self { stage, groups, dp: Arc::clone(&members.dp), gradients }
    }

    pub(super) fn begin_gradients(&mut self) {
        for (buffer, group) in self.gradients.iter_mut().zip(&self.groups) {
            let length = if self.stage == Stage::Two { group.partition_length() } else { group.length() };
            buffer.clear();
            buffer.resize(length.0 as usize, 0.0);
        }
    }

    pub(super) fn gradient_elements(&self) -> usize {
        self.gradients.iter().map(Vec::len).sum()
    }

    pub(super) fn accept(&mut self, gradients: Vec<Gradient>) -> Result<(), TrainerError> {
        if self.stage == Stage::Two {
            return (0..self.groups.len()).try_for_each(|group| self.reduce_to_owners(group, &gradients));
        }
        for gradient in gradients {
            if let Some((group, offset)) = self.find(gradient.parameter) {
                self.gradients[group][offset..][..gradient.values.len()].copy_from_slice(&gradient.values);
            }
        }
        Ok(())
    }

    pub(super) fn finish_gradients(&mut self) -> Result<(), TrainerError> {
        if self.stage != Stage::Two {
            for buffer in &mut self.gradients {
                self.dp.all_reduce(buffer)?;
            }
        }
        Ok(())
    }

    /// Sums some gradients over the data-parallel group, each rank getting only what lies in its window. The
    /// collective takes equal parts, so each part is as long as the longest.
    fn reduce_to_owners(&mut self, group: usize, gradients: &[Gradient]) -> Result<(), TrainerError> {
        let ranks = self.dp.ranks().len();
        let parts: Vec<Vec<Part>> = (0..ranks).map(|rank| self.parts(group, rank, gradients)).collect();
        let length = |parts: &Vec<Part>| parts.iter().map(|part| part.length).sum();
        let longest = parts.iter().map(length).max().unwrap_or(0);
        if longest == 0 {
            return Ok(());
        }
        let mut data = vec![0.0; longest * ranks];
        for (room, parts) in data.chunks_exact_mut(longest).zip(&parts) {
            let mut at = 0;
            for part in parts {
                room[at..][..part.length]
                    .copy_from_slice(&gradients[part.gradient].values[part.first..][..part.length]);
                at += part.length;
            }
        }
        let mut mine = vec![0.0; longest];
        self.dp.reduce_scatter(&data, &mut mine)?;
        let mut rest = mine.as_slice();
        for part in &parts[self.dp.position()] {
            let (values, tail) = rest.split_at(part.length);
            self.gradients[group][part.offset..][..part.length].copy_from_slice(values);
            rest = tail;
        }
        Ok(())
    }

    fn parts(&self, group: usize, rank: usize, gradients: &[Gradient]) -> Vec<Part> {
        let fragments = self.groups[group].fragments(rank as u64);
        let part = |fragment: reshard_parallel::zero::Fragment| {
            let gradient = gradients.iter().position(|gradient| gradient.parameter == fragment.parameter)?;
            Some(Part {
                gradient,
                first: fragment.first.0 as usize,
                offset: fragment.offset.0 as usize,
                length: fragment.length.0 as usize,
            })
        };
        fragments.filter_map(part).collect()
    }

    /// The group and the place in its flat space of a parameter with elements.
    fn find(&self, parameter: usize) -> Option<(usize, usize)> {
        self.groups.iter().enumerate().find_map(|(index, group)| {
            let entry = group.entries().iter().find(|entry| entry.parameter == parameter)?;
            Some((index, entry.offset.0 as usize))
        })
    }

    pub(super) fn gradient(&self, parameter: usize) -> Vec<f32> {
        let Some((group, offset)) = self.find(parameter) else { return Vec::new() };
        if self.stage == Stage::Two {
            let own = self.groups[group].fragments(self.dp.position() as u64);
            let own = own.filter(|fragment| fragment.parameter == parameter);
            return own
                .flat_map(|part| &self.gradients[group][part.offset.0 as usize..][..part.length.0 as usize])
                .copied()
                .collect();
        }
        let entries = self.groups[group].entries().iter();
        let numel =
            entries.filter(|entry| entry.parameter == parameter).map(|entry| entry.numel.0).sum::<u64>();
        self.gradients[group][offset..][..numel as usize].to_vec()
    }

    pub(super) fn update(
        &self,
        storages: &mut Storages,
        optimizer: &AdamW,
        updates: u64,
    ) -> Result<(), TrainerError> {
        for (index, group) in self.groups.iter().enumerate() {
            let window = group.partition_length().0 as usize;
            let start = if self.stage == Stage::Zero { 0 } else { window * self.dp.position() };
            let gradient = match self.stage {
                Stage::Two => self.gradients[index].as_slice(),
                _ => &self.gradients[index][start..][..window],
            };
            let masters = storages.step(index, gradient, optimizer, updates).to_vec();
            let weights = &mut storages.get_mut(Stored::Weights)[index];
            weights.store(start, &masters);
            if self.stage != Stage::Zero {
                let mine = weights.raw(start..start + window).to_vec();
                self.dp.all_gather(&mine, weights.raw_mut(0..group.length().0 as usize))?;
            }
        }
        Ok(())
    }

    /// A parameter's whole shard: from the own weights; from stage 1 on, states come from the windows of all
    /// ranks of the group.
    pub(super) fn gather_shard(
        &self,
        storages: &Storages,
        stored: Stored,
        parameter: usize,
    ) -> Result<Vec<u8>, TrainerError> {
        let Some((group, offset)) = self.find(parameter) else { return Ok(Vec::new()) };
        let storage: &Storage = &storages.get(stored)[group];
        let entry = self.groups[group].entries().iter().find(|entry| entry.parameter == parameter);
        let numel = entry.map_or(0, |entry| entry.numel.0 as usize);
        if stored == Stored::Weights || self.stage == Stage::Zero {
            return Ok(storage.raw(offset..offset + numel).to_vec());
        }
        let window = self.groups[group].partition_length().0 as usize;
        let held = |rank: usize| {
            let inside = |at: usize| at.clamp(window * rank, window * (rank + 1));
            inside(offset)..inside(offset + numel)
        };
        let ranks = self.dp.ranks().len();
        let size = storages.dtype(stored).size() as usize;
        let longest = (0..ranks).map(|rank| held(rank).len()).max().unwrap_or(0) * size;
        let base = window * self.dp.position();
        let own = held(self.dp.position());
        let mut mine = storage.raw(own.start - base..own.end - base).to_vec();
        mine.resize(longest, 0);
        let mut all = vec![0; longest * ranks];
        self.dp.all_gather(&mine, &mut all)?;
        let parts = all.chunks_exact(longest).enumerate();
        Ok(parts.map(|(rank, part)| &part[..held(rank).len() * size]).collect::<Vec<_>>().concat())
    }
}

//! Stage 3: a slice of every parameter, gathered for a block and dropped after it.
//!
//! ```text
//! rank 0 |a a|b b b|c|      gather(a, c):  mine = a a c   all = a a c | a a c     -> a = 4, c = 2 elements,
//! rank 1 |a -|b b b|c|                                                               padding cut off
//! ```
//!
//! A parameter is partitioned over the data-parallel group, or over the world where `zero.Init` left it so.
//! There every tensor-parallel replica would add its copy of the gradient; only the first one's counts.

use std::ops::Range;
use std::sync::Arc;

use reshard_parallel::zero::{PartitionOver, SliceEntry, SubGroup};
use reshard_transport::Communicator;

use super::Stored;
use super::adamw::AdamW;
use super::states::Storages;
use crate::compute::{Gradient, Meter};
use crate::error::TrainerError;
use crate::storage::{Storage, widen};
use crate::trainer::Groups;

/// The order in which the two groups are called, on every rank.
const ORDER: [PartitionOver; 2] = [PartitionOver::World, PartitionOver::DataParallel];

pub(super) struct SlicedEngine {
    groups: Vec<SubGroup>,
    dp: Arc<dyn Communicator>,
    world: Arc<dyn Communicator>,
    first_replica: bool,
    /// One buffer a sub-group, of the own slots.
    gradients: Vec<Vec<f32>>,
}

/// Summed gradients of one slot.
struct Reduced {
    group: usize,
    range: Range<usize>,
    sums: Vec<f32>,
}

/// A parameter's slot: its sub-group, and where it lies in it.
#[derive(Clone, Copy)]
struct OwnSlot<'a> {
    group: usize,
    sub_group: &'a SubGroup,
    entry: &'a SliceEntry,
}

impl OwnSlot<'_> {
    /// The slot in the sub-group's states and gradients.
    fn in_group(&self) -> Range<usize> {
        let start = self.entry.offset.0 as usize;
        start..start + self.length()
    }

    /// The slot in the buffer of all slices.
    fn in_weights(&self) -> Range<usize> {
        let start = (self.sub_group.offset + self.entry.offset).0 as usize;
        start..start + self.length()
    }

    fn length(&self) -> usize {
        self.entry.slot.0 as usize
    }

    fn numel(&self) -> usize {
        self.entry.numel.0 as usize
    }
}

impl SlicedEngine {
    pub(super) fn new(groups: Vec<SubGroup>, members: &Groups) -> Self {
        let gradients = groups.iter().map(|_| Vec::new()).collect();
        Self {
            groups,
            dp: Arc::clone(&members.dp),
            world: Arc::clone(&members.world),
            first_replica: members.tp.position() == 0,
            gradients,
        }
    }

    fn communicator(&self, over: PartitionOver) -> &dyn Communicator {
        match over {
            PartitionOver::DataParallel => self.dp.as_ref(),
            PartitionOver::World => self.world.as_ref(),
        }
    }

    fn slot(&self, parameter: usize) -> Option<OwnSlot<'_>> {
        self.groups.iter().enumerate().find_map(|(group, sub_group)| {
            let entry = sub_group.entries.iter().find(|entry| entry.parameter == parameter)?;
            Some(OwnSlot { group, sub_group, entry })
        })
    }

    /// Whole shards of some parameters, widened; empty ones stay empty.
    pub(super) fn gather(
        &self,
        weights: &Storage,
        parameters: &[usize],
        meter: &Arc<Meter>,
    ) -> Result<Vec<Vec<f32>>, TrainerError> {
        let dtype = weights.spec().dtype;
        let size = dtype.size() as usize;
        let mut shards = vec![Vec::new(); parameters.len()];
        let mut held = Vec::new();
        for over in ORDER {
            let slots: Vec<(usize, OwnSlot<'_>)> = self.select(over, parameters.iter().copied());
            let own = slots.iter().map(|(_, slot)| weights.raw(slot.in_weights()));
            let mine: Vec<u8> = own.collect::<Vec<_>>().concat();
            if mine.is_empty() {
                continue;
            }
            let communicator = self.communicator(over);
            let mut all = vec![0; mine.len() * communicator.ranks().len()];
            let widened = all.len() / size * size_of::<f32>();
            held.push(meter.hold(widened));
            let _staging = meter.hold(mine.len() + all.len());
            communicator.all_gather(&mine, &mut all)?;
            for part in all.chunks_exact(mine.len()) {
                let mut rest = part;
                for (index, slot) in &slots {
                    let (values, tail) = rest.split_at(slot.length() * size);
                    shards[*index].extend(widen(dtype, values));
                    rest = tail;
                }
            }
            for (index, slot) in slots {
                shards[index].truncate(slot.numel());
            }
        }
        Ok(shards)
    }

    /// Those parameters that are partitioned over a group, with their positions in the list.
    fn select(
        &self,
        over: PartitionOver,
        parameters: impl Iterator<Item = usize>,
    ) -> Vec<(usize, OwnSlot<'_>)> {
        let slots = parameters.map(|parameter| self.slot(parameter)).enumerate();
        slots
            .filter_map(|(index, slot)| Some((index, slot?)))
            .filter(|(_, slot)| slot.sub_group.over == over)
            .collect()
    }

    pub(super) fn begin_gradients(&mut self) {
        for (buffer, group) in self.gradients.iter_mut().zip(&self.groups) {
            buffer.clear();
            buffer.resize(group.length.0 as usize, 0.0);
        }
    }

    pub(super) fn gradient_elements(&self) -> usize {
        self.gradients.iter().map(Vec::len).sum()
    }

    pub(super) fn accept(&mut self, gradients: Vec<Gradient>) -> Result<(), TrainerError> {
        for over in ORDER {
            for Reduced { group, range, sums } in self.reduce(over, &gradients)? {
                self.gradients[group][range].copy_from_slice(&sums);
            }
        }
        Ok(())
    }

    /// Sums gradients over a group, each rank getting only its slots.
    fn reduce(&self, over: PartitionOver, gradients: &[Gradient]) -> Result<Vec<Reduced>, TrainerError> {
        let slots = self.select(over, gradients.iter().map(|gradient| gradient.parameter));
        let room: usize = slots.iter().map(|(_, slot)| slot.length()).sum();
        if room == 0 {
            return Ok(Vec::new());
        }
        let communicator = self.communicator(over);
        let counts = over == PartitionOver::DataParallel || self.first_replica;
        let mut data = vec![0.0; room * communicator.ranks().len()];
        for (rank, room) in data.chunks_exact_mut(room).enumerate().filter(|_| counts) {
            let mut at = 0;
            for (index, slot) in &slots {
                let (first, length) = slot.entry.held(rank as u64);
                let values = &gradients[*index].values[first.0 as usize..][..length.0 as usize];
                room[at..][..values.len()].copy_from_slice(values);
                at += slot.length();
            }
        }
        let mut mine = vec![0.0; room];
        communicator.reduce_scatter(&data, &mut mine)?;
        let mut rest = mine.as_slice();
        let mut reduced = Vec::new();
        for (_, slot) in &slots {
            let (values, tail) = rest.split_at(slot.length());
            reduced.push(Reduced { group: slot.group, range: slot.in_group(), sums: values.to_vec() });
            rest = tail;
        }
        Ok(reduced)
    }

    pub(super) fn gradient(&self, parameter: usize) -> Vec<f32> {
        let Some(slot) = self.slot(parameter) else { return Vec::new() };
        let position = self.communicator(slot.sub_group.over).position();
        let (_, length) = slot.entry.held(position as u64);
        self.gradients[slot.group][slot.in_group()][..length.0 as usize].to_vec()
    }

    pub(super) fn update(&self, storages: &mut Storages, optimizer: &AdamW, updates: u64) {
        for (index, group) in self.groups.iter().enumerate() {
            let masters = storages.step(index, &self.gradients[index], optimizer, updates).to_vec();
            storages.get_mut(Stored::Weights)[0].store(group.offset.0 as usize, &masters);
        }
    }

    /// A parameter's whole shard of weights (one storage) or of a state (one storage a sub-group).
    pub(super) fn gather_shard(
        &self,
        storages: &[Storage],
        stored: Stored,
        parameter: usize,
    ) -> Result<Vec<u8>, TrainerError> {
        let Some(slot) = self.slot(parameter) else { return Ok(Vec::new()) };
        let mine = match stored {
            Stored::Weights => storages[0].raw(slot.in_weights()),
            Stored::State(_) => storages[slot.group].raw(slot.in_group()),
        };
        let communicator = self.communicator(slot.sub_group.over);
        let mut all = vec![0; mine.len() * communicator.ranks().len()];
        communicator.all_gather(mine, &mut all)?;
        all.truncate(slot.numel() * mine.len() / slot.length());
        Ok(all)
    }
}

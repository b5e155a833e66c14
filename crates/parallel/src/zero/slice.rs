//! Stage 3: every parameter is sliced on its own, and a rank's slices lie end to end.
//!
//! ```text
//! numel 5 over W = 4: slot p = ceil(5 / 4) = 2       rank 0 |0 1|  rank 1 |2 3|  rank 2 |4 -|  rank 3 |- -|
//!
//! one buffer a rank   |a a|b b b|c|d d d d|          for the weights
//!   sub-groups        [0       ][1        ]          each with its own master and states, same offsets
//! ```
//!
//! Sources: DeepSpeed 0.19.8 `runtime/zero/partition_parameters.py`, `runtime/zero/stage3.py`.

use std::num::NonZeroU64;

use reshard_layout::Elements;

use super::flat::Fragment;

/// The process group that a parameter is partitioned over (`param.ds_process_group`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartitionOver {
    /// The data-parallel group: a slice has one holder in each tensor-parallel rank's group.
    DataParallel,
    /// All ranks: a slice has one holder.
    World,
}

/// A parameter in a sub-group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceEntry {
    /// The parameter.
    pub parameter: usize,
    /// Its elements before slicing; not zero.
    pub numel: Elements,
    /// p: the elements that each rank sets aside for it.
    pub slot: Elements,
    /// Where the slot begins in the sub-group.
    pub offset: Elements,
}

/// Parameters whose slices share one master buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubGroup {
    /// The optimizer group that it is part of.
    pub group: usize,
    /// Who holds the slices.
    pub over: PartitionOver,
    /// How many hold one: W.
    pub partitions: NonZeroU64,
    /// Where it begins in the buffer of all slices.
    pub offset: Elements,
    /// Its length: the sum of the slots.
    pub length: Elements,
    /// Its parameters, by address.
    pub entries: Vec<SliceEntry>,
}

impl SliceEntry {
    /// The slice that position `position` of the partition group holds: first element and length. Positions past
    /// the end hold none.
    #[must_use]
    pub fn held(&self, position: u64) -> (Elements, Elements) {
        let first = self.slot.0.saturating_mul(position).min(self.numel.0);
        let end = (first + self.slot.0).min(self.numel.0);
        (Elements(first), Elements(end - first))
    }
}

impl SubGroup {
    /// What lies in the sub-group at a position of its partition group, by address.
    pub fn fragments(&self, position: u64) -> impl Iterator<Item = Fragment> {
        self.entries.iter().filter_map(move |entry| {
            let (first, length) = entry.held(position);
            let (parameter, offset) = (entry.parameter, entry.offset);
            (length.0 > 0).then_some(Fragment { parameter, offset, first, length })
        })
    }
}

/// A shard to slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceShard {
    /// The parameter.
    pub parameter: usize,
    /// Its elements.
    pub numel: Elements,
    /// Who holds its slices.
    pub over: PartitionOver,
    /// How many hold one: W.
    pub partitions: NonZeroU64,
}

impl SliceShard {
    /// p = ceil(numel / W).
    #[must_use]
    pub fn slot(&self) -> Elements {
        Elements(self.numel.0.div_ceil(self.partitions.get()))
    }
}

/// Lays out optimizer groups of shards, each in optimizer order. Empty shards are left out.
///
/// A group is split by who partitions its parameters, in order of first appearance; each part is closed into
/// sub-groups whenever at least `sub_group_size` elements of a rank have come together.
#[must_use]
pub fn sub_groups(groups: &[Vec<SliceShard>], sub_group_size: Elements) -> Vec<SubGroup> {
    let mut list: Vec<SubGroup> = Vec::new();
    let mut offset = Elements(0);
    for (group, shards) in groups.iter().enumerate() {
        let mut parts: Vec<Vec<&SliceShard>> = Vec::new();
        for shard in shards.iter().filter(|shard| shard.numel.0 > 0) {
            match parts.iter_mut().find(|part| part[0].over == shard.over) {
                Some(part) => part.push(shard),
                None => parts.push(vec![shard]),
            }
        }
        for part in parts {
            for shards in close(&part, sub_group_size) {
                let sub_group = sub_group(group, offset, shards);
                offset += sub_group.length;
                list.push(sub_group);
            }
        }
    }
    list
}

/// Cuts a list after each shard with which the slots since the last cut reach `size`.
fn close<'a, 'b>(shards: &'a [&'b SliceShard], size: Elements) -> Vec<&'a [&'b SliceShard]> {
    let mut closed = Vec::new();
    let (mut start, mut sum) = (0, Elements(0));
    for (index, shard) in shards.iter().enumerate() {
        sum += shard.slot();
        if sum >= size || index + 1 == shards.len() {
            closed.push(&shards[start..=index]);
            (start, sum) = (index + 1, Elements(0));
        }
    }
    closed
}

fn sub_group(group: usize, offset: Elements, shards: &[&SliceShard]) -> SubGroup {
    let (over, partitions) = (shards[0].over, shards[0].partitions);
    let mut length = Elements(0);
    let mut entries = Vec::with_capacity(shards.len());
    for shard in shards {
        let (parameter, numel, slot) = (shard.parameter, shard.numel, shard.slot());
        entries.push(SliceEntry { parameter, numel, slot, offset: length });
        length += slot;
    }
    SubGroup { group, over, partitions, offset, length, entries }
}

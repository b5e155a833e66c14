//! Plans made by hand, and what moving them must give, worked out one element at a time.
//!
//! Every byte of a source encodes its storage, its position and a round; every byte of a target starts as 0xFF,
//! so that a byte that should not have been touched, or was not written, is seen.

use reshard_layout::{
    Buffer, BufferId, Bytes, DType, Dims, Elements, Fill, Parameter, ParameterId, Places, Rank, Storage,
    StorageId, address, coordinate, volume,
};
use reshard_plan::{Copy, End, Plan, Policy, Statistics};

/// What a target holds before anything was moved.
pub(crate) const UNTOUCHED: u8 = 0xFF;

/// One copy, before it has a place: ranks, type, shape, and strides on both sides.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<u64>,
    pub(crate) source: Vec<u64>,
    pub(crate) target: Vec<u64>,
}

/// Copies of all kinds, between three ranks: each line is one that has been got wrong somewhere.
pub(crate) fn all_kinds() -> Vec<Wanted> {
    let wanted = |from, to, dtype, shape: &[u64], source: &[u64], target: &[u64]| Wanted {
        from,
        to,
        dtype,
        shape: shape.to_vec(),
        source: source.to_vec(),
        target: target.to_vec(),
    };
    vec![
        // A scalar, and a vector of one, next to each other.
        wanted(0, 1, DType::F32, &[], &[], &[]),
        wanted(1, 0, DType::F64, &[1], &[1], &[1]),
        // Nothing at all, with and without other axes.
        wanted(2, 0, DType::Bf16, &[0], &[1], &[1]),
        wanted(0, 2, DType::F32, &[3, 0, 2], &[0, 2, 1], &[0, 2, 1]),
        // One block; columns out of a wide matrix; columns into one.
        wanted(0, 1, DType::Bf16, &[4, 6], &[6, 1], &[6, 1]),
        wanted(0, 0, DType::F32, &[5, 3], &[8, 1], &[3, 1]),
        wanted(1, 2, DType::F16, &[5, 3], &[3, 1], &[11, 1]),
        // Transposed on one side, on the other, and on both.
        wanted(2, 1, DType::F64, &[4, 7], &[1, 4], &[7, 1]),
        wanted(2, 0, DType::F8E4m3, &[4, 7], &[7, 1], &[1, 4]),
        wanted(1, 1, DType::I64, &[4, 7], &[1, 4], &[1, 4]),
        // Single elements of each size, far apart.
        wanted(0, 2, DType::U8, &[9], &[5], &[2]),
        wanted(0, 2, DType::Bf16, &[9], &[5], &[2]),
        wanted(0, 2, DType::I32, &[9], &[5], &[2]),
        wanted(0, 2, DType::F64, &[9], &[5], &[2]),
        // A window of a stack of matrices; four axes; axes of one between others.
        wanted(1, 0, DType::Bf16, &[3, 2, 4], &[40, 8, 1], &[8, 4, 1]),
        wanted(2, 2, DType::F32, &[2, 3, 2, 5], &[90, 30, 12, 2], &[30, 10, 5, 1]),
        wanted(1, 2, DType::F32, &[2, 1, 3, 1], &[7, 999, 1, 999], &[3, 1, 1, 1]),
    ]
}

/// A plan, with the means to fill its sources and to know its targets.
#[derive(Clone, Debug)]
pub(crate) struct Fixture {
    pub(crate) plan: Plan,
}

impl Fixture {
    /// Gives each copy a buffer of its own, on either side of its rank's two storages.
    pub(crate) fn new(size: u32, wanted: &[Wanted]) -> Self {
        let (mut source, mut target) = (storages(size), storages(size));
        let mut copies = Vec::new();
        for (index, copy) in wanted.iter().enumerate() {
            let box_of = |strides: &[u64]| {
                let last: u64 = copy
                    .shape
                    .iter()
                    .zip(strides)
                    .map(|(extent, stride)| extent.saturating_sub(1) * stride)
                    .sum();
                if volume(&copy.shape) == Some(0) { 0 } else { last + 1 }
            };
            let source_end =
                place(&mut source, copy.from, index, copy.dtype, box_of(&copy.source), &copy.source);
            let target_end =
                place(&mut target, copy.to, index, copy.dtype, box_of(&copy.target), &copy.target);
            copies.push(Copy {
                source: source_end,
                target: target_end,
                shape: Dims::from_slice(&copy.shape),
                parameter: ParameterId(index as u32),
                origin: Dims::from_elem(0, copy.shape.len()),
            });
        }
        let fills = (0..size).flat_map(|rank| paddings(&mut target, rank)).collect();
        let plan = Plan {
            version: Plan::VERSION,
            fingerprint: 0x00C0_FFEE,
            policy: Policy::default(),
            cast: false,
            source,
            target,
            copies,
            fills,
            parameters: (0..wanted.len()).map(named).collect(),
            statistics: Statistics::default(),
        };
        Self { plan }
    }

    /// What a source storage holds in a round.
    pub(crate) fn source_bytes(&self, id: StorageId, round: u64) -> Vec<u8> {
        let length = self.plan.source.storage(id).length.0;
        (0..length).map(|at| byte(id, at, round)).collect()
    }

    /// What a target storage must hold once the sources of a round were moved into fresh targets.
    pub(crate) fn expected(&self, id: StorageId, round: u64) -> Vec<u8> {
        let mut bytes = vec![UNTOUCHED; self.plan.target.storage(id).length.0 as usize];
        for copy in &self.plan.copies {
            let target = self.plan.target.buffer(copy.target.buffer);
            let source = self.plan.source.buffer(copy.source.buffer);
            if target.storage != id {
                continue;
            }
            for flat in 0..volume(&copy.shape).unwrap() {
                let at = coordinate(flat, &copy.shape);
                let element = target.dtype.size();
                let position = |buffer: &Buffer, end: &End| {
                    buffer.offset.0 + element * (end.offset.0 + address(&at, &end.strides))
                };
                let (read, written) = (position(source, &copy.source), position(target, &copy.target));
                for part in 0..element {
                    bytes[(written + part) as usize] = byte(source.storage, read + part, round);
                }
            }
        }
        for fill in &self.plan.fills {
            let buffer = self.plan.target.buffer(fill.buffer);
            for flat in 0..volume(&fill.shape).unwrap() {
                let element = fill.offset.0 + address(&coordinate(flat, &fill.shape), &fill.strides);
                let at = (buffer.offset.0 + element * buffer.dtype.size()) as usize;
                if buffer.storage == id {
                    bytes[at..at + fill.value.len()].copy_from_slice(&fill.value);
                }
            }
        }
        bytes
    }

    /// Bytes that a rank receives from itself and from others.
    pub(crate) fn bytes_into(&self, rank: Option<Rank>) -> (Bytes, Bytes) {
        let (mut local, mut sent) = (Bytes(0), Bytes(0));
        for copy in &self.plan.copies {
            let (from, to) = (self.plan.source_rank(copy), self.plan.target_rank(copy));
            if rank.is_none_or(|rank| rank == to) {
                let total = if from == to { &mut local } else { &mut sent };
                *total += copy.elements().bytes(self.plan.target.buffer(copy.target.buffer).dtype);
            }
        }
        (local, sent)
    }

    /// The storages of one side that one rank, or all, own.
    pub(crate) fn owned(places: &Places, rank: Option<Rank>) -> Vec<(StorageId, Bytes)> {
        let ids = (0u32..).map(StorageId).zip(&places.storages);
        ids.filter(|(_, storage)| rank.is_none_or(|rank| rank == storage.rank))
            .map(|(id, storage)| (id, storage.length))
            .collect()
    }
}

fn byte(storage: StorageId, at: u64, round: u64) -> u8 {
    // Below 0xFF, and different for neighbours, storages and rounds.
    ((at * 7 + at / 251 + u64::from(storage.0) * 53 + round * 101) % 251) as u8
}

/// Three storages a rank: two that are filled with buffers, and one without a byte.
fn storages(size: u32) -> Places {
    let mut places = Places::default();
    for rank in 0..size {
        for name in ["flat", "extra", "empty"] {
            places.storages.push(Storage { rank: Rank(rank), name: name.to_owned(), length: Bytes(0) });
        }
    }
    places
}

/// A buffer with a margin before and after the box; empty boxes get an empty buffer of the empty storage.
fn place(places: &mut Places, rank: u32, index: usize, dtype: DType, elements: u64, strides: &[u64]) -> End {
    let which = if elements == 0 { 2 } else { index as u32 % 2 };
    let margin = if elements == 0 { 0 } else { 1 + index as u64 % 3 };
    let id = StorageId(3 * rank + which);
    let storage = &mut places.storages[id.index()];
    let offset = Bytes(storage.length.0.next_multiple_of(8));
    let length = Elements(elements + 2 * margin);
    storage.length = offset + length.bytes(dtype);
    let buffer = BufferId(places.buffers.len() as u32);
    places.buffers.push(Buffer { storage: id, offset, dtype, length });
    End { buffer, offset: Elements(margin), strides: Dims::from_slice(strides) }
}

/// Padding of every kind: a run, every other element of some rows, one element, none.
fn paddings(places: &mut Places, rank: u32) -> Vec<Fill> {
    type Kind<'a> = (DType, &'a [u64], &'a [u64], &'a [u8]);
    let kinds: [Kind<'_>; 4] = [
        (DType::Bf16, &[7], &[1], &[0x12, 0x34]),
        (DType::F32, &[2, 3], &[9, 2], &[1, 2, 3, 4]),
        (DType::F64, &[], &[], &[1, 2, 3, 4, 5, 6, 7, 8]),
        (DType::U8, &[3, 0], &[1, 1], &[9]),
    ];
    let fill = |(index, (dtype, shape, strides, value)): (usize, Kind<'_>)| {
        let last: u64 =
            shape.iter().zip(strides).map(|(extent, stride)| extent.saturating_sub(1) * stride).sum();
        let end = place(places, rank, index, dtype, last + 1, strides);
        Fill {
            buffer: end.buffer,
            offset: end.offset,
            shape: Dims::from_slice(shape),
            strides: Dims::from_slice(strides),
            value: value.to_vec(),
        }
    };
    kinds.into_iter().enumerate().map(fill).collect()
}

/// Memory that is aligned for every type.
#[derive(Clone, Debug)]
pub(crate) struct Aligned {
    words: Vec<u64>,
    length: usize,
}

impl Aligned {
    pub(crate) fn untouched(length: Bytes) -> Self {
        let length = length.0 as usize;
        Self { words: vec![u64::MAX; length.div_ceil(8)], length }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}

/// The parameter of a holding; its shape and dtype are for reports only.
fn named(index: usize) -> Parameter {
    Parameter { name: format!("parameter.{index}"), shape: Dims::new(), dtype: DType::F32 }
}

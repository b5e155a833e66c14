//! All storages of one side as bytes, each element saying which it is, and the dumb way to carry out shares.
//!
//! ```text
//!   of(layout)        every element in its place       untouched(layout)   0xFF everywhere (NaN)
//!   carry_out(...)    send boxes ─► bytes of a message ─► receive boxes, one element at a time
//! ```

use std::collections::BTreeMap;

use half::{bf16, f16};
use reshard_layout::{
    BufferId, Bytes, DType, GeometryId, Layout, LayoutBuilder, Places, Rank, address, coordinate,
};
use reshard_plan::{Plan, Share, WireBox};

/// What no element looks like.
const UNTOUCHED: u8 = 0xFF;

/// Bytes of each storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memory(Vec<Vec<u8>>);

/// The bytes of an element. As floats they are exact in each type: eight significant bits, and a power of two
/// that tells parameters apart.
fn element(dtype: DType, parameter: usize, flat: u64) -> Vec<u8> {
    let value = (flat + 1) as f64 / 256f64.powi(parameter as i32);
    match dtype {
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        _ => (flat + (parameter as u64 * 85 + 1)).to_le_bytes()[..dtype.size() as usize].to_vec(),
    }
}

/// What a cast must give, of values that both types have.
fn cast(bytes: &[u8], from: DType, to: DType) -> Vec<u8> {
    if from == to {
        return bytes.to_vec();
    }
    let value = match from {
        DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        DType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        DType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        other => panic!("a cast from {other}"),
    };
    match to {
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        other => panic!("a cast to {other}"),
    }
}

impl Memory {
    pub(crate) fn untouched(layout: &Layout) -> Self {
        let storages = layout.places().storages.iter();
        Self(storages.map(|storage| vec![UNTOUCHED; storage.length.0 as usize]).collect())
    }

    /// Every element of the layout in its place.
    pub(crate) fn of(layout: &Layout) -> Self {
        let mut memory = Self::untouched(layout);
        for piece in layout.pieces() {
            let parameter = layout.parameter(piece.parameter);
            for within in 0..piece.region.volume() {
                let within = coordinate(within, piece.region.extent());
                let at = within.iter().zip(piece.region.origin()).map(|(at, from)| at + from);
                let flat = at.zip(&parameter.shape).fold(0, |sum, (at, extent)| sum * extent + at);
                let offset = piece.offset.0 + address(&within, piece.strides);
                let bytes = element(parameter.dtype, piece.parameter.index(), flat);
                memory.at(layout.places(), piece.buffer, offset).copy_from_slice(&bytes);
            }
        }
        memory
    }

    fn at(&mut self, places: &Places, buffer: BufferId, offset: u64) -> &mut [u8] {
        let window = places.buffer(buffer);
        let size = window.dtype.size();
        assert!(offset < window.length.0, "element {offset} of {} of buffer {}", window.length, buffer.0);
        let start = (window.offset.0 + offset * size) as usize;
        &mut self.0[window.storage.index()][start..start + size as usize]
    }

    /// Carries out the shares of all ranks, round by round; messages of a pair are matched by their order.
    pub(crate) fn carry_out(&mut self, plan: &Plan, shares: &[Share], source: &Self) {
        let mut source = source.clone();
        for copy in shares.iter().flat_map(|share| &share.local) {
            for flat in 0..copy.shape.iter().product() {
                let at = coordinate(flat, &copy.shape);
                let (from, to) = (&copy.source, &copy.target);
                let types = (plan.source.buffer(from.buffer).dtype, plan.target.buffer(to.buffer).dtype);
                let read = source.at(&plan.source, from.buffer, from.offset.0 + address(&at, &from.strides));
                let bytes = cast(read, types.0, types.1);
                let written = to.offset.0 + address(&at, &to.strides);
                self.at(&plan.target, to.buffer, written).copy_from_slice(&bytes);
            }
        }
        let mut sent: BTreeMap<(Rank, Rank), Vec<Vec<u8>>> = BTreeMap::new();
        for (rank, share) in (0..).map(Rank).zip(shares) {
            for message in share.rounds.iter().filter_map(|round| round.send.as_ref()) {
                let mut bytes = vec![UNTOUCHED; message.bytes.0 as usize];
                for part in &message.boxes {
                    source.walk(&plan.source, part, |own, dtype, position| {
                        let wire = cast(own, dtype, part.wire);
                        bytes[position..position + wire.len()].copy_from_slice(&wire);
                    });
                }
                sent.entry((rank, message.peer)).or_default().push(bytes);
            }
        }
        for (rank, share) in (0..).map(Rank).zip(shares) {
            let mut taken: BTreeMap<Rank, usize> = BTreeMap::new();
            for message in share.rounds.iter().filter_map(|round| round.receive.as_ref()) {
                let nth = taken.entry(message.peer).or_default();
                let bytes = &sent[&(message.peer, rank)][*nth];
                *nth += 1;
                assert_eq!(bytes.len() as u64, message.bytes.0);
                for part in &message.boxes {
                    self.walk(&plan.target, part, |own, dtype, position| {
                        let wire = &bytes[position..position + part.wire.size() as usize];
                        own.copy_from_slice(&cast(wire, part.wire, dtype));
                    });
                }
            }
        }
    }

    /// Each element of a box in row-major order: its bytes, their type, and its position in the message.
    fn walk(&mut self, places: &Places, part: &WireBox, mut visit: impl FnMut(&mut [u8], DType, usize)) {
        let dtype = places.buffer(part.buffer).dtype;
        for flat in 0..part.shape.iter().product() {
            let offset = part.offset.0 + address(&coordinate(flat, &part.shape), &part.strides);
            let position = (part.position.0 + flat * part.wire.size()) as usize;
            visit(self.at(places, part.buffer, offset), dtype, position);
        }
    }
}

/// The same layout with other types, by the position of each parameter. Each storage must be of one parameter
/// and have one buffer.
pub(crate) fn retyped(layout: &Layout, dtype: impl Fn(usize) -> DType) -> Layout {
    let mut builder = LayoutBuilder::new();
    for (id, parameter) in layout.parameters() {
        builder.parameter(&parameter.name, parameter.shape.iter().copied(), dtype(id.index()));
    }
    let mut types: BTreeMap<BufferId, DType> = BTreeMap::new();
    for instance in layout.parameters().flat_map(|(id, _)| layout.instances(id)) {
        types.insert(instance.buffer, dtype(instance.parameter.index()));
    }
    for (id, buffer) in (0u32..).map(BufferId).zip(&layout.places().buffers) {
        let storage = layout.places().storage(buffer.storage);
        let dtype = types.get(&id).copied().unwrap_or(buffer.dtype);
        let added = builder.storage(storage.rank, &storage.name, buffer.length.bytes(dtype));
        assert_eq!((added, buffer.offset), (buffer.storage, Bytes(0)));
        builder.buffer(added, Bytes(0), dtype, buffer.length);
    }
    let mut geometries: BTreeMap<GeometryId, GeometryId> = BTreeMap::new();
    for (id, _) in layout.parameters() {
        for instance in layout.instances(id) {
            let geometry = *geometries
                .entry(instance.geometry)
                .or_insert_with(|| builder.geometry(layout.geometry(instance.geometry).clone()));
            builder.place(id, instance.buffer, instance.base, geometry);
        }
    }
    builder.build().unwrap()
}

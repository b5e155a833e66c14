//! Windows of target storages against a loop over every element.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use half::{bf16, f16};
use proptest::prelude::*;
use reshard_layout::strategies::layout_pairs;
use reshard_layout::{
    Block, Bytes, DType, Dims, Elements, Fill, Geometry, Layout, LayoutBuilder, Rank, Region, StorageId,
    address, coordinate, row_major,
};
use reshard_plan::{Options, Plan, Policy};
use reshard_transport::{Assembly, FillError, ReadAt};

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::Bf16];

/// Storages in memory; counts reads and bytes.
struct Memory {
    storages: Vec<Vec<u8>>,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl Memory {
    fn new(storages: Vec<Vec<u8>>) -> Self {
        Self { storages, reads: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }
}

impl ReadAt for Memory {
    fn read_at(&self, storage: StorageId, offset: Bytes, into: &mut [u8]) -> std::io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
        let at = offset.0 as usize;
        let found = self.storages[storage.index()].get(at..at + into.len());
        into.copy_from_slice(found.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// The bits of an element: a number that says where it is, among them NaN, infinities and subnormals.
fn value(parameter: &str, flat: u64) -> u64 {
    let name = parameter.bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let mut bits = (flat + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ name.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits ^= bits >> 29;
    bits = bits.wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 32)
}

/// The bytes of an element in a type; every eleventh is a number that rounding has to decide about.
fn element(parameter: &str, flat: u64, dtype: DType) -> Vec<u8> {
    let bits = value(parameter, flat);
    let near = 1.0 + (bits % 512) as f64 / 256.0;
    let is_near = bits.is_multiple_of(11);
    match dtype {
        DType::F64 if is_near => near.to_le_bytes().to_vec(),
        DType::F32 if is_near => (near as f32).to_le_bytes().to_vec(),
        _ => bits.to_le_bytes()[..dtype.size() as usize].to_vec(),
    }
}

/// What `half` and the language make of an element. From f64 to 16 bits they round the f32 that is nearest, which is
/// the same where that is exact; other values are left to the tests beside the code.
fn cast(bytes: &[u8], from: DType, to: DType) -> Option<Vec<u8>> {
    if from == to {
        return Some(bytes.to_vec());
    }
    let wide = match from {
        DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        DType::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
        DType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).into(),
        _ => bf16::from_le_bytes(bytes.try_into().unwrap()).into(),
    };
    let is_exact = f64::from(wide as f32) == wide || wide.is_nan();
    match to {
        DType::F64 => Some(wide.to_le_bytes().to_vec()),
        DType::F32 => Some((wide as f32).to_le_bytes().to_vec()),
        DType::F16 => is_exact.then(|| f16::from_f32(wide as f32).to_le_bytes().to_vec()),
        _ => is_exact.then(|| bf16::from_f32(wide as f32).to_le_bytes().to_vec()),
    }
}

/// The same layout with elements of another type, each buffer `shift` bytes further into its storage, and what lies
/// before each holding padded with `pad` where that is asked for.
fn retyped(layout: &Layout, dtype: DType, shift: u64, pad: Option<u8>) -> Layout {
    let mut builder = LayoutBuilder::new();
    let places = layout.places();
    for storage in &places.storages {
        let elements = storage.length.0 / DType::F32.size();
        let length = Bytes(shift + elements * dtype.size() + 3);
        builder.storage(storage.rank, &storage.name, length);
    }
    let buffers: Vec<_> = places
        .buffers
        .iter()
        .map(|buffer| builder.buffer(buffer.storage, Bytes(shift), dtype, buffer.length))
        .collect();
    for (id, parameter) in layout.parameters() {
        let new = builder.parameter(&parameter.name, parameter.shape.iter().copied(), dtype);
        for instance in layout.instances(id) {
            let geometry = builder.geometry(layout.geometry(instance.geometry).clone());
            let buffer = buffers[instance.buffer.index()];
            builder.place(new, buffer, instance.base, geometry);
            if let Some(pad) = pad.filter(|_| instance.base.0 > 0) {
                let (offset, shape) = (Elements(0), Dims::from_slice(&[instance.base.0]));
                let value = (0..dtype.size() as u8).map(|byte| pad + byte).collect();
                builder.fill(Fill { buffer, offset, shape, strides: Dims::from_slice(&[1]), value });
            }
        }
    }
    builder.build().unwrap()
}

/// The bytes of every element of a layout: storage, first byte, name of the parameter, flat index in it.
fn elements(layout: &Layout) -> Vec<(usize, usize, String, u64)> {
    let mut found = Vec::new();
    for piece in layout.pieces() {
        let parameter = layout.parameter(piece.parameter);
        let buffer = layout.places().buffer(piece.buffer);
        let strides = row_major(&parameter.shape);
        for local in 0..piece.region.volume() {
            let at = coordinate(local, piece.region.extent());
            let global: Vec<u64> = at.iter().zip(piece.region.origin()).map(|(at, from)| at + from).collect();
            let element = piece.offset.0 + address(&at, piece.strides);
            let byte = buffer.offset.0 + element * buffer.dtype.size();
            let flat = address(&global, &strides);
            found.push((buffer.storage.index(), byte as usize, parameter.name.clone(), flat));
        }
    }
    found
}

fn storages(layout: &Layout, poison: u8) -> Vec<Vec<u8>> {
    layout.places().storages.iter().map(|storage| vec![poison; storage.length.0 as usize]).collect()
}

fn source_memory(layout: &Layout, dtype: DType) -> Memory {
    let mut memory = storages(layout, 0xee);
    for (storage, byte, parameter, flat) in elements(layout) {
        let bytes = element(&parameter, flat, dtype);
        memory[storage][byte..byte + bytes.len()].copy_from_slice(&bytes);
    }
    Memory::new(memory)
}

/// Windows of a storage: cut at fractions of its length, moved down to a whole element if need be.
fn windows(length: u64, cuts: &[f64], shift: u64, size: u64) -> Vec<Range<u64>> {
    let cut = |cut: &f64| {
        let byte = (length as f64 * cut) as u64;
        if size == 1 { byte } else { shift + byte.saturating_sub(shift) / size * size }
    };
    let mut ends: Vec<u64> = cuts.iter().map(cut).map(|end| end.min(length)).collect();
    ends.sort_unstable();
    ends.push(length);
    let starts = std::iter::once(0).chain(ends.clone());
    starts.zip(ends.clone()).map(|(start, end)| start..end).collect()
}

/// Fills all target storages window by window.
fn assembled(plan: &Plan, sources: &dyn ReadAt, cuts: &[f64], shift: u64, scratch: usize) -> Vec<Vec<u8>> {
    let assembly = Assembly::new(plan).unwrap();
    let mut scratch = vec![0x55; scratch];
    let size = if plan.cast { 8 } else { 1 };
    let storages = plan.target.storages.iter().enumerate();
    storages
        .map(|(index, storage)| {
            let mut memory = vec![0xaa; storage.length.0 as usize];
            for window in windows(storage.length.0, cuts, shift, size) {
                let into = &mut memory[window.start as usize..window.end as usize];
                let id = StorageId(index as u32);
                let before = into.to_vec();
                let may_write = assembly.reaches(id, window.clone());
                assembly.fill(id, window, sources, into, &mut scratch).unwrap();
                assert!(may_write || before == into, "what is said not to be reached is not written");
            }
            memory
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_window_holds_what_its_elements_hold(
        (source, target) in layout_pairs(),
        dtype in prop::sample::select(vec![DType::F64, DType::F32, DType::Bf16, DType::U8]),
        shifts in (prop::sample::select(vec![0u64, 8, 24]), prop::sample::select(vec![0u64, 8, 24])),
        cuts in prop::collection::vec(0.0..1.0f64, 0..6),
        scratch in 8usize..300,
        pads in any::<bool>(),
    ) {
        let source = retyped(&source, dtype, shifts.0, None);
        let target = retyped(&target, dtype, shifts.1, pads.then_some(0x30));
        let plan = reshard_plan::plan(&source, &target, Policy::Lowest).unwrap();
        let mut expected = storages(&target, 0xaa);
        for fill in target.fills() {
            let buffer = target.places().buffer(fill.buffer);
            for at in 0..fill.shape[0] {
                let byte = (buffer.offset.0 + at * dtype.size()) as usize;
                expected[buffer.storage.index()][byte..byte + fill.value.len()].copy_from_slice(&fill.value);
            }
        }
        for (storage, byte, parameter, flat) in elements(&target) {
            let bytes = element(&parameter, flat, dtype);
            expected[storage][byte..byte + bytes.len()].copy_from_slice(&bytes);
        }
        let sources = source_memory(&source, dtype);
        prop_assert_eq!(assembled(&plan, &sources, &cuts, 0, scratch), expected);
    }

    #[test]
    fn casts_round_every_element_as_half_does(
        (source, target) in layout_pairs(),
        types in (prop::sample::select(FLOATS.to_vec()), prop::sample::select(FLOATS.to_vec())),
        cuts in prop::collection::vec(0.0..1.0f64, 0..6),
        shift in prop::sample::select(vec![0u64, 8, 24]),
        scratch in 8usize..300,
    ) {
        let source = retyped(&source, types.0, shift, None);
        let target = retyped(&target, types.1, shift, None);
        let plan = Options::new(Policy::Lowest).cast(true).plan(&source, &target).unwrap();
        let sources = source_memory(&source, types.0);
        let found = assembled(&plan, &sources, &cuts, shift, scratch);
        for (storage, byte, parameter, flat) in elements(&target) {
            let from = element(&parameter, flat, types.0);
            let Some(expected) = cast(&from, types.0, types.1) else { continue };
            let found = &found[storage][byte..byte + expected.len()];
            prop_assert_eq!(found, &expected[..], "{} {} of {:?}", parameter, flat, from);
        }
    }
}

/// A matrix held whole, or cut by columns over two ranks.
fn matrix(rows: u64, columns: u64, parts: u64, dtype: DType) -> Layout {
    let mut builder = LayoutBuilder::new();
    let w = builder.parameter("w", [rows, columns], dtype);
    for part in 0..parts {
        let width = columns / parts;
        let storage = builder.storage(Rank(part as u32), "w", Elements(rows * width).bytes(dtype));
        let buffer = builder.buffer(storage, Bytes(0), dtype, Elements(rows * width));
        let region = Region::new([0, part * width], [rows, width]);
        let geometry = builder.geometry(Geometry::new([rows, columns], [Block::dense(region, Elements(0))]));
        builder.place(w, buffer, Elements(0), geometry);
    }
    builder.build().unwrap()
}

/// Reads and bytes for all of a target in windows of 64 KiB.
fn cost(source: &Layout, target: &Layout, scratch: usize) -> (u64, u64) {
    let plan = reshard_plan::plan(source, target, Policy::Lowest).unwrap();
    let dtype = source.parameters().next().unwrap().1.dtype;
    let sources = source_memory(source, dtype);
    let length = plan.target.storages[0].length.0;
    let cuts: Vec<f64> = (1..length >> 16).map(|at| (at << 16) as f64 / length as f64).collect();
    let found = assembled(&plan, &sources, &cuts, 0, scratch);
    let expected = source_memory(target, dtype).storages;
    assert!(found == expected);
    (sources.reads.into_inner(), sources.bytes.into_inner())
}

#[test]
fn contiguous_shards_are_read_once() {
    let whole = matrix(256, 1024, 1, DType::F32);
    let bytes = 256 * 1024 * 4;
    // One block on both sides: a read a window, no byte twice.
    assert_eq!(cost(&whole, &whole, 8), (bytes >> 16, bytes));
    // Two column halves put together: the rows of each lie one after another, so that a window takes two reads.
    assert_eq!(cost(&matrix(256, 1024, 2, DType::F32), &whole, 1 << 16), (2 * (bytes >> 16), bytes));
    // Rows of 16 KiB go straight to where they belong, whatever scratch there is.
    let wide = matrix(64, 8192, 1, DType::F32);
    assert_eq!(cost(&matrix(64, 8192, 2, DType::F32), &wide, 8), (128, 64 * 8192 * 4));
}

#[test]
fn columns_are_read_with_what_lies_between_or_block_by_block() {
    // Half of each row, rows of 512 bytes: the gaps cost less than 127 reads more.
    let (reads, bytes) = cost(&matrix(512, 128, 1, DType::F32), &matrix(512, 128, 2, DType::F32), 1 << 20);
    let needed = 512 * 128 * 4;
    assert!(reads <= 2 * 4 && bytes <= 2 * needed, "{reads} reads, {bytes} bytes of {needed}");
    // Half of each row, rows of 64 KiB: reading the other half would cost more than a read.
    let (reads, bytes) = cost(&matrix(32, 16384, 1, DType::F32), &matrix(32, 16384, 2, DType::F32), 1 << 20);
    assert_eq!((reads, bytes), (64, 32 * 16384 * 4));
}

#[test]
fn windows_that_do_not_fit_are_refused() {
    let (source, target) = (matrix(4, 4, 1, DType::F32), matrix(4, 4, 1, DType::Bf16));
    let plan = Options::new(Policy::Lowest).cast(true).plan(&source, &target).unwrap();
    let assembly = Assembly::new(&plan).unwrap();
    let sources = source_memory(&source, DType::F32);
    let fill = |storage: u32, window: Range<u64>, length: usize, scratch: usize| {
        let (mut into, mut scratch) = (vec![0; length], vec![0; scratch]);
        assembly.fill(StorageId(storage), window, &sources, &mut into, &mut scratch).unwrap_err()
    };
    assert!(matches!(
        fill(0, 0..3, 3, 64),
        FillError::WindowCutsElement { at: Bytes(2), size: Bytes(2), begin: Bytes(0), end: Bytes(3) }
    ));
    assert!(matches!(fill(0, 0..40, 40, 64), FillError::WindowMisplaced { length: Bytes(32), .. }));
    assert!(matches!(fill(0, 0..8, 4, 64), FillError::WindowMisplaced { found: Bytes(4), .. }));
    assert!(matches!(fill(7, 0..8, 8, 64), FillError::WindowMisplaced { length: Bytes(0), .. }));
    assert!(matches!(fill(0, 0..8, 8, 7), FillError::ScratchTooSmall { found: Bytes(7) }));
    let short = Memory::new(vec![vec![0; 8]]);
    let error = assembly.fill(StorageId(0), 0..32, &short, &mut [0; 32], &mut [0; 64]).unwrap_err();
    assert!(matches!(error, FillError::SourceUnreadable { rank: Rank(0), .. }), "{error}");
}

#[test]
fn interleaved_target_strides_are_carried_out() {
    // Element (i, j) lies at 3 i + 2 j: neither axis lies inside a step of the other.
    let mut builder = LayoutBuilder::new();
    let w = builder.parameter("w", [2, 3], DType::U8);
    let storage = builder.storage(Rank(0), "w", Bytes(8));
    let buffer = builder.buffer(storage, Bytes(0), DType::U8, Elements(8));
    let block = Block::new(Region::whole(&[2, 3]), Elements(0), [3, 2]);
    let geometry = builder.geometry(Geometry::new([2, 3], [block]));
    builder.place(w, buffer, Elements(0), geometry);
    let target = builder.build().unwrap();
    let source = matrix(2, 3, 1, DType::U8);
    let plan = reshard_plan::plan(&source, &target, Policy::Lowest).unwrap();
    let sources = source_memory(&source, DType::U8);
    let dense = &sources.storages[0];
    let expected = vec![vec![dense[0], 0xaa, dense[1], dense[3], dense[2], dense[4], 0xaa, dense[5]]];
    for cut in 0..8 {
        let cuts = [f64::from(cut) / 8.0, f64::from(cut + 1) / 8.0];
        assert_eq!(assembled(&plan, &sources, &cuts, 0, 8), expected);
    }
}

//! Affine maps -> layout. Each shard becomes a storage of its own, named after its parameter.

use super::{AffineFault, AffineFile, AffineMap, AffinePiece, AffineShard, VERSION, holders};
use crate::error::LayoutError;
use crate::geometry::{Block, Geometry};
use crate::layout::{Layout, LayoutBuilder};
use crate::region::{Dims, Region, coordinate, row_major, volume};
use crate::runs::boxes_of_run;
use crate::units::{Bytes, DType, Elements, Rank};

/// Rows dealt in turn become one box a row, up to this many a piece.
const BOXES_PER_PIECE_MAX: u64 = 65_536;

impl AffineFile {
    /// Reads the JSON text of a layout file.
    ///
    /// # Errors
    /// [`LayoutError::LayoutFile`] if it is not of the form or of another version.
    pub fn from_json(text: &str) -> Result<Self, LayoutError> {
        let file: Self = serde_json::from_str(text)
            .map_err(|error| LayoutError::LayoutFile { cause: error.to_string() })?;
        if file.version != VERSION {
            let cause = format!("version {} is not {VERSION}", file.version);
            return Err(LayoutError::LayoutFile { cause });
        }
        Ok(file)
    }

    /// The layout that the maps describe.
    ///
    /// # Errors
    /// [`LayoutError`], naming the parameter.
    pub fn to_layout(&self) -> Result<Layout, LayoutError> {
        layout_of(self.parameters.iter().map(|(name, map)| (name.as_str(), map, self.dtype)))
    }
}

impl AffineMap {
    /// The layout of this one parameter.
    ///
    /// # Errors
    /// [`LayoutError`], naming the parameter.
    pub fn to_layout(&self, name: &str, dtype: DType) -> Result<Layout, LayoutError> {
        layout_of([(name, self, dtype)])
    }
}

/// The layout of parameters that are given by name, map and dtype.
///
/// # Errors
/// [`LayoutError`], naming the parameter.
pub fn layout_of<'a>(
    maps: impl IntoIterator<Item = (&'a str, &'a AffineMap, DType)>,
) -> Result<Layout, LayoutError> {
    let mut builder = LayoutBuilder::new();
    for (name, map, dtype) in maps {
        let fault = |fault| LayoutError::AffineMap { parameter: name.to_owned(), fault: Box::new(fault) };
        if volume(&map.logical_shape).and_then(|count| count.checked_mul(dtype.size())).is_none() {
            return Err(fault(AffineFault::TooLarge { shape: map.logical_shape.clone() }));
        }
        let parameter = builder.parameter(name, Dims::from_slice(&map.logical_shape), dtype);
        for Held { rank, shard, blocks } in held(map).map_err(fault)? {
            let elements = volume(&shard.shard_shape).unwrap_or(u64::MAX);
            let storage = builder.storage(Rank(rank), name, Bytes(elements.saturating_mul(dtype.size())));
            let buffer = builder.buffer(storage, Bytes(0), dtype, Elements(elements));
            let geometry = builder.geometry(Geometry::new(Dims::from_slice(&map.logical_shape), blocks));
            builder.place(parameter, buffer, Elements(0), geometry);
        }
    }
    builder.build()
}

/// What one rank of a map holds.
pub(super) struct Held<'a> {
    pub(super) rank: u32,
    pub(super) shard: &'a AffineShard,
    pub(super) blocks: Vec<Block>,
}

/// What each rank of a map holds, ascending by rank, after a check of the declared holders.
pub(super) fn held(map: &AffineMap) -> Result<Vec<Held<'_>>, AffineFault> {
    let mut shards: Vec<(u32, &AffineShard)> = Vec::new();
    for (key, shard) in &map.ranks {
        let rank = key.parse().map_err(|_| AffineFault::RankKey { key: key.clone() })?;
        shards.push((rank, shard));
    }
    shards.sort_by_key(|&(rank, _)| rank);
    let (mut all, mut declared) = (Vec::new(), Vec::new());
    for (rank, shard) in shards {
        let blocks = blocks_of_shard(rank, shard, &map.logical_shape)?;
        all.push(Held {
            rank,
            shard,
            blocks: blocks.iter().flat_map(|(_, blocks)| blocks).cloned().collect(),
        });
        declared.extend(
            blocks
                .into_iter()
                .flat_map(|(piece, blocks)| blocks.into_iter().map(move |block| (rank, piece, block.region))),
        );
    }
    holders::check(&map.logical_shape, &declared)?;
    Ok(all)
}

type PieceBlocks<'a> = Vec<(&'a AffinePiece, Vec<Block>)>;

fn blocks_of_shard<'a>(
    rank: u32,
    shard: &'a AffineShard,
    shape: &[u64],
) -> Result<PieceBlocks<'a>, AffineFault> {
    let Some(expected) = volume(&shard.shard_shape) else {
        return Err(AffineFault::TooLarge { shape: shard.shard_shape.clone() });
    };
    let mut blocks = Vec::new();
    let mut found = Some(0u64);
    for piece in &shard.pieces {
        let of_piece = blocks_of_piece(rank, piece, &shard.shard_shape, shape)?;
        found = of_piece.iter().fold(found, |sum, block| sum?.checked_add(block.region.volume()));
        blocks.push((piece, of_piece));
    }
    if found != Some(expected) {
        return Err(AffineFault::ShardNotFilled { rank, expected, found: found.unwrap_or(u64::MAX) });
    }
    Ok(blocks)
}

fn blocks_of_piece(
    rank: u32,
    piece: &AffinePiece,
    shard: &[u64],
    shape: &[u64],
) -> Result<Vec<Block>, AffineFault> {
    if shard.len() == 1 && shape.len() != 1 && piece.shape.len() == 1 && piece.source.1 == [1] {
        return blocks_of_run(rank, piece, shard, shape);
    }
    let axes = |what, found| {
        (found != shape.len()).then_some(AffineFault::Axes { rank, what, expected: shape.len(), found })
    };
    let wrong = axes("extents", piece.shape.len())
        .or_else(|| axes("source strides", piece.source.1.len()))
        .or_else(|| axes("dest strides", piece.dest.1.len()));
    if let Some(fault) = wrong {
        return Err(fault);
    }
    let extent = not_negative(rank, "extent", &piece.shape)?;
    if piece.locations.is_empty() {
        return Err(AffineFault::NoHolder { rank });
    }
    if extent.contains(&0) {
        return Ok(Vec::new());
    }
    let source_offset = not_negative(rank, "source offset", &[piece.source.0])?[0];
    let dest_offset = not_negative(rank, "dest offset", &[piece.dest.0])?[0];
    let dest_strides = not_negative(rank, "dest stride", &piece.dest.1)?;
    inside_shard(rank, dest_offset, &extent, &dest_strides, shard)?;
    let template = Block {
        region: Region::whole(&extent),
        offset: Elements(dest_offset),
        strides: dest_strides,
        scale: piece.scale.unwrap_or(1.0),
    };
    logical_boxes(rank, piece, source_offset, template, shape)
}

/// A flat piece of a flat shard: a run of the row-major parameter.
fn blocks_of_run(
    rank: u32,
    piece: &AffinePiece,
    shard: &[u64],
    shape: &[u64],
) -> Result<Vec<Block>, AffineFault> {
    if piece.locations.is_empty() {
        return Err(AffineFault::NoHolder { rank });
    }
    let extent = not_negative(rank, "extent", &piece.shape)?;
    if extent[0] == 0 {
        return Ok(Vec::new());
    }
    let start = not_negative(rank, "source offset", &[piece.source.0])?[0];
    let mut offset = not_negative(rank, "dest offset", &[piece.dest.0])?[0];
    let step = not_negative(rank, "dest stride", &piece.dest.1)?;
    if step.as_slice() != [1] {
        let (strides, shape) = (piece.dest.1.clone(), Dims::from_slice(shape));
        return Err(AffineFault::NotABox { rank, strides, extent, shape });
    }
    inside_shard(rank, offset, &extent, &step, shard)?;
    let total = volume(shape).unwrap_or(u64::MAX);
    let end = start.checked_add(extent[0]).filter(|&end| end <= total);
    let Some(end) = end else {
        let shape = Dims::from_slice(shape);
        return Err(AffineFault::Leaves { rank, what: "parameter", offset: start, extent, shape });
    };
    let scale = piece.scale.unwrap_or(1.0);
    let block = |region: Region| {
        let block = Block { scale, ..Block::dense(region, Elements(offset)) };
        offset += block.region.volume();
        block
    };
    Ok(boxes_of_run(shape, start..end).into_iter().map(block).collect())
}

fn not_negative(rank: u32, what: &'static str, values: &[i64]) -> Result<Dims, AffineFault> {
    let value = |&value: &i64| u64::try_from(value).map_err(|_| AffineFault::Negative { rank, what, value });
    values.iter().map(value).collect()
}

/// A block with the shard's own strides must be a box there: it may not run over the end of a row.
fn inside_shard(
    rank: u32,
    offset: u64,
    extent: &[u64],
    strides: &[u64],
    shard: &[u64],
) -> Result<(), AffineFault> {
    let own = row_major(shard);
    let in_frame = shard.len() == extent.len()
        && (0..extent.len()).all(|axis| extent[axis] == 1 || strides[axis] == own[axis]);
    let leaves = AffineFault::Leaves {
        rank,
        what: "shard",
        offset,
        extent: Dims::from_slice(extent),
        shape: Dims::from_slice(shard),
    };
    if offset >= volume(shard).unwrap_or(u64::MAX) {
        return Err(leaves);
    }
    let at = coordinate(offset, shard);
    if in_frame && (0..extent.len()).any(|axis| at[axis] + extent[axis] > shard[axis]) {
        return Err(leaves);
    }
    Ok(())
}

/// The boxes of the parameter that a piece covers: axes may be permuted, and rows may be dealt in turn.
fn logical_boxes(
    rank: u32,
    piece: &AffinePiece,
    offset: u64,
    template: Block,
    shape: &[u64],
) -> Result<Vec<Block>, AffineFault> {
    let extent = Dims::from_slice(template.region.extent());
    let not_a_box = || AffineFault::NotABox {
        rank,
        strides: piece.source.1.clone(),
        extent: extent.clone(),
        shape: Dims::from_slice(shape),
    };
    let leaves = || AffineFault::Leaves {
        rank,
        what: "parameter",
        offset,
        extent: extent.clone(),
        shape: Dims::from_slice(shape),
    };
    if offset >= volume(shape).unwrap_or(u64::MAX) {
        return Err(leaves());
    }
    let logical = row_major(shape);
    let origin = coordinate(offset, shape);
    let mut region_extent: Dims = shape.iter().map(|_| 1).collect();
    let mut strides: Dims = shape.iter().map(|_| 0).collect();
    let mut steps: Vec<(usize, u64, u64, u64)> = Vec::new();
    for axis in 0..extent.len() {
        if extent[axis] == 1 {
            continue;
        }
        let stride = u64::try_from(piece.source.1[axis]).map_err(|_| not_a_box())?;
        let walked = (0..shape.len())
            .filter(|&at| shape[at] > 1 && stride != 0 && stride.is_multiple_of(logical[at]))
            .find(|&at| region_extent[at] == 1 && stride / logical[at] < shape[at])
            .ok_or_else(not_a_box)?;
        let step = stride / logical[walked];
        let last = (extent[axis] - 1).checked_mul(step).and_then(|far| far.checked_add(origin[walked]));
        if last.is_none_or(|last| last >= shape[walked]) {
            return Err(leaves());
        }
        if step == 1 {
            region_extent[walked] = extent[axis];
            strides[walked] = template.strides[axis];
        } else {
            steps.push((walked, step, extent[axis], template.strides[axis]));
        }
    }
    let first = Block { region: Region::new(origin, region_extent), strides, ..template };
    dealt_in_turn(rank, first, &steps)
}

/// One box for every combination of the stepped axes.
fn dealt_in_turn(
    rank: u32,
    first: Block,
    steps: &[(usize, u64, u64, u64)],
) -> Result<Vec<Block>, AffineFault> {
    let found = steps.iter().fold(1u64, |boxes, &(_, _, count, _)| boxes.saturating_mul(count));
    if found > BOXES_PER_PIECE_MAX {
        return Err(AffineFault::TooManyBoxes { rank, found, limit: BOXES_PER_PIECE_MAX });
    }
    let offsets_fit = steps.iter().try_fold(first.offset.0, |end, &(_, _, count, stride)| {
        stride.checked_mul(count - 1).and_then(|far| far.checked_add(end))
    });
    if offsets_fit.is_none() {
        let (extent, shape) = (steps.iter().map(|step| step.2).collect(), Dims::new());
        return Err(AffineFault::Leaves { rank, what: "shard", offset: first.offset.0, extent, shape });
    }
    let mut blocks = vec![first];
    for &(axis, step, count, stride) in steps {
        let moved = |block: &Block, index: u64| {
            let mut origin = Dims::from_slice(block.region.origin());
            origin[axis] += index * step;
            Block {
                region: Region::new(origin, Dims::from_slice(block.region.extent())),
                offset: block.offset + Elements(index * stride),
                ..block.clone()
            }
        };
        blocks = blocks
            .iter()
            .flat_map(|block| (0..count).map(|at| moved(block, at)).collect::<Vec<_>>())
            .collect();
    }
    Ok(blocks)
}

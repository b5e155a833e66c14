//! Layout -> affine maps. A rank's shard is the block of memory from its first to its last element.
//!
//! ```text
//!   buffer  . . . a a a b b b . .     one rectangle, packed: shard of the rectangle's own shape
//!   buffer  . . a b b b b c . . .     several boxes end to end: flat shard of as many elements
//! ```

use indexmap::IndexMap;

use super::{AffineFile, AffineMap, AffinePiece, AffineShard, VERSION};
use crate::join::{overlapping, refine};
use crate::layout::{Layout, Parameter, Piece};
use crate::places::ParameterId;
use crate::region::{Region, address, row_major};
use crate::units::Elements;

impl AffineFile {
    /// Writes every parameter's affine map. Shards are dense: what lies between a rank's pieces (other
    /// parameters, padding) is not part of the map, and addresses count from the rank's first element.
    ///
    /// Returns `None` if the layout has no parameters, several dtypes, or a rank that keeps pieces of one
    /// parameter with gaps between them: such a shard cannot be said in this form.
    #[must_use]
    pub fn from_layout(layout: &Layout) -> Option<Self> {
        let mut dtypes = layout.parameters().map(|(_, parameter)| parameter.dtype);
        let dtype = dtypes.next()?;
        dtypes.all(|other| other == dtype).then_some(())?;
        Some(Self { version: VERSION, dtype, parameters: maps_of(layout)? })
    }
}

/// Every parameter's affine map, as [`AffineFile::from_layout`] writes it, whatever its dtype.
#[must_use]
pub fn maps_of(layout: &Layout) -> Option<IndexMap<String, AffineMap>> {
    let map =
        |(id, parameter): (ParameterId, &Parameter)| Some((parameter.name.clone(), map_of(layout, id)?));
    layout.parameters().map(map).collect()
}

fn map_of(layout: &Layout, id: ParameterId) -> Option<AffineMap> {
    let shape = &layout.parameter(id).shape;
    let pieces: Vec<Piece<'_>> = layout.pieces_of(id).collect();
    let regions: Vec<&Region> = pieces.iter().map(|piece| piece.region).collect();
    let mut cells: Vec<Vec<(Region, Vec<u32>)>> = Vec::with_capacity(pieces.len());
    for (piece, others) in pieces.iter().zip(overlapping(&regions, &regions)) {
        let others_regions: Vec<&Region> = others.iter().map(|&at| regions[at]).collect();
        let mut of_piece = Vec::new();
        refine(piece.region, &others_regions, &mut |cell, holders| {
            // Pieces come by rank, so that these are sorted.
            let mut locations: Vec<u32> = holders.iter().map(|&at| pieces[others[at]].rank.0).collect();
            locations.dedup();
            of_piece.push((cell.clone(), locations));
        });
        cells.push(of_piece);
    }
    let mut ranks = IndexMap::new();
    let mut done = 0;
    for of_rank in pieces.chunk_by(|one, other| one.rank == other.rank) {
        let cells = &cells[done..done + of_rank.len()];
        ranks.insert(of_rank[0].rank.to_string(), shard_of(of_rank, shape, cells)?);
        done += of_rank.len();
    }
    Some(AffineMap { logical_shape: shape.to_vec(), ranks })
}

fn shard_of(of_rank: &[Piece<'_>], shape: &[u64], cells: &[Vec<(Region, Vec<u32>)>]) -> Option<AffineShard> {
    let start = of_rank.iter().map(|piece| piece.offset).min()?;
    let held: u64 = of_rank.iter().map(|piece| piece.region.volume()).sum();
    let end = of_rank.iter().map(|piece| piece.offset.0 + reach(piece)).max()?;
    if end - start.0 != held || of_rank.iter().any(|piece| piece.buffer != of_rank[0].buffer) {
        return None;
    }
    let shard_shape = one_box(of_rank, start).unwrap_or_else(|| vec![held]);
    let logical = row_major(shape);
    let signed = |dims: &[u64]| -> Vec<i64> { dims.iter().map(|&value| value.cast_signed()).collect() };
    let mut pieces = Vec::new();
    for (piece, cells) in of_rank.iter().zip(cells) {
        for (cell, locations) in cells {
            let within: u64 = (0..cell.axes())
                .map(|axis| (cell.origin()[axis] - piece.region.origin()[axis]) * piece.strides[axis])
                .sum();
            pieces.push(AffinePiece {
                shape: signed(cell.extent()),
                source: (address(cell.origin(), &logical).cast_signed(), signed(&logical)),
                dest: ((piece.offset.0 - start.0 + within).cast_signed(), dest_strides(piece, &shard_shape)),
                locations: locations.clone(),
                scale: (piece.scale != 1.0).then_some(piece.scale),
            });
        }
    }
    pieces.sort_by_key(|piece| piece.dest.0);
    Some(AffineShard { shard_shape, pieces })
}

fn reach(piece: &Piece<'_>) -> u64 {
    piece.region.extent().iter().zip(piece.strides).map(|(extent, stride)| (extent - 1) * stride).sum::<u64>()
        + 1
}

/// The extents of the box that all pieces make together, if they lie in it row by row.
fn one_box(of_rank: &[Piece<'_>], start: Elements) -> Option<Vec<u64>> {
    let axes = of_rank[0].region.axes();
    let origin = |axis: usize| of_rank.iter().map(|piece| piece.region.origin()[axis]).min().unwrap_or(0);
    let end = |axis: usize| of_rank.iter().map(|piece| piece.region.end(axis)).max().unwrap_or(0);
    let extent: Vec<u64> = (0..axes).map(|axis| end(axis) - origin(axis)).collect();
    let rows = row_major(&extent);
    let lies_in_rows = |piece: &Piece<'_>| {
        let region = piece.region;
        let at: u64 = (0..axes).map(|axis| (region.origin()[axis] - origin(axis)) * rows[axis]).sum();
        piece.offset.0 - start.0 == at
            && (0..axes).all(|axis| region.extent()[axis] == 1 || piece.strides[axis] == rows[axis])
    };
    let held: u64 = of_rank.iter().map(|piece| piece.region.volume()).sum();
    (extent.iter().product::<u64>() == held && of_rank.iter().all(lies_in_rows)).then_some(extent)
}

/// Strides along axes of extent 1 say nothing in a geometry; the form wants those of the shard or the box.
fn dest_strides(piece: &Piece<'_>, shard_shape: &[u64]) -> Vec<i64> {
    let extent = piece.region.extent();
    let frame = if shard_shape.len() == extent.len() { row_major(shard_shape) } else { row_major(extent) };
    (0..extent.len())
        .map(|axis| if extent[axis] == 1 { frame[axis] } else { piece.strides[axis] })
        .map(u64::cast_signed)
        .collect()
}

//! An affine map over a tensor-parallel group: what each of its ranks computes with.
//!
//! ```text
//!  fused layers publish a map in a *view* of the parameter      the same elements in its own shape
//!  (3, 4, H): q, k, v of 4 rows each                            (12, H)
//!  rank 0 of 2: box (0,0,0)+(3,2,H) in a shard (3, 2, H)        three boxes (2, H) in a shard (6, H)
//! ```
//!
//! Views: DeepSpeed 0.19.8 `module_inject/layers.py`, the `SubParam` layers.

use super::{AffineFault, AffineMap, AffinePiece, AffineShard, read};
use crate::error::LayoutError;
use crate::geometry::Geometry;
use crate::region::{Dims, volume};
use crate::shard::Shard;

/// A piece of a view becomes at most so many pieces.
const PIECES_PER_PIECE_MAX: u64 = 65_536;

impl AffineMap {
    /// The shard of each rank that the map names, of a parameter of shape `shape`: the map's logical shape, or
    /// one that joins neighbouring axes of it. `name` is for errors.
    ///
    /// # Errors
    /// [`LayoutError::AffineMap`], if the map contradicts itself or is no view of `shape`.
    pub fn shards(&self, name: &str, shape: &[u64]) -> Result<Vec<(u32, Shard)>, LayoutError> {
        let fault = |fault| LayoutError::AffineMap { parameter: name.to_owned(), fault: Box::new(fault) };
        let map = self.viewed_as(shape).map_err(fault)?;
        let held = read::held(&map).map_err(fault)?;
        let shards = held.into_iter().map(|held| {
            let own = Dims::from_slice(&held.shard.shard_shape);
            (held.rank, Shard::new(own, Geometry::new(Dims::from_slice(shape), held.blocks)))
        });
        Ok(shards.collect())
    }

    /// The same map in a shape that joins neighbouring axes of its logical shape.
    fn viewed_as(&self, shape: &[u64]) -> Result<Self, AffineFault> {
        if self.logical_shape == shape {
            return Ok(self.clone());
        }
        let not_a_view =
            || AffineFault::NotAView { view: self.logical_shape.clone(), shape: Dims::from_slice(shape) };
        let joined = joined_axes(&self.logical_shape, shape).ok_or_else(not_a_view)?;
        let mut map = Self { logical_shape: shape.to_vec(), ranks: indexmap::IndexMap::new() };
        for (key, shard) in &self.ranks {
            let rank = key.parse().map_err(|_| AffineFault::RankKey { key: key.clone() })?;
            if shard.shard_shape.len() != self.logical_shape.len() {
                return Err(not_a_view());
            }
            if volume(&shard.shard_shape).is_none() {
                return Err(AffineFault::TooLarge { shape: shard.shard_shape.clone() });
            }
            let extent = |axes: &Vec<usize>| axes.iter().map(|&axis| shard.shard_shape[axis]).product();
            let mut pieces = Vec::new();
            for piece in &shard.pieces {
                pieces.extend(unrolled(rank, piece, &joined)?);
            }
            let shard_shape = joined.iter().map(extent).collect();
            map.ranks.insert(key.clone(), AffineShard { shard_shape, pieces });
        }
        Ok(map)
    }
}

/// Which axes of `view` make up each axis of `shape`; `None` if the one is no refinement of the other.
fn joined_axes(view: &[u64], shape: &[u64]) -> Option<Vec<Vec<usize>>> {
    if volume(view)? != volume(shape)? || view.contains(&0) {
        return None;
    }
    let mut joined = Vec::new();
    let mut next = 0;
    for &extent in shape {
        let mut axes = Vec::new();
        let mut product = 1u64;
        while axes.is_empty() || product < extent {
            product = product.checked_mul(*view.get(next)?)?;
            axes.push(next);
            next += 1;
        }
        if product != extent {
            return None;
        }
        joined.push(axes);
    }
    // What is left has extent 1, or the volumes would differ; it belongs to the last axis.
    joined.last_mut()?.extend(next..view.len());
    Some(joined)
}

fn too_large(shape: &[i64]) -> AffineFault {
    AffineFault::TooLarge { shape: shape.iter().map(|extent| extent.unsigned_abs()).collect() }
}

/// One piece a combination of all axes but the longest of each joined group.
fn unrolled(rank: u32, piece: &AffinePiece, joined: &[Vec<usize>]) -> Result<Vec<AffinePiece>, AffineFault> {
    let axes = joined.iter().map(Vec::len).sum();
    for (what, found) in [
        ("extents", piece.shape.len()),
        ("source strides", piece.source.1.len()),
        ("dest strides", piece.dest.1.len()),
    ] {
        if found != axes {
            return Err(AffineFault::Axes { rank, what, expected: axes, found });
        }
    }
    let kept: Vec<usize> = joined
        .iter()
        .map(|group| group.iter().copied().max_by_key(|&axis| piece.shape[axis]).unwrap_or_default())
        .collect();
    let pick = |of: &[i64]| kept.iter().map(|&axis| of[axis]).collect::<Vec<i64>>();
    let mut pieces = vec![AffinePiece {
        shape: pick(&piece.shape),
        source: (piece.source.0, pick(&piece.source.1)),
        dest: (piece.dest.0, pick(&piece.dest.1)),
        ..piece.clone()
    }];
    let steps: Vec<usize> = (0..axes).filter(|axis| !kept.contains(axis)).collect();
    let found = steps.iter().fold(1u64, |all, &axis| all.saturating_mul(piece.shape[axis].unsigned_abs()));
    if found > PIECES_PER_PIECE_MAX {
        return Err(AffineFault::TooManyBoxes { rank, found, limit: PIECES_PER_PIECE_MAX });
    }
    for axis in steps {
        let far = |start: i64, stride: i64, index: i64| index.checked_mul(stride)?.checked_add(start);
        let moved = |at: &AffinePiece, index: i64| {
            let source = far(at.source.0, piece.source.1[axis], index)?;
            let dest = far(at.dest.0, piece.dest.1[axis], index)?;
            let (source, dest) = ((source, at.source.1.clone()), (dest, at.dest.1.clone()));
            Some(AffinePiece { source, dest, ..at.clone() })
        };
        let all = pieces.iter().flat_map(|at| (0..piece.shape[axis]).map(move |index| moved(at, index)));
        pieces = all.collect::<Option<_>>().ok_or_else(|| too_large(&piece.shape))?;
    }
    Ok(pieces)
}

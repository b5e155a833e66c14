//! A source layout that is wrong on purpose, to see that the checks find it.
//!
//! ```text
//! up_proj over tp 2      right                  wrong
//! storage of tp 0        rows 0..72             rows 72..144
//! storage of tp 1        rows 72..144           rows 0..72       as if the two ranks' storages were swapped
//! ```

use reshard_layout::{Block, Dims, Elements, Geometry, Layout, LayoutBuilder, Region};
use reshard_parallel::topology::AutoTp;

use crate::error::TrainerError;
use crate::model::{Model, ShardedParameter};

/// The layout with the first two ranks of every tensor-parallel group described in each other's place, for every
/// parameter of which both hold as much. Others stay right, so that the layout stays valid.
pub(super) fn swap_tp_ranks(
    layout: &Layout,
    topology: &AutoTp,
    model: &Model,
) -> Result<Layout, TrainerError> {
    let mut builder = LayoutBuilder::new();
    for (_, parameter) in layout.parameters() {
        builder.parameter(&parameter.name, parameter.shape.iter().copied(), parameter.dtype);
    }
    for (alias, parameter) in layout.aliases() {
        builder.alias(alias, parameter);
    }
    let places = layout.places();
    for storage in &places.storages {
        builder.storage(storage.rank, &storage.name, storage.length);
    }
    for buffer in &places.buffers {
        builder.buffer(buffer.storage, buffer.offset, buffer.dtype, buffer.length);
    }
    let tp = topology.tp().get();
    for piece in layout.pieces() {
        let described = &model.parameters()[piece.parameter.index()];
        let region = match piece.rank.0 % tp {
            0 => moved(piece.region, described, 0, 1),
            1 => moved(piece.region, described, 1, 0),
            _ => piece.region.clone(),
        };
        let block = Block::new(region, Elements(0), Dims::from_slice(piece.strides));
        let shape = described.shape.iter().map(|extent| *extent as u64);
        let geometry = builder.geometry(Geometry::new(shape, [block]));
        builder.place(piece.parameter, piece.buffer, piece.offset, geometry);
    }
    Ok(builder.build()?)
}

/// A box of one tensor-parallel rank's shard, at the same place in another's.
fn moved(region: &Region, parameter: &ShardedParameter, from: usize, to: usize) -> Region {
    let Some(cut) = &parameter.cut else { return region.clone() };
    let (Some(from), Some(to)) = (cut.ranges.get(from), cut.ranges.get(to)) else { return region.clone() };
    if from.len() != to.len() {
        return region.clone();
    }
    let mut origin = Dims::from_slice(region.origin());
    origin[cut.axis] = origin[cut.axis] - from.start as u64 + to.start as u64;
    Region::new(origin, Dims::from_slice(region.extent()))
}

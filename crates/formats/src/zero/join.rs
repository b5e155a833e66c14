//! The shape of a whole parameter, and which boxes of it each tensor-parallel rank has.
//!
//! ```text
//!  shards (5, 7) (4, 7), cut along axis 0       q | k | v of 4, 2, 2 rows over 2 ranks
//!  whole  (9, 7): rank 0 rows 0..5              rank 0: q rows 0..2, k row 0, v row 0
//!                 rank 1 rows 5..9              rank 1: q rows 2..4, k row 1, v row 1
//! ```

use reshard_layout::affine::AffineMap;
use reshard_layout::{Block, Dims, Elements, Geometry, Region, Shard, row_major, volume};

use super::fault::ZeroFault;
use super::field::ELEMENTS_MAX;
use super::universal_info::{Join, PartExtents, Parts, UniversalInfo};
use crate::error::FormatError;

/// Equal parts of a parameter, at most.
const PARTS_MAX: u64 = 4096;

/// A parameter, and its shards by tensor-parallel rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Joined {
    /// Its shape.
    pub shape: Vec<u64>,
    /// What each tensor-parallel rank computes with. Padding of a vocabulary is part of a shard and not of the
    /// parameter.
    pub shards: Vec<Shard>,
}

impl Joined {
    /// A parameter that every rank has whole.
    #[must_use]
    pub fn whole(shape: &[u64], ranks: usize) -> Self {
        let shard = Shard::of_box(shape, Region::whole(shape));
        Self { shape: shape.to_vec(), shards: vec![shard; ranks] }
    }

    /// Whether every rank has all of it.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.shards.iter().all(|shard| shard.geometry() == &Geometry::whole(&self.shape))
    }

    /// Whether a shard keeps some elements multiplied by a number.
    #[must_use]
    pub fn is_scaled(&self) -> bool {
        self.shards.iter().any(|shard| shard.geometry().blocks().iter().any(|block| block.scale != 1.0))
    }
}

/// Joins the shards of a parameter, given their shapes by tensor-parallel rank.
///
/// # Errors
/// [`ZeroFault`] naming parameter and rank where the shapes do not fit the rule, [`FormatError::Layout`] for a map
/// that contradicts itself; both as [`FormatError`] by `fault`.
pub(super) fn join(
    name: &str,
    shapes: &[Vec<u64>],
    info: Option<&UniversalInfo>,
    fault: &dyn Fn(ZeroFault) -> FormatError,
    layout: &dyn Fn(reshard_layout::LayoutError) -> FormatError,
) -> Result<Joined, FormatError> {
    let ranks = shapes.len();
    let Some(info) = info else {
        return match ranks {
            1 => Ok(Joined::whole(&shapes[0], 1)),
            _ => Err(fault(ZeroFault::NoUniversalInfo { tensor_ranks: ranks as u64 })),
        };
    };
    let empty = shapes.iter().all(|shape| volume(shape) == Some(0));
    let rule = if ranks == 1 && shapes[0].is_empty() {
        Join::Whole
    } else {
        info.join(name, empty).map_err(fault)?
    };
    let joined = match rule {
        Join::Affine(map) => {
            // The map describes the parameter as it is: there is no padding in it to cut.
            let prefer = usize::from(info.is_row_parallel(name).map_err(fault)?);
            return by_map(name, shapes, &map, prefer, layout)?.map_err(fault);
        }
        Join::Whole => by_replicas(name, shapes),
        Join::Halves => {
            let halves = |part: u64| shapes.iter().map(move |shape| (shape.first().unwrap_or(&0) + part) / 2);
            by_widths(name, shapes, 0, &[halves(1).collect(), halves(0).collect()])
        }
        Join::Parts(parts) => by_parts(name, shapes, &parts),
        Join::Axis(axis) => {
            let widths = shapes.iter().map(|shape| shape.get(axis).copied().unwrap_or(0)).collect();
            by_widths(name, shapes, axis, &[widths])
        }
    };
    let rows = info.vocabulary_rows(name).map_err(fault)?;
    joined.map(|joined| cut(joined, rows)).map_err(fault)
}

fn by_replicas(name: &str, shapes: &[Vec<u64>]) -> Result<Joined, ZeroFault> {
    if let Some(rank) = shapes.iter().position(|shape| *shape != shapes[0]) {
        let expected = format!("rank 0 has one of shape {:?} and all should be equal", shapes[0]);
        return Err(shard_fault(name, rank, shapes, expected));
    }
    Ok(Joined::whole(&shapes[0], shapes.len()))
}

fn shard_fault(name: &str, rank: usize, shapes: &[Vec<u64>], expected: String) -> ZeroFault {
    ZeroFault::Shard { parameter: name.to_owned(), rank, found: shapes[rank].clone(), expected }
}

fn by_parts(name: &str, shapes: &[Vec<u64>], parts: &Parts) -> Result<Joined, ZeroFault> {
    let ranks = shapes.len();
    if let Some(rank) = shapes.iter().position(|shape| shape.len() != parts.axes) {
        let expected = format!("its sub-parameters are described with {} axes", parts.axes);
        return Err(shard_fault(name, rank, shapes, expected));
    }
    if let Some(widths) = &parts.widths {
        check_widths(name, &parts.extents, widths, ranks as u64)?;
        return by_widths(name, shapes, parts.axis, widths);
    }
    let total: u64 = shapes.iter().map(|shape| shape[parts.axis]).sum();
    let extents = match &parts.extents {
        PartExtents::Each(extents) => extents.clone(),
        PartExtents::Equal(count) if (1..=PARTS_MAX).contains(count) && total.is_multiple_of(*count) => {
            vec![total / count; usize::try_from(*count).unwrap_or(usize::MAX)]
        }
        PartExtents::Equal(count) => {
            let parameter = name.to_owned();
            return Err(ZeroFault::UnevenParts { parameter, extent: total, tensor_ranks: *count });
        }
    };
    if let Some(extent) = extents.iter().find(|extent| !extent.is_multiple_of(ranks as u64)) {
        let (parameter, extent) = (name.to_owned(), *extent);
        return Err(ZeroFault::UnevenParts { parameter, extent, tensor_ranks: ranks as u64 });
    }
    let widths: Vec<_> = extents.iter().map(|extent| vec![extent / ranks as u64; ranks]).collect();
    by_widths(name, shapes, parts.axis, &widths)
}

/// As many parts as the parameter has, each as wide on all ranks together as it is, with a width a rank.
fn check_widths(name: &str, extents: &PartExtents, widths: &[Vec<u64>], ranks: u64) -> Result<(), ZeroFault> {
    let check = |expected: u64, found: u64, because: &'static str| {
        let key = format!("sub_param_shard_widths of {name}");
        if found == expected { Ok(()) } else { Err(ZeroFault::Disagrees { key, expected, found, because }) }
    };
    widths.iter().try_for_each(|part| check(ranks, part.len() as u64, "one width a tensor-parallel rank"))?;
    let extents = match extents {
        PartExtents::Equal(count) => return check(*count, widths.len() as u64, "a list of widths a part"),
        PartExtents::Each(extents) => extents,
    };
    check(extents.len() as u64, widths.len() as u64, "a list of widths a part")?;
    for (extent, part) in extents.iter().zip(widths) {
        let sum = part.iter().fold(0u64, |sum, width| sum.saturating_add(*width));
        check(*extent, sum, "the widths of a part add up to its extent")?;
    }
    Ok(())
}

/// Parts along `axis`, each cut over the ranks on its own: `widths[part][rank]`.
fn by_widths(name: &str, shapes: &[Vec<u64>], axis: usize, widths: &[Vec<u64>]) -> Result<Joined, ZeroFault> {
    let total = widths.iter().flatten().try_fold(0u64, |sum, width| sum.checked_add(*width));
    let mut shape = shapes[0].clone();
    let Some((extent, total)) = shape.get_mut(axis).zip(total) else {
        return Err(shard_fault(name, 0, shapes, format!("it is cut along axis {axis}")));
    };
    *extent = total;
    if volume(&shape).is_none_or(|elements| elements > ELEMENTS_MAX) {
        let key = format!("the number of elements of {name}");
        return Err(ZeroFault::TooLarge {
            key,
            found: volume(&shape).unwrap_or(u64::MAX),
            limit: ELEMENTS_MAX,
        });
    }
    let mut shards = Vec::with_capacity(shapes.len());
    for (rank, own) in shapes.iter().enumerate() {
        let mut expected = shape.clone();
        expected[axis] = widths.iter().map(|part| part[rank]).sum();
        if *own != expected {
            return Err(shard_fault(name, rank, shapes, format!("which should be {expected:?}")));
        }
        let strides = row_major(own);
        let (mut part_start, mut place) = (0, 0);
        let mut blocks = Vec::new();
        for part in widths {
            let mut origin: Dims = shape.iter().map(|_| 0).collect();
            origin[axis] = part_start + part[..rank].iter().sum::<u64>();
            let mut box_extent = Dims::from_slice(own);
            box_extent[axis] = part[rank];
            let region = Region::new(origin, box_extent);
            if !region.is_empty() {
                blocks.push(Block::new(region, Elements(place * strides[axis]), strides.clone()));
            }
            part_start += part.iter().sum::<u64>();
            place += part[rank];
        }
        shards.push(Shard::new(own.iter().copied(), Geometry::new(shape.iter().copied(), blocks)));
    }
    Ok(Joined { shape, shards })
}

/// A map may be drawn in a view of the parameter, with more axes than the parameter has. Then the shards tell which
/// of its axes belong together, but for the one that is cut: `prefer` is tried first.
fn by_map(
    name: &str,
    shapes: &[Vec<u64>],
    map: &AffineMap,
    prefer: usize,
    layout: &dyn Fn(reshard_layout::LayoutError) -> FormatError,
) -> Result<Result<Joined, ZeroFault>, FormatError> {
    let mut refused = None;
    for shape in candidates(shapes, map, prefer) {
        match map.shards(name, &shape) {
            Ok(shards) => match fitting(name, shapes, shards) {
                Ok(shards) => return Ok(Ok(Joined { shape, shards })),
                Err(fault) => refused = refused.or(Some(Ok(fault))),
            },
            Err(error) => refused = refused.or(Some(Err(layout(error)))),
        }
    }
    match refused {
        Some(Err(error)) => Err(error),
        Some(Ok(fault)) => Ok(Err(fault)),
        None => Ok(Err(shard_fault(name, 0, shapes, format!("its map is one of {:?}", map.logical_shape)))),
    }
}

/// The shapes that the whole parameter may have.
fn candidates(shapes: &[Vec<u64>], map: &AffineMap, prefer: usize) -> Vec<Vec<u64>> {
    let axes = shapes[0].len();
    if map.logical_shape.len() == axes {
        return vec![map.logical_shape.clone()];
    }
    let Some(total) = volume(&map.logical_shape) else { return Vec::new() };
    let Some(own) = shapes.iter().find(|shape| volume(shape).is_some_and(|elements| elements > 0)) else {
        return Vec::new();
    };
    let along = |axis: usize| {
        let others: u64 =
            own.iter().enumerate().filter(|(at, _)| *at != axis).map(|(_, extent)| extent).product();
        let mut shape = own.clone();
        shape[axis] = total.checked_div(others)?;
        (shape[axis] * others == total).then_some(shape)
    };
    let order = (0..axes).filter(|axis| *axis == prefer).chain((0..axes).filter(|axis| *axis != prefer));
    order.filter_map(along).collect()
}

/// The shards of a map by rank, if they have the shapes that the ranks have.
fn fitting(name: &str, shapes: &[Vec<u64>], shards: Vec<(u32, Shard)>) -> Result<Vec<Shard>, ZeroFault> {
    if shards.len() != shapes.len() {
        return Err(ZeroFault::Disagrees {
            key: format!("the number of ranks of the affine map of {name}"),
            expected: shapes.len() as u64,
            found: shards.len() as u64,
            because: "one a tensor-parallel rank",
        });
    }
    for (rank, (mapped, shard)) in shards.iter().enumerate() {
        if *mapped as usize != rank || shard.shape() != shapes[rank] {
            let expected = format!("its map says {:?} for rank {mapped}", shard.shape());
            return Err(shard_fault(name, rank, shapes, expected));
        }
    }
    Ok(shards.into_iter().map(|(_, shard)| shard).collect())
}

/// Leaves out the rows of a vocabulary that are padding.
fn cut(joined: Joined, rows: Option<u64>) -> Joined {
    let Some(rows) = rows.filter(|rows| joined.shape.first().is_some_and(|extent| extent > rows)) else {
        return joined;
    };
    let mut shape = joined.shape;
    shape[0] = rows;
    let clipped = |block: &Block| {
        let (origin, mut extent) = (block.region.origin(), Dims::from_slice(block.region.extent()));
        extent[0] = extent[0].min(rows.saturating_sub(origin[0]));
        let region = Region::new(Dims::from_slice(origin), extent);
        (!region.is_empty()).then(|| Block { region, ..block.clone() })
    };
    let shards = joined.shards.iter().map(|shard| {
        let blocks: Vec<_> = shard.geometry().blocks().iter().filter_map(clipped).collect();
        Shard::new(Dims::from_slice(shard.shape()), Geometry::new(Dims::from_slice(&shape), blocks))
    });
    Joined { shards: shards.collect(), shape }
}

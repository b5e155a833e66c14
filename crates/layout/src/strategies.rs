//! Random layouts for property tests: cut by tensor parallelism, then kept as runs, replicated, transposed.
//!
//! ```text
//!   a parameter ── cut along an axis into uneven, also zero, widths ── or whole
//!        each shard ── kept whole, or as runs cut anywhere, by several ranks ── replicas cut differently
//!             each run ── packed, or with rows padded and axes permuted, somewhere in a flat buffer
//! ```

use proptest::collection::vec;
use proptest::prelude::*;

use crate::geometry::{Block, Geometry};
use crate::layout::{Layout, LayoutBuilder};
use crate::nest::{nest, stored_run};
use crate::region::{Dims, Region, row_major};
use crate::units::{Bytes, DType, Elements, Rank};

/// A shape of up to four axes with small extents, scalars included.
pub fn shapes() -> impl Strategy<Value = Vec<u64>> {
    vec(1u64..7, 0..4)
}

/// How the shards of one tensor-parallel group are stored by their owners.
#[derive(Clone, Debug)]
enum Stored {
    /// Every data-parallel rank keeps all of its shard, transposed and padded as the numbers say.
    Whole { copies: u32, permutation: u64, pad: u64 },
    /// Each keeps one run of the flattened shard; the cuts are fractions of its length.
    Runs { cuts: Vec<f64>, replicas: u32 },
}

#[derive(Clone, Debug)]
struct Recipe {
    axis: usize,
    widths: Vec<u64>,
    stored: Vec<Stored>,
    gap: u64,
}

fn recipes() -> impl Strategy<Value = Recipe> {
    let whole = (1u32..3, any::<u64>(), 0u64..3).prop_map(|(copies, permutation, pad)| Stored::Whole {
        copies,
        permutation,
        pad,
    });
    let runs = (vec(0.0..1.0f64, 0..3), 1u32..3).prop_map(|(cuts, replicas)| Stored::Runs { cuts, replicas });
    (0usize..4, vec(0u64..4, 1..4), vec(prop_oneof![whole, runs], 4), 0u64..3)
        .prop_map(|(axis, widths, stored, gap)| Recipe { axis, widths, stored, gap })
}

/// A source and a target layout of the same parameters, one to three of them, over the same ranks.
pub fn layout_pairs() -> impl Strategy<Value = (Layout, Layout)> {
    vec((shapes(), recipes(), recipes()), 1..4).prop_map(|parameters| {
        let side = |source: bool| {
            let mut builder = LayoutBuilder::new();
            for (index, (shape, one, other)) in parameters.iter().enumerate() {
                add(&mut builder, &format!("p{index}"), shape, if source { one } else { other });
            }
            match builder.build() {
                Ok(layout) => layout,
                Err(error) => unreachable!("a random layout is valid by construction: {error}"),
            }
        };
        (side(true), side(false))
    })
}

fn add(builder: &mut LayoutBuilder, name: &str, shape: &[u64], recipe: &Recipe) {
    let parameter = builder.parameter(name, shape.iter().copied(), DType::F32);
    let mut rank = 0;
    for (shard, stored) in shards(shape, recipe).into_iter().zip(&recipe.stored) {
        for geometry in holdings(shape, &shard, stored) {
            let end = geometry.blocks().iter().filter_map(Block::end).max().unwrap_or(0);
            let length = Elements(recipe.gap + end);
            let storage = builder.storage(Rank(rank), name, length.bytes(DType::F32));
            let buffer = builder.buffer(storage, Bytes(0), DType::F32, length);
            let geometry = builder.geometry(geometry);
            builder.place(parameter, buffer, Elements(recipe.gap), geometry);
            rank += 1;
        }
    }
}

/// The boxes of the parameter that the tensor-parallel ranks have.
fn shards(shape: &[u64], recipe: &Recipe) -> Vec<Region> {
    if shape.is_empty() {
        return vec![Region::whole(shape)];
    }
    let axis = recipe.axis % shape.len();
    let mut widths = recipe.widths.clone();
    let mut left = shape[axis];
    for width in &mut widths {
        *width = (*width).min(left);
        left -= *width;
    }
    if let Some(last) = widths.last_mut() {
        *last += left;
    }
    let mut at = 0;
    widths
        .into_iter()
        .map(|width| {
            let mut origin: Dims = shape.iter().map(|_| 0).collect();
            let mut extent = Dims::from_slice(shape);
            origin[axis] = at;
            extent[axis] = width;
            at += width;
            Region::new(origin, extent)
        })
        .collect()
}

fn holdings(shape: &[u64], shard: &Region, stored: &Stored) -> Vec<Geometry> {
    let outer = Geometry::new(shape.iter().copied(), [Block::dense(shard.clone(), Elements(0))]);
    match stored {
        Stored::Whole { copies, permutation, pad } => {
            let block = Block::new(shard.clone(), Elements(0), permuted_strides(shard, *permutation, *pad));
            let geometry = Geometry::new(shape.iter().copied(), [block]);
            (0..*copies).map(|_| geometry.clone()).collect()
        }
        Stored::Runs { cuts, replicas } => {
            let total = shard.volume();
            let all = (0..*replicas).flat_map(|replica| {
                let shift = f64::from(replica) * 0.3;
                let mut ends: Vec<u64> =
                    cuts.iter().map(|cut| fraction(total, (cut + shift).fract())).collect();
                ends.sort_unstable();
                ends.push(total);
                let starts = std::iter::once(0).chain(ends.clone());
                starts.zip(ends.clone()).collect::<Vec<_>>()
            });
            all.filter_map(|(start, end)| nest(&outer, &stored_run(shard.extent(), start..end))).collect()
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn fraction(total: u64, part: f64) -> u64 {
    (total as f64 * part) as u64
}

/// Strides of the box with its axes stored in another order, and `pad` unused elements after each row.
fn permuted_strides(region: &Region, permutation: u64, pad: u64) -> Dims {
    let axes = region.axes();
    let mut order: Vec<usize> = (0..axes).collect();
    let mut seed = permutation;
    for at in (1..axes).rev() {
        order.swap(at, usize::try_from(seed % (at as u64 + 1)).unwrap_or(0));
        seed /= at as u64 + 1;
    }
    let padded: Vec<u64> = order.iter().map(|&axis| region.extent()[axis] + pad).collect();
    let stored = row_major(&padded);
    let mut strides: Dims = region.extent().iter().map(|_| 0).collect();
    for (position, &axis) in order.iter().enumerate() {
        strides[axis] = stored[position];
    }
    strides
}

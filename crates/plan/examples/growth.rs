//! How layouts, plan and verify grow with the number of pieces, for regular and irregular forms. Run by
//! `make bench`; doubling the pieces should about double the times.

#![allow(clippy::print_stdout, clippy::expect_used)]

use std::time::Instant;

use reshard_layout::{Block, Bytes, DType, Elements, Geometry, Layout, LayoutBuilder, Rank, Region};
use reshard_plan::{Policy, plan, verify};

/// Rows one by one.
fn rows(pieces: u64) -> ([u64; 2], Vec<Region>) {
    ([pieces, 64], (0..pieces).map(|row| Region::new([row, 0], [1, 64])).collect())
}

/// Squares of a chess board.
fn grid(pieces: u64) -> ([u64; 2], Vec<Region>) {
    let side = pieces.isqrt();
    let cells = (0..side * side).map(|at| Region::new([at / side * 8, at % side * 8], [8, 8]));
    ([side * 8, side * 8], cells.collect())
}

/// Halves of halves, cut where a fixed sequence of numbers says.
fn halves(pieces: u64) -> ([u64; 2], Vec<Region>) {
    let shape = [4096, 4096];
    let mut seed = 7u64;
    let mut queue = std::collections::VecDeque::from([Region::whole(&shape)]);
    while (queue.len() as u64) < pieces {
        let Some(region) = queue.pop_front() else { break };
        let axis = usize::from(region.extent()[1] > region.extent()[0]);
        if region.extent()[axis] < 2 {
            queue.push_back(region);
            continue;
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (low, high) =
            region.split(axis, region.origin()[axis] + 1 + (seed >> 33) % (region.extent()[axis] - 1));
        queue.extend([low, high]);
    }
    (shape, queue.into())
}

/// One tall box beside rows.
fn tall(pieces: u64) -> ([u64; 2], Vec<Region>) {
    let mut boxes = vec![Region::new([0, 0], [pieces, 1])];
    boxes.extend((0..pieces).map(|row| Region::new([row, 1], [1, 3])));
    ([pieces, 4], boxes)
}

/// The boxes packed one after another on one rank.
fn packed(rank: u32, shape: [u64; 2], boxes: &[Region]) -> Layout {
    let mut builder = LayoutBuilder::new();
    let w = builder.parameter("w", shape, DType::Bf16);
    let length = Elements(boxes.iter().map(Region::volume).sum());
    let storage = builder.storage(Rank(rank), "w", length.bytes(DType::Bf16));
    let buffer = builder.buffer(storage, Bytes(0), DType::Bf16, length);
    let mut at = 0;
    let blocks = boxes.iter().map(|region| {
        let block = Block::dense(region.clone(), Elements(at));
        at += region.volume();
        block
    });
    let geometry = builder.geometry(Geometry::new(shape, blocks.collect::<Vec<_>>()));
    builder.place(w, buffer, Elements(0), geometry);
    builder.build().expect("the boxes are a partition")
}

fn main() {
    type Form = fn(u64) -> ([u64; 2], Vec<Region>);
    let forms: [(&str, Form); 4] = [("rows", rows), ("grid", grid), ("halves", halves), ("tall", tall)];
    println!(
        "{:<8}{:>9}{:>12}{:>12}{:>12}{:>9}",
        "form", "pieces", "layouts ms", "plan ms", "verify ms", "copies"
    );
    for (name, form) in forms {
        for pieces in [10_000, 20_000, 40_000] {
            let (shape, boxes) = form(pieces);
            let start = Instant::now();
            let (source, target) = (packed(0, shape, &boxes), packed(1, shape, &[Region::whole(&shape)]));
            let layouts = start.elapsed();
            let start = Instant::now();
            let made = plan(&source, &target, Policy::Balanced).expect("one layout onto another");
            let planned = start.elapsed();
            let start = Instant::now();
            verify(&made, &source, &target).expect("the plan is right");
            println!(
                "{name:<8}{:>9}{:>12.1}{:>12.1}{:>12.1}{:>9}",
                boxes.len(),
                layouts.as_secs_f64() * 1e3,
                planned.as_secs_f64() * 1e3,
                start.elapsed().as_secs_f64() * 1e3,
                made.copies.len()
            );
        }
    }
}

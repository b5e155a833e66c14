//! Plans against the real planner's answers, an enumeration of every element, and the published numbers.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod casts;
mod elements;
mod engines;
mod ground_truth;
mod growth;
mod memory;
mod random;
mod rules;
mod schedule;

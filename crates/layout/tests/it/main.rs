//! Closed forms against enumerations of every element.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod affine;
mod geometry;
mod shards;
mod validation;

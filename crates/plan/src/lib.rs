//! Two layouts intersected into a plan of copies.

mod copy;
mod plan;

pub use copy::{Copy, End};
pub use plan::{Plan, Policy, Statistics};

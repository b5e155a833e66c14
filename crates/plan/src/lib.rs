//! Two layouts intersected into a plan of copies.
//!
//! ```text
//!   source layout ─┐
//!                  ├─ names ─ overlap ─ choose ─ coalesce ─►  Plan: [Copy, Copy, ...]  ◄─ verify
//!   target layout ─┘                                                 (shares no code with the passes)
//! ```
//!
//! A [`Plan`] is a value: ranks, storages, buffers and element offsets, never an address. It is made once and
//! moved many times.

mod choose;
mod coalesce;
mod copy;
mod error;
mod names;
mod overlap;
mod plan;
mod planner;
mod verify;

pub use choose::Request;
pub use copy::{Copy, End};
pub use error::PlanError;
pub use names::unused_parameters;
pub use plan::{Plan, Policy, Statistics};
pub use planner::{plan, plan_with};
pub use verify::{Side, Verified, VerifyError, verify};

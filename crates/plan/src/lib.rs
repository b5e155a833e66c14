//! Two layouts intersected into a plan of copies.
//!
//! ```text
//!   source layout ─┐
//!                  ├─ names ─ overlap ─ choose ─ coalesce ─►  Plan: [Copy, Copy, ...]  ◄─ verify
//!   target layout ─┘                                                 (shares no code with the passes)
//! ```
//!
//! A [`Plan`] is a value: ranks, storages, buffers and element offsets, never an address. It is made once and
//! moved many times. A [`Schedule`] puts what it sends into rounds of bounded messages, for transports that need
//! that.

mod choose;
mod coalesce;
mod copy;
mod error;
mod names;
mod options;
mod overlap;
mod plan;
mod planner;
mod schedule;
mod verify;

pub use choose::Request;
pub use copy::{Copy, End};
pub use error::PlanError;
pub use names::unused_parameters;
pub use options::Options;
pub use plan::{Plan, Policy, Statistics};
pub use planner::{plan, plan_with};
pub use schedule::{Message, Round, Schedule, ScheduleError, Share, WireBox};
pub use verify::{Side, Verified, VerifyError, verify};

//! The Python package's extension module `reshard._reshard`: thin, typed, split by room.
//!
//! ```text
//!   builder.rs   LayoutBuilder          errors.rs    Rust errors -> reshard.errors
//!   layout.rs    Layout, its parts      plan.rs      plan, Plan, Copy, Request
//!   affine.rs    affine maps in, out    schedule.rs  Schedule, Share
//!   topology.rs  the Rust builders      verify.rs    verify
//! ```
//!
//! No planning logic lives here: every function unpacks its arguments, calls a crate without the interpreter lock, and
//! wraps what it returns.

mod affine;
mod builder;
mod errors;
mod layout;
mod plan;
mod portable;
mod schedule;
mod shape;
mod topology;
mod verify;

use pyo3::prelude::*;

/// Layouts, plans and schedules of `reshard`, as Rust made them.
#[pymodule]
mod _reshard {
    #[pymodule_export]
    use crate::builder::LayoutBuilder;
    #[pymodule_export]
    use crate::layout::{Buffer, Layout, Parameter, Piece, Storage};
    #[pymodule_export]
    use crate::plan::{Copy, End, Plan, Request, Statistics, plan, unused_parameters};
    #[pymodule_export]
    use crate::schedule::{Box, Message, Schedule, Share};
    #[pymodule_export]
    use crate::verify::{Verified, verify};

    /// The version of this package.
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "its name in Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

//! Integration tests of the transports, the worlds and their collectives.
// Helpers of tests may do what tests may.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod assemble;
mod collectives;
mod conformance;
mod fixture;
mod kernel;
mod processes;
mod starved;
mod sync_failures;
mod sync_processes;

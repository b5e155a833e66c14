//! Integration tests of the transports, the worlds and their collectives.
// Helpers of tests may unwrap as tests may.
#![allow(clippy::unwrap_used)]

mod collectives;
mod processes;
mod sync_processes;

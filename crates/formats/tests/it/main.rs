//! Integration tests of the checkpoint formats.

#![allow(clippy::unwrap_used, reason = "a helper of a test that cannot go on fails the test")]

mod dcp;
mod hostile;
mod pickle;
mod safetensors;
mod shards;
mod support;
mod torch;

//! Integration tests of the checkpoint formats.

#![allow(clippy::unwrap_used, reason = "a helper of a test that cannot go on fails the test")]

mod converted;
mod described;
mod hostile;
mod pickle;
mod rebuilt;
mod safetensors;
mod shards;
mod support;
mod universal;
mod zero_write;
mod torch;
mod engine;
mod zero;

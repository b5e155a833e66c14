//! Integration tests of the checkpoint formats.

#![allow(clippy::unwrap_used, reason = "a helper of a test that cannot go on fails the test")]

mod by_hand;
mod dcp;
mod described;
mod engine;
mod hostile;
mod pickle;
mod rebuilt;
mod safetensors;
mod shards;
mod support;
mod torch;
mod universal;
mod zero;
mod zero_write;

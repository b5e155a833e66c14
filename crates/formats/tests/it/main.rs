//! Integration tests of the checkpoint formats.

#![allow(clippy::unwrap_used, reason = "a helper of a test that cannot go on fails the test")]

mod hostile;
mod pickle;
mod rebuilt;
mod safetensors;
mod shards;
mod support;
mod torch;
mod zero;

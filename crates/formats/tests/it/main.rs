//! Integration tests of the checkpoint formats.
mod safetensors;

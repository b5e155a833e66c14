//! Integration tests of the checkpoint formats.

//! What is derived must be what real engines did: dumps of live DeepSpeed 0.19.8 engines are the oracle.
//!
//! ```text
//! dumps      every offset, length and range that an engine recorded
//! ids        every element that lay in its buffers, by value
//! zero       the closed forms against an enumeration of every element, and worked examples
//! engine_rows, engine_names, engine_models   layouts of other engines against whole-tensor operations
//! model, tensor, topology, engine
//! ```

#![allow(clippy::unwrap_used, reason = "a helper of a test that cannot go on fails the test")]

mod contents;
mod dumps;
mod engine;
mod engine_models;
mod engine_names;
mod engine_rows;
mod ids;
mod model;
mod support;
mod tensor;
mod topology;
mod zero;

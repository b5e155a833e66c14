//! Tests of the trainer as other crates use it: thread ranks in one process, real collectives.

mod checkpoints;
mod demo;
mod gradients;
mod harness;
mod processes;
mod rollout;
mod states;
mod training;

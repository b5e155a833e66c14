//! DeepSpeed Universal checkpoints.

//! DeepSpeed ZeRO checkpoints.

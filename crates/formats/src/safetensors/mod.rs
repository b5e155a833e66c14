//! safetensors: one file, or a folder of them with or without an index.

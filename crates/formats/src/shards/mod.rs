//! A safetensors file a rank, with the layout in its metadata.

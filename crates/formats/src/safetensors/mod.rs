//! safetensors: one file, or a folder of them with or without an index.
//!
//! ```text
//!   model.safetensors.index.json     k -> model-1, v -> model-2
//!   model-1.safetensors   | header | k ...... |      storage of k = that byte range
//!   model-2.safetensors   | header | v ...... |      storage of v = that byte range
//! ```
//!
//! Reading looks at headers only; [`folder`] lays out what is to be written.

mod fault;
mod header;
mod index;
pub(crate) mod json;
mod look;
mod open;
mod stored;
mod write;

pub use fault::SafetensorsFault;
pub use header::{AXES_MAX, HEADER_BYTES_MAX, Header, RESERVED_NAME, Tensor};
pub use index::{Index, TEXT_BYTES_MAX};
pub use open::open;
pub use stored::StoredType;
pub use write::{TensorSpec, folder};

pub(crate) use fault::shown;
pub(crate) use index::read_text;
pub(crate) use look::tensor_files;
pub(crate) use open::{config_beside, tied};
pub(crate) use write::file;

//! A safetensors file a rank, with the layout in its metadata.
//!
//! ```text
//!   model-rank-00000-of-00002.safetensors   | header, metadata {"reshard": rank 0, boxes} | up rows 0..3 |
//!   model-rank-00001-of-00002.safetensors   | header, metadata {"reshard": rank 1, boxes} | up rows 3..6 |
//! ```
//!
//! Every file is a plain safetensors file, which the rank it belongs to can load as it is.

mod fault;
mod metadata;
mod open;
mod ranks;
mod write;

pub use fault::ShardsFault;
pub use metadata::{BOXES_MAX, Entry, KEY, RankLayout, StoredBox, VERSION, WORLD_MAX};
pub use open::{TOPOLOGY, open, recognise};
pub use write::{ShardSpec, folder};

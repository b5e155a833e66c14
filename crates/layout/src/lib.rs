//! Where every element of every parameter lies.
//!
//! A [`Layout`] says which box of which parameter lies where in which buffer of which rank. Trainers'
//! storage, rollout engines' storage and checkpoint files are all layouts.
//!
//! ```text
//!  W (4x6), tensor parallel over columns             as a layout
//!    rank 0    rank 1
//!    0  1  2 |  3  4  5                 W (0,0)+(4,3)  rank 0  buffer 0  offset 0  strides (3,1)
//!    6  7  8 |  9 10 11                 W (0,3)+(4,3)  rank 1  buffer 1  offset 0  strides (3,1)
//!   12 13 14 | 15 16 17
//!   18 19 20 | 21 22 23
//! ```
//!
//! ```
//! use reshard_layout::{Block, Bytes, DType, Elements, Geometry, LayoutBuilder, Rank, Region};
//!
//! let mut builder = LayoutBuilder::new();
//! let w = builder.parameter("W", [4, 6], DType::F32);
//! for rank in 0..2 {
//!     let storage = builder.storage(Rank(rank), "weights", Bytes(48));
//!     let buffer = builder.buffer(storage, Bytes(0), DType::F32, Elements(12));
//!     let columns = Region::new([0, 3 * u64::from(rank)], [4, 3]);
//!     let geometry = builder.geometry(Geometry::new([4, 6], [Block::dense(columns, Elements(0))]));
//!     builder.place(w, buffer, Elements(0), geometry);
//! }
//! let layout = builder.build()?;
//! assert_eq!(layout.piece_count(), 2);
//! # Ok::<(), reshard_layout::LayoutError>(())
//! ```
//!
//! Everything here is pure: no file, socket, clock, thread or unsafe code, and no value of any weight.

pub mod affine;
mod check;
mod error;
mod fingerprint;
mod geometry;
mod join;
mod layout;
mod nest;
mod parts;
mod places;
mod region;
mod runs;
mod shard;
mod span;
#[cfg(feature = "strategies")]
pub mod strategies;
mod units;

pub use error::{Finding, Kind, LayoutError};
pub use geometry::{Block, Geometry, GeometryId};
pub use join::{overlapping, overlapping_pairs, refine};
pub use layout::{Fill, Instance, Layout, LayoutBuilder, Parameter, Piece};
pub use nest::{nest, stored_run};
pub use places::{Buffer, BufferId, ParameterId, Places, Storage, StorageId};
pub use region::{Dims, Region, address, coordinate, row_major, volume};
pub use runs::boxes_of_run;
pub use shard::{RunFault, Shard, ShardId};
pub use units::{Bytes, DType, Elements, Rank};

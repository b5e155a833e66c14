//! Where every element of every parameter lies.

mod places;
mod region;
mod units;

pub use places::{Buffer, BufferId, ParameterId, Places, Storage, StorageId};
pub use region::{Dims, Region, address, coordinate, row_major, volume};
pub use units::{Bytes, DType, Elements, Rank};

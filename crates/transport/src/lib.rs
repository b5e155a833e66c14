//! Moves the bytes of a plan between bound storages.

mod communicator;
mod error;

pub use communicator::Communicator;
pub use error::TransportError;

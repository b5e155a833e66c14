//! Moves the bytes of a plan between bound storages.

mod child;
mod communicator;
mod control;
mod error;
mod group;
mod launcher;
mod mailbox;
mod memory;
mod message;
mod park;
mod registry;
mod rendezvous;
mod supervisor;
mod world;

pub use communicator::Communicator;
pub use error::TransportError;
pub use group::Group;
pub use launcher::{DEFAULT_GRACE, Exit, Launcher, Outcome};
pub use memory::{PeerMemory, SharedMemory};
pub use world::{DEFAULT_TIMEOUT, RANK_VARIABLE, RENDEZVOUS_VARIABLE, World};

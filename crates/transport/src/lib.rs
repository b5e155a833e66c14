//! Moves the bytes of a plan between bound storages.
//!
//! ```text
//!   Launcher ──► World (ranks that meet) ──► Group (collectives: Communicator)
//!   Plan ──► Local | Shm (Transport: compiled copies) ──► Synchroniser ──► TargetState, Report
//!   memory ──► SourceBinding, TargetBinding ──────────────────┘  at every sync
//! ```
//!
//! A world of three threads, and a sum that has the same bits on all of them:
//!
//! ```
//! use reshard_transport::{Communicator, TransportError, World};
//!
//! let ranks: Vec<_> = World::in_process(3)?
//!     .into_iter()
//!     .map(|world| {
//!         std::thread::spawn(move || {
//!             let group = world.everyone()?;
//!             let mut data = [world.rank().0 as f32, 1.0];
//!             group.all_reduce(&mut data)?;
//!             world.leave()?;
//!             Ok::<_, TransportError>(data)
//!         })
//!     })
//!     .collect();
//! for rank in ranks {
//!     assert_eq!(rank.join().expect("no panic")?, [3.0, 3.0]);
//! }
//! # Ok::<(), TransportError>(())
//! ```
//!
//! With processes instead of threads, a [`Launcher`] starts them and each calls [`World::from_environment`]; the
//! rest is the same. What goes wrong on one rank is the same [`TransportError`] on all.
//!
//! **Invariants.** Nothing is left behind: no file, no name, no process, whoever is killed. No rank waits for
//! longer than its timeout, and then a second at most to tell the others; no launcher waits for longer than its
//! limits for its processes to join, or to end after a failure. No byte of a target is written before all ranks agree; no version is
//! committed before all ranks have verified it. `unsafe` is allowed in `memory`, `view`, `kernel`, `mailbox`,
//! `control`, `shm` and `child` alone.

mod alone;
mod assemble;
mod ballot;
mod binding;
mod child;
mod communicator;
mod compile;
mod control;
mod digest;
mod error;
mod execute;
mod fill;
mod fingerprint;
mod group;
mod kernel;
mod launcher;
mod local;
mod mailbox;
mod memory;
mod message;
mod park;
mod registry;
mod rendezvous;
mod shm;
mod supervisor;
mod sync;
mod transport;
mod view;
mod world;

pub use alone::Alone;
pub use assemble::{Assembly, FillError, ReadAt, SCRATCH_BYTES_MIN};
pub use binding::{SourceBinding, TargetBinding};
pub use communicator::Communicator;
pub use compile::{CompiledCopy, compile};
pub use digest::PairDigests;
pub use error::{Category, TransportError};
pub use fingerprint::{Fingerprint, Fingerprinter};
pub use group::Group;
pub use kernel::{Axis, BoxCopy};
pub use launcher::{DEFAULT_GRACE, Exit, Launcher, Limits, Outcome};
pub use local::Local;
pub use memory::{PeerMemory, SharedMemory};
pub use shm::Shm;
pub use sync::{Synchroniser, TargetState, Version};
pub use transport::{Moved, Permit, Report, Transport};
pub use view::{ReadView, WriteView};
pub use world::{DEFAULT_TIMEOUT, RANK_VARIABLE, RENDEZVOUS_VARIABLE, World};

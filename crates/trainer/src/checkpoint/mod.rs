//! Checkpoints: a trainer saves DeepSpeed's ZeRO files, and goes on from them at any topology; a rollout engine loads
//! its weights.
//!
//! ```text
//!   Trainer ──save, every rank its files──► ZeRO ──convert, one rank──► Universal ──load──► Rollout
//!      ▲                                     │                             │
//!      └────────────── load, at any TP x DP x stage ───────────────────────┘
//! ```
//!
//! Both directions are plans between a checkpoint's layout and that of the engine: no file format is known here.

mod convert;
mod load;
mod memory;
mod save;

pub(crate) use convert::convert;
pub(crate) use load::check;

use reshard_layout::Bytes;

/// What a step of the way through files has cost this rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of the files that were written.
    pub bytes_written: Bytes,
    /// Bytes of tensors that were read from files.
    pub bytes_read: Bytes,
    /// The most memory beside the storages of the engines.
    pub staging_max: Bytes,
}

impl Cost {
    /// Another step, after this one.
    pub fn add(&mut self, next: Self) {
        self.bytes_written += next.bytes_written;
        self.bytes_read += next.bytes_read;
        self.staging_max = self.staging_max.max(next.staging_max);
    }
}

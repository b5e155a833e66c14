//! The way through files, as jobs without a planner between trainer and rollout do it.
//!
//! ```text
//! every trainer rank writes its files -> first rank: ZeRO to Universal -> torn -> every rollout rank reads its shard
//!                               wait ^                           wait ^        -> compare -> verdict -> commit
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use reshard_formats::{universal, zero};
use reshard_layout::{Bytes, Layout};
use reshard_transport::{Communicator, TargetState, Version};

use super::rank::RankJob;
use super::ways::{SyncRecord, compared};
use crate::checkpoint::{Cost, convert};
use crate::error::TrainerError;
use crate::verification::Expectation;

/// Times that all ranks wait for each other in one sync: for the last saved file, and for the last converted one.
const WAITS: u64 = 2;

/// Checkpoints in a folder that all ranks see.
pub(super) struct CheckpointWay<'p> {
    everyone: &'p dyn Communicator,
    zero: PathBuf,
    universal: PathBuf,
    /// Of all rollout ranks.
    layout: &'p Layout,
}

impl<'p> CheckpointWay<'p> {
    /// `scratch` is a folder of this run alone, `layout` that of all rollout ranks.
    pub(super) fn new(everyone: &'p dyn Communicator, scratch: &Path, layout: &'p Layout) -> Self {
        let (zero, universal) = (scratch.join("zero"), scratch.join("universal"));
        Self { everyone, zero, universal, layout }
    }

    /// Moves the trainer's masters into the rollout engines, and leaves no file. A collective call of all ranks.
    pub(super) fn sync(
        &self,
        version: u64,
        rank: &mut RankJob,
        expectation: &Expectation,
    ) -> Result<SyncRecord, TrainerError> {
        let start = Instant::now();
        let mut cost = Cost::default();
        if let Some((trainer, _)) = &rank.trainer {
            cost.add(trainer.save_files(&self.zero)?);
        }
        self.everyone.barrier()?;
        if rank.is_first {
            cost.add(convert(zero::open(&self.zero)?, &self.universal)?);
        }
        self.everyone.barrier()?;
        if let Some(rollout) = &mut rank.rollout {
            *rollout.target().2 = TargetState::Torn;
            cost.add(rollout.load(&universal::open(&self.universal)?, self.layout)?);
        }
        let seconds = start.elapsed().as_secs_f64();
        let verification = compared(self.everyone, rank.rollout.as_mut(), Version(version), expectation)?;
        if rank.is_first {
            // Every rank has told its verdict, so that none reads any more.
            for folder in [&self.zero, &self.universal] {
                fs::remove_dir_all(folder).map_err(|cause| TrainerError::Io {
                    operation: format!("remove {}", folder.display()),
                    cause,
                })?;
            }
        }
        Ok(SyncRecord {
            seconds,
            bytes_local: Bytes(0),
            bytes_sent: cost.bytes_written + cost.bytes_read,
            staging_bytes_max: cost.staging_max,
            rounds: WAITS,
            verification,
        })
    }
}

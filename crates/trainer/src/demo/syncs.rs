//! One sync after another: every path in turn, each into targets of NaN, each compared with what the oracle says.
//!
//! ```text
//! drift? -> oracle -> NaN, affine, compare -> listen -> NaN, gather, compare -> NaN, checkpoint, compare
//!                                               '-- weights that the plan moved out of ZeRO's storage speak here
//! ```

use reshard_transport::Communicator;

use super::file_way::CheckpointWay;
use super::options::Path;
use super::rank::RankJob;
use super::ways::{AffineWay, GatherWay, SyncRecord};
use crate::error::TrainerError;
use crate::oracle::Oracle;
use crate::verification::Expectation;

/// Every way that can be asked for.
pub(super) struct Ways<'p> {
    pub(super) affine: AffineWay<'p>,
    pub(super) gather: GatherWay<'p>,
    /// Where there is a folder for it.
    pub(super) checkpoint: Option<CheckpointWay<'p>>,
}

impl Ways<'_> {
    fn sync(
        &mut self,
        path: Path,
        version: u64,
        rank: &mut RankJob,
        expectation: &Expectation,
    ) -> Result<SyncRecord, TrainerError> {
        match path {
            Path::Affine => self.affine.sync(version, &mut rank.parties(), expectation),
            Path::Gather => self.gather.sync(version, &mut rank.parties(), expectation),
            Path::Checkpoint => match &self.checkpoint {
                Some(way) => way.sync(version, rank, expectation),
                None => Err(TrainerError::ScratchMissing),
            },
        }
    }
}

/// All ways that are tried, and what they have done so far.
pub(super) struct Syncs<'p> {
    everyone: &'p dyn Communicator,
    oracle: Oracle,
    ways: Ways<'p>,
    paths: Vec<Path>,
    records: Vec<Vec<SyncRecord>>,
}

impl<'p> Syncs<'p> {
    pub(super) fn new(
        everyone: &'p dyn Communicator,
        oracle: Oracle,
        ways: Ways<'p>,
        paths: &[Path],
    ) -> Self {
        let records = vec![Vec::new(); paths.len()];
        Self { everyone, oracle, ways, paths: paths.to_vec(), records }
    }

    /// Syncs by every path. `initial` says that the trainer still has the weights it was born with. `listen` is called once, right after the affine path, or
    /// after the last one where affine is not among them. A collective call of all ranks.
    pub(super) fn sync(
        &mut self,
        rank: &mut RankJob,
        initial: bool,
        listen: impl FnOnce(&RankJob) -> Result<(), TrainerError>,
    ) -> Result<(), TrainerError> {
        rank.refuse_drift()?;
        let expectation = self.expectation(rank, initial)?;
        let affine = self.paths.iter().position(|path| *path == Path::Affine);
        let heard = affine.unwrap_or(self.paths.len().saturating_sub(1));
        let mut listen = Some(listen);
        for (index, path) in self.paths.iter().enumerate() {
            rank.before_sync()?;
            let version = self.records[index].len() as u64;
            let record = self.ways.sync(*path, version, rank, &expectation)?;
            self.records[index].push(record);
            if let Some(listen) = listen.take_if(|_| index == heard) {
                listen(rank)?;
            }
        }
        Ok(())
    }

    /// What this rank's rollout engine must hold: by the masters once there are some that were trained.
    fn expectation(&self, rank: &mut RankJob, initial: bool) -> Result<Expectation, TrainerError> {
        let parties = rank.parties();
        let rollout = parties.rollout.as_deref();
        if initial {
            return Ok(self.oracle.initial(rollout));
        }
        self.oracle.trained(parties.trainer.map(|(engine, _)| engine), rollout, self.everyone)
    }

    /// One list of records a path, in the order of the paths.
    pub(super) fn into_records(self) -> Vec<Vec<SyncRecord>> {
        self.records
    }
}

//! The plan that a run uses, and the records of all ranks put together into what the report says of a path.
//!
//! ```text
//! rank 0: [first, step 1, .., repeat 1, ..]  \
//! rank 1: [first, step 1, .., repeat 1, ..]   > slowest seconds, summed bytes, largest staging
//! rank 2: [first, step 1, .., repeat 1, ..]  /
//! ```

use std::time::Instant;

use reshard_layout::{Bytes, Layout};
use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::topology::AutoTp;
use reshard_parallel::zero::ZeroOptions;
use reshard_plan::Plan;

use super::faults::swap_tp_ranks;
use super::options::{CheckedOptions, Path};
use super::report::{PathBytes, PathReport, PathSeconds, Pieces, Verified};
use super::ways::SyncRecord;
use crate::error::TrainerError;
use crate::model::Model;

/// The plan, the layout of the rollout ranks, and how long both layouts and the plan took.
pub(super) struct Planned {
    pub(super) plan: Plan,
    pub(super) target: Layout,
    pub(super) seconds: PathSeconds,
}

/// Both layouts and the plan between them: every rank makes the same.
pub(super) fn plan(options: &CheckedOptions) -> Result<Planned, TrainerError> {
    let start = Instant::now();
    let layout = |topology: &AutoTp| -> Result<Layout, TrainerError> {
        Ok(DeepSpeed::new(&options.config, topology, ZeroOptions::default())?.layout()?)
    };
    let mut source = layout(&options.train)?;
    if options.options.faults.swap_tp_ranks {
        let model = Model::new(&options.config, options.train.tp())?;
        source = swap_tp_ranks(&source, &options.train, &model)?;
    }
    let target = layout(&options.rollout)?;
    let layouts = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let plan = reshard_plan::plan(&source, &target, options.options.policy)?;
    let seconds = PathSeconds { layouts, plan: start.elapsed().as_secs_f64(), ..PathSeconds::default() };
    Ok(Planned { plan, target, seconds })
}

/// Puts the records of all ranks together: one list a rank, in the order of the syncs.
pub(super) fn path_report(
    path: Path,
    planned: &Planned,
    records: &[&[SyncRecord]],
    steps: usize,
) -> PathReport {
    let syncs = records.first().map_or(0, |records| records.len());
    let slowest = |sync: usize| records.iter().map(|records| records[sync].seconds).fold(0.0, f64::max);
    let mut seconds = match path {
        Path::Affine => planned.seconds.clone(),
        Path::Gather | Path::Checkpoint => PathSeconds::default(),
    };
    if syncs > 0 {
        seconds.first = slowest(0);
    }
    seconds.repeats = (steps + 1..syncs).map(slowest).collect();
    let mut bytes = PathBytes::default();
    let (mut staging, mut rounds) = (Bytes(0), 0);
    for record in records.iter().filter_map(|records| records.first()) {
        bytes.local += record.bytes_local;
        bytes.sent += record.bytes_sent;
        staging = staging.max(record.staging_bytes_max);
        rounds = rounds.max(record.rounds);
    }
    let mut verified = Verified::default();
    for sync in 0..syncs {
        let outcomes = records.iter().map(|records| &records[sync].verification);
        let is_first = verified.differing.is_empty();
        for outcome in outcomes {
            verified.elements += outcome.elements;
            verified.mismatches += outcome.mismatches;
            if is_first {
                verified.differing.extend(outcome.differing.iter().cloned());
            }
        }
    }
    let pieces = match path {
        Path::Affine => Pieces {
            source: planned.plan.statistics.source_pieces,
            target: planned.plan.statistics.target_pieces,
        },
        Path::Gather | Path::Checkpoint => Pieces::default(),
    };
    PathReport {
        name: path.name().to_owned(),
        seconds,
        bytes,
        staging_bytes_max: staging,
        rounds,
        pieces,
        verified,
    }
}

//! The ways of one sync, each verified against what the oracle says before it counts.
//!
//! ```text
//! affine:  bind -> agree -> torn -> every rank pulls its copies -> compare -> commit, or torn on every rank
//! gather:  torn -> one parameter after another, whole, sliced   -> compare -> everybody's verdict -> commit
//! ```
//!
//! The third, through files, stands in [`file_way`](super::file_way).

use std::collections::HashMap;
use std::time::Instant;

use reshard_layout::{Bytes, StorageId};
use reshard_plan::Plan;
use reshard_transport::{
    Communicator, Moved, Shm, SourceBinding, Synchroniser, TargetBinding, TargetState, TransportError,
    Version, World,
};
use serde::{Deserialize, Serialize};

use crate::error::TrainerError;
use crate::exchange::everyones;
use crate::gather::Parties;
use crate::rollout::RolloutEngine;
use crate::verification::{Expectation, Verification};
use crate::zero::Stored;

/// One sync of one way on one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct SyncRecord {
    /// Until this rank's targets held every byte: without the comparison and the agreement on its outcome.
    pub(super) seconds: f64,
    pub(super) bytes_local: Bytes,
    /// That came from other ranks.
    pub(super) bytes_sent: Bytes,
    pub(super) staging_bytes_max: Bytes,
    pub(super) rounds: u64,
    pub(super) verification: Verification,
}

/// A plan, ready to be run again and again.
pub(super) struct AffineWay<'p> {
    synchroniser: Synchroniser<'p, Shm<'p>>,
    expected: Moved,
    sources: HashMap<String, StorageId>,
    targets: HashMap<String, StorageId>,
}

impl<'p> AffineWay<'p> {
    pub(super) fn new(
        plan: &'p Plan,
        world: &'p World,
        everyone: &'p dyn Communicator,
    ) -> Result<Self, TrainerError> {
        let transport = Shm::new(plan, world)?;
        let own = |places: &reshard_layout::Places| {
            places.of_rank(world.rank()).map(|(id, storage)| (storage.name.clone(), id)).collect()
        };
        Ok(Self {
            expected: transport.expected(),
            synchroniser: Synchroniser::new(transport, everyone),
            sources: own(&plan.source),
            targets: own(&plan.target),
        })
    }

    /// Moves the trainer's weights into the rollout engines. A collective call of all ranks.
    pub(super) fn sync(
        &mut self,
        version: u64,
        parties: &mut Parties<'_>,
        expectation: &Expectation,
    ) -> Result<SyncRecord, TrainerError> {
        let start = Instant::now();
        let mut sources = SourceBinding::new();
        for storage in parties.trainer.map_or(&[][..], |(engine, _)| engine.storages(Stored::Weights)) {
            if let Some(id) = self.sources.get(&storage.spec().name) {
                sources.bind_shared(*id, storage.memory());
            }
        }
        let mut targets = TargetBinding::new();
        let mut idle = TargetState::Torn;
        let (mut state, mut compared) = (&mut idle, None);
        if let Some(rollout) = &mut parties.rollout {
            let model = rollout.model().clone();
            let (description, storages, target_state) = rollout.target();
            let ids: Vec<Option<StorageId>> =
                storages.iter().map(|storage| self.targets.get(&storage.spec().name).copied()).collect();
            for (storage, id) in storages.iter_mut().zip(&ids) {
                if let Some(id) = id {
                    targets.bind(*id, storage.memory_mut());
                }
            }
            state = target_state;
            compared = Some((model, description, ids));
        }
        let (mut verification, mut seconds) = (Verification::default(), 0.0);
        let compare = |targets: &TargetBinding<'_>| {
            seconds = start.elapsed().as_secs_f64();
            let Some((model, description, ids)) = compared else { return Ok(()) };
            let memory = |storage: usize| ids[storage].and_then(|id| targets.bytes(id)).unwrap_or_default();
            verification = expectation.compare(&model, description, memory);
            verdict(&verification)
        };
        let outcome = self.synchroniser.sync(Version(version), &sources, &mut targets, state, compare);
        let moved = match outcome {
            Ok(report) => report.moved,
            Err(TransportError::NotVerified { .. }) => self.expected,
            Err(error) => return Err(error.into()),
        };
        Ok(SyncRecord {
            seconds,
            bytes_local: moved.bytes_local,
            bytes_sent: moved.bytes_sent,
            staging_bytes_max: moved.staging_bytes_max,
            rounds: moved.rounds,
            verification,
        })
    }
}

/// Whole parameters by plain collectives, with every rank's verdict before it counts.
pub(super) struct GatherWay<'p> {
    everyone: &'p dyn Communicator,
    bytes_local: Bytes,
}

impl<'p> GatherWay<'p> {
    pub(super) fn new(everyone: &'p dyn Communicator, parties: &Parties<'_>) -> Self {
        Self { everyone, bytes_local: parties.held_bytes() }
    }

    /// Fills the rollout engines by whole parameters. A collective call of all ranks.
    pub(super) fn sync(
        &self,
        version: u64,
        parties: &mut Parties<'_>,
        expectation: &Expectation,
    ) -> Result<SyncRecord, TrainerError> {
        let start = Instant::now();
        let cost = parties.sync()?;
        let seconds = start.elapsed().as_secs_f64();
        let verification =
            compared(self.everyone, parties.rollout.as_deref_mut(), Version(version), expectation)?;
        Ok(SyncRecord {
            seconds,
            bytes_local: self.bytes_local,
            bytes_sent: cost.received,
            staging_bytes_max: cost.staging_max,
            rounds: cost.collectives,
            verification,
        })
    }
}

/// Compares what this rank's rollout engine, if it has one, holds, and commits it if all ranks' are equal. A
/// collective call of all ranks.
pub(super) fn compared(
    everyone: &dyn Communicator,
    rollout: Option<&mut RolloutEngine>,
    version: Version,
    expectation: &Expectation,
) -> Result<Verification, TrainerError> {
    let compare = |rollout: &RolloutEngine| {
        let memory = |storage: usize| rollout.storages()[storage].memory().as_slice();
        expectation.compare(rollout.model(), rollout.description(), memory)
    };
    let verification = rollout.as_deref().map(compare).unwrap_or_default();
    let all_equal = everyones(everyone, &verification.mismatches)?.iter().all(|count| *count == 0);
    if let Some(rollout) = rollout {
        *rollout.target().2 = if all_equal { TargetState::Committed(version) } else { TargetState::Torn };
    }
    Ok(verification)
}

fn verdict(verification: &Verification) -> Result<(), String> {
    match verification.differing.first() {
        None => Ok(()),
        Some(first) => Err(first.to_string()),
    }
}

//! One rank of the demo: it trains, syncs and generates with the others, and the first rank reports.
//!
//! ```text
//! initial weights, or a checkpoint's -> sync by every path, verified    the first copy speaks after the affine one
//! step                               -> sync by every path, verified    (steps times)
//!                                       sync by every path, verified    (repeats times), it speaks again
//!                                       -> a checkpoint, if one is asked for -> report
//! ```

use std::path::Path;
use std::sync::Arc;

use reshard_formats::Checkpoint;
use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::topology::Slot;
use reshard_parallel::zero::ZeroOptions;
use reshard_transport::{Communicator, World};

use super::file_way::CheckpointWay;
use super::options::{CheckedOptions, DemoOptions};
use super::report::{DemoReport, MemoryReport, ModelReport, Samples};
use super::summary::{Planned, path_report, plan};
use super::syncs::{Syncs, Ways};
use super::ways::{AffineWay, GatherWay, SyncRecord};
use crate::drift::drifted;
use crate::error::TrainerError;
use crate::exchange::everyones;
use crate::gather::{Delivery, Parties};
use crate::model::Model;
use crate::oracle::Oracle;
use crate::rollout::{Choice, RolloutEngine, spoken};
use crate::trainer::{Groups, Trainer, TrainerOptions};
use crate::zero::{AdamW, ZeroEngine};

const PROMPT: &str = "The keeper ";
const SAMPLE_TOKENS: usize = 48;
const SAMPLE_TEMPERATURE: f64 = 0.8;

/// Runs one rank of the demo in a world of [`CheckedOptions::world`] ranks. The first rank gets the report.
/// `scratch` is a folder of this run alone, the same on every rank: the way through files needs it.
///
/// # Errors
/// [`TrainerError::Drifted`] if replicas differ before a sync; whatever else fails here or on a peer.
/// Elements that differ after a sync are no error but part of the report.
pub fn run_rank(
    world: &World,
    options: &CheckedOptions,
    scratch: Option<&Path>,
) -> Result<Option<DemoReport>, TrainerError> {
    let planned = plan(options)?;
    let mut rank = RankJob::new(world, options)?;
    let everyone = Arc::clone(&rank.everyone);
    let everyone = everyone.as_ref();
    let ways = Ways {
        affine: AffineWay::new(&planned.plan, world, everyone)?,
        gather: GatherWay::new(everyone, &rank.parties()),
        checkpoint: scratch.map(|scratch| CheckpointWay::new(everyone, scratch, &planned.target)),
    };
    let DemoOptions { steps, repeats, seed, ref paths, .. } = options.options;
    let mut syncs = Syncs::new(everyone, oracle(options)?, ways, paths);
    let mut samples = Samples { prompt: PROMPT.to_owned(), ..Samples::default() };
    let mut losses = Vec::new();
    let last = u64::from(steps) + u64::from(repeats);
    for turn in 0..=last {
        let initial = turn.min(u64::from(steps)) == 0 && options.options.resume.is_none();
        if let Some((trainer, _)) = &mut rank.trainer
            && (1..=u64::from(steps)).contains(&turn)
        {
            losses.push(trainer.step()?);
        }
        syncs.sync(&mut rank, initial, |rank| {
            if turn == 0 {
                samples.before = rank.say(Choice::Greedy)?;
            }
            if turn == last {
                samples.after = rank.say(Choice::Greedy)?;
                samples.sampled = rank.say(Choice::Sampled { seed, temperature: SAMPLE_TEMPERATURE })?;
            }
            Ok(())
        })?;
    }
    if let (Some((trainer, _)), Some(path)) = (&rank.trainer, &options.options.save) {
        trainer.save(path)?;
    }
    rank.report(options, &planned, losses, &syncs.into_records(), samples)
}

/// What a rank is made of: a trainer, a rollout engine, both, or, beyond the rollout's ranks, one of the two.
pub(super) struct RankJob {
    everyone: Arc<dyn Communicator>,
    pub(super) trainer: Option<(Trainer, Groups)>,
    pub(super) rollout: Option<RolloutEngine>,
    delivery: Delivery,
    first_copy: bool,
    pub(super) is_first: bool,
}

impl RankJob {
    fn new(world: &World, options: &CheckedOptions) -> Result<Self, TrainerError> {
        let rank = world.rank().0;
        let everyone: Arc<dyn Communicator> = Arc::new(world.everyone()?);
        let trainer = if rank < options.train.world() {
            Some(start_trainer(world, options, Slot(rank))?)
        } else {
            None
        };
        let first = if options.options.separate { options.train.world() } else { 0 };
        let slot = rank.checked_sub(first).filter(|slot| *slot < options.rollout.world()).map(Slot);
        let rollout = match slot {
            Some(slot) => Some(start_rollout(world, options, slot)?),
            None => None,
        };
        let delivery = delivery(world, options)?;
        let first_copy = slot.is_some_and(|slot| slot.0 < options.rollout.tp().get());
        Ok(Self { everyone, trainer, rollout, delivery, first_copy, is_first: rank == 0 })
    }

    pub(super) fn parties(&mut self) -> Parties<'_> {
        Parties {
            trainer: self.trainer.as_ref().map(|(trainer, groups)| (trainer.engine(), groups)),
            rollout: self.rollout.as_mut(),
            delivery: self.delivery.clone(),
        }
    }

    /// Replicas must agree before one of them is read. The other ranks of a world see the refusal as this
    /// rank's failure.
    pub(super) fn refuse_drift(&self) -> Result<(), TrainerError> {
        let Some((trainer, groups)) = &self.trainer else { return Ok(()) };
        let drifts = drifted(trainer.engine(), groups)?;
        let Some((first, others)) = drifts.split_first() else { return Ok(()) };
        Err(TrainerError::Drifted {
            parameter: first.parameter.clone(),
            ranks: first.ranks.iter().map(|rank| rank.0).collect(),
            others: others.iter().map(|drift| drift.parameter.clone()).collect(),
        })
    }

    /// Targets become NaN, so that what a sync leaves out is seen; then all ranks start together.
    pub(super) fn before_sync(&mut self) -> Result<(), TrainerError> {
        if let Some(rollout) = &mut self.rollout {
            rollout.poison();
        }
        Ok(self.everyone.barrier()?)
    }

    /// What the first rollout copy says; nothing on other ranks, or where its weights are not complete.
    fn say(&self, choice: Choice) -> Result<String, TrainerError> {
        match &self.rollout {
            Some(rollout) if self.first_copy && rollout.state().version().is_some() => {
                Ok(spoken(&rollout.generate(PROMPT.as_bytes(), SAMPLE_TOKENS, choice)?))
            }
            _ => Ok(String::new()),
        }
    }

    fn report(
        &self,
        options: &CheckedOptions,
        planned: &Planned,
        losses: Vec<f32>,
        records: &[Vec<SyncRecord>],
        samples: Samples,
    ) -> Result<Option<DemoReport>, TrainerError> {
        let records = everyones(self.everyone.as_ref(), &records.to_vec())?;
        let samples = everyones(self.everyone.as_ref(), &samples)?;
        let memory = everyones(self.everyone.as_ref(), &self.memory())?;
        if !self.is_first {
            return Ok(None);
        }
        let paths = options.options.paths.iter().enumerate().map(|(index, path)| {
            let of_path: Vec<&[SyncRecord]> = records.iter().map(|all| all[index].as_slice()).collect();
            path_report(*path, planned, &of_path, options.options.steps as usize)
        });
        let spoken = samples.into_iter().find(|sample| !sample.before.is_empty());
        Ok(Some(DemoReport {
            model: ModelReport {
                name: options.options.model.name.clone(),
                parameters: Model::new(&options.config, options.train.tp())?.elements(),
            },
            train: options.train.to_string(),
            rollout: options.options.rollout.clone(),
            steps_before: self.steps() - losses.len() as u64,
            losses,
            paths: paths.collect(),
            samples: spoken.unwrap_or_else(|| Samples { prompt: PROMPT.to_owned(), ..Samples::default() }),
            memory: memory.into_iter().fold(MemoryReport::default(), most),
        }))
    }

    /// Steps of the trainer, with those before a checkpoint that it goes on from.
    fn steps(&self) -> u64 {
        self.trainer.as_ref().map_or(0, |(trainer, _)| trainer.steps())
    }

    fn memory(&self) -> MemoryReport {
        self.trainer.as_ref().map_or_else(MemoryReport::default, |(trainer, _)| MemoryReport {
            kept_bytes: trainer.engine().bytes(),
            gradient_bytes: trainer.engine().gradient_bytes(),
            working_weight_bytes_max: trainer.meter().peak(),
        })
    }
}

fn most(left: MemoryReport, right: MemoryReport) -> MemoryReport {
    MemoryReport {
        kept_bytes: left.kept_bytes.max(right.kept_bytes),
        gradient_bytes: left.gradient_bytes.max(right.gradient_bytes),
        working_weight_bytes_max: left.working_weight_bytes_max.max(right.working_weight_bytes_max),
    }
}

fn start_trainer(
    world: &World,
    options: &CheckedOptions,
    slot: Slot,
) -> Result<(Trainer, Groups), TrainerError> {
    let deepspeed = DeepSpeed::new(&options.config, &options.train, ZeroOptions::default())?;
    let model = Arc::new(Model::new(&options.config, options.train.tp())?);
    let groups = Groups::new(world, &deepspeed, slot)?;
    let engine = ZeroEngine::new(model, &deepspeed, slot, &groups)?;
    let mut trainer = Trainer::new(engine, &groups, &options.text()?, &trainer_options(options))?;
    if let Some(path) = &options.options.resume {
        trainer.load(&Checkpoint::open(path)?)?;
    }
    Ok((trainer, groups))
}

fn trainer_options(options: &CheckedOptions) -> TrainerOptions {
    TrainerOptions {
        seed: options.options.seed,
        weight_seed_offsets: options.options.faults.weight_seed_offsets.clone(),
        optimizer: AdamW::for_width(options.config.hidden_size()),
    }
}

/// An oracle for trainers that start alike: where a planted fault makes them differ, the drift is refused before the
/// oracle is asked.
fn oracle(options: &CheckedOptions) -> Result<Oracle, TrainerError> {
    let deepspeed = DeepSpeed::new(&options.config, &options.train, ZeroOptions::default())?;
    let model = Arc::new(Model::new(&options.config, options.train.tp())?);
    Ok(Oracle::new(model, &deepspeed, trainer_options(options).weight_seed(0)))
}

fn start_rollout(world: &World, options: &CheckedOptions, slot: Slot) -> Result<RolloutEngine, TrainerError> {
    let deepspeed = DeepSpeed::new(&options.config, &options.rollout, ZeroOptions::default())?;
    let model = Arc::new(Model::new(&options.config, options.rollout.tp())?);
    let tp = Arc::new(world.group(&deepspeed.tp_group(slot))?);
    RolloutEngine::new(model, &deepspeed, slot, tp)
}

/// Separate rollout processes are sent whole parameters by the first trainer rank.
fn delivery(world: &World, options: &CheckedOptions) -> Result<Delivery, TrainerError> {
    if !options.options.separate {
        return Ok(Delivery::InPlace);
    }
    let mut members = vec![reshard_layout::Rank(0)];
    members.extend(options.rollout.ranks());
    if !members.contains(&world.rank()) {
        return Ok(Delivery::Broadcast(None));
    }
    Ok(Delivery::Broadcast(Some(Arc::new(world.group(&members)?))))
}

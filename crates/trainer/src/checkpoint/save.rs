//! Saving: every rank writes its own files of a ZeRO checkpoint, from its own storages.
//!
//! ```text
//!   rank 3 = tp 1, dp 1     storages of this rank ──plan, nothing from others──► zero_pp_rank_1_mp_rank_01_optim_states.pt
//!   stages 1, 2             weights: by the first data-parallel rank alone ────► mp_rank_01_model_states.pt
//!   stage 0                 as stage 1 with one data-parallel rank: rank tp 1, dp 0 writes, its replicas do not
//! ```

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use reshard_formats::zero::write::{AdamGroup, TrainerState, ZeroFiles, files};
use reshard_formats::{FileId, Filling, Kept, OutputFolder, Part, Silent, WriteOptions, write_files};
use reshard_layout::{Bytes, Layout};
use reshard_parallel::engine::{DeepSpeed, State};
use reshard_parallel::zero::{Stage, ZeroOptions};
use reshard_plan::{Plan, Policy, plan};
use reshard_transport::Assembly;

use super::Cost;
use super::memory::{OwnStorages, kept};
use crate::error::TrainerError;
use crate::exchange::everyones;
use crate::topology::{autotp, is_in_order};
use crate::trainer::Trainer;
use crate::zero::{Stored, ZeroEngine};

/// Memory of the writer: a window of a file, and as much beside it.
const WRITE_BYTES: Bytes = Bytes(1 << 20);

/// What fills the files from one kind of storages.
struct Source {
    stored: Stored,
    part: Part,
    plan: Plan,
}

impl Trainer {
    /// Writes this rank's files of a ZeRO checkpoint below `folder`, which need not be there. They are what DeepSpeed
    /// 0.19.8 writes: `latest`, and a folder `global_step<n>`. The checkpoint is complete when every rank of the
    /// trainer has done so.
    ///
    /// # Errors
    /// If a file is there already, or cannot be written.
    pub fn save_files(&self, folder: &Path) -> Result<Cost, TrainerError> {
        self.write(folder, false)
    }

    /// Writes a ZeRO checkpoint to `path`, where nothing may be yet: it is there whole or not at all, and on the disk.
    /// A collective call of all ranks of the trainer; the first one makes the folder.
    ///
    /// # Errors
    /// As [`save_files`](Self::save_files); if something is at `path`; if a peer fails.
    pub fn save(&self, path: &Path) -> Result<Cost, TrainerError> {
        let is_first = self.world().position() == 0;
        let folder = is_first.then(|| OutputFolder::create(path, false)).transpose()?;
        let own = folder.as_ref().map_or_else(PathBuf::new, |folder| folder.path().to_owned());
        let of_first = everyones(self.world(), &own)?.swap_remove(0);
        let cost = self.write(&of_first, true)?;
        self.world().barrier()?;
        if let Some(folder) = folder {
            folder.commit(true)?;
        }
        self.world().barrier()?;
        Ok(cost)
    }

    fn write(&self, folder: &Path, sync: bool) -> Result<Cost, TrainerError> {
        let engine = self.engine();
        let saved = saved_as(engine)?;
        let ZeroFiles { output, writers } = files(&saved, &self.state(&saved))?;
        let own = (0u32..).map(FileId).zip(&writers).filter(|(_, writer)| **writer == engine.rank());
        let own: Vec<FileId> = own.map(|(file, _)| file).collect();
        let mut sources = Vec::new();
        for (name, part) in output.parts {
            let Some((stored, layout)) = layout_of(engine, &name)? else { continue };
            let plan = plan(&layout, &part.layout, Policy::Local)?;
            sources.push(Source { stored, part, plan });
        }
        let memory = |source: &Source| {
            OwnStorages::new(&source.plan.source, engine.rank(), engine.storages(source.stored))
        };
        let memories: Vec<OwnStorages<'_>> = sources.iter().map(memory).collect();
        let assemblies: Vec<Assembly<'_>> =
            sources.iter().map(|source| Assembly::new(&source.plan)).collect::<Result<_, _>>()?;
        let fillings: Vec<Filling<'_>> = sources
            .iter()
            .zip(&assemblies)
            .zip(&memories)
            .map(|((source, assembly), memory)| Filling { part: &source.part, assembly, sources: memory })
            .collect();
        let options =
            WriteOptions { memory: WRITE_BYTES, threads: NonZeroUsize::MIN, sync, ..WriteOptions::default() };
        let report = write_files(folder, &output.files, &own, &fillings, &options, &Silent)?;
        Ok(Cost { bytes_written: report.bytes_written, staging_max: WRITE_BYTES, ..Cost::default() })
    }

    /// Where this trainer stands, as DeepSpeed would say it.
    fn state(&self, saved: &DeepSpeed) -> TrainerState {
        let (optimizer, updates) = self.engine().optimizer();
        let steps = self.steps();
        TrainerState {
            tag: format!("global_step{steps}"),
            global_steps: steps,
            skipped_steps: 0,
            global_samples: steps * self.sequences(),
            groups: vec![AdamGroup {
                step: u32::try_from(updates).unwrap_or(u32::MAX),
                lr: f64::from(optimizer.rate),
                betas: (f64::from(optimizer.beta1), f64::from(optimizer.beta2)),
                eps: f64::from(optimizer.epsilon),
                weight_decay: f64::from(optimizer.weight_decay),
            }],
            clip_grad: 0.0,
            config: self.configuration(saved).to_string(),
        }
    }

    /// The part of DeepSpeed's configuration that holds of this trainer.
    fn configuration(&self, saved: &DeepSpeed) -> serde_json::Value {
        let topology = saved.topology();
        serde_json::json!({
            "train_batch_size": self.sequences(),
            "zero_optimization": { "stage": topology.stage().number() },
            "bf16": { "enabled": saved.dtype() == reshard_layout::DType::Bf16 },
            "tensor_parallel": { "autotp_size": topology.tp().get() },
        })
    }
}

/// The engine whose files are written. Copies hold the same and the first one writes; DeepSpeed has no ZeRO files of
/// stage 0, which keeps what stage 1 keeps with one data-parallel rank.
fn saved_as(engine: &ZeroEngine) -> Result<DeepSpeed, TrainerError> {
    let topology = engine.deepspeed().topology();
    let (dp, stage) = match topology.stage() {
        Stage::Zero => (1, 1),
        stage => (topology.dp().get(), stage.number()),
    };
    if topology.stage() != Stage::Zero && topology.copies().get() == 1 {
        return Ok(engine.deepspeed().clone());
    }
    if !is_in_order(topology) {
        return Err(TrainerError::RanksRenamed { topology: topology.to_string() });
    }
    // Slots, and with them ranks, keep their numbers: what is left out comes after what stays. Copies are never made
    // under zero.Init over the world.
    let init = if topology.init().is_some() { ",init=dp" } else { "" };
    let saved = autotp(&format!("autotp:tp={},dp={dp},zero={stage}{init}", topology.tp()))?;
    Ok(DeepSpeed::new(engine.model().config(), &saved, ZeroOptions::default())?)
}

/// What is stored under a checkpoint's name, and where on every rank; nothing for what no trainer stores.
fn layout_of(engine: &ZeroEngine, name: &Kept) -> Result<Option<(Stored, Layout)>, TrainerError> {
    let all = [Stored::Weights].into_iter().chain(State::ALL.map(Stored::State));
    let Some(stored) = all.into_iter().find(|stored| kept(*stored) == *name) else { return Ok(None) };
    let layout = match stored {
        Stored::Weights => engine.deepspeed().layout()?,
        Stored::State(state) => engine.deepspeed().optimizer_layout(state)?,
    };
    Ok(Some((stored, layout)))
}

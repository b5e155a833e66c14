//! What the demo is asked to do, checked before a process is started.
//!
//! ```text
//! train autotp:tp=2,dp=2,zero=3   ranks 0 1 2 3
//! rollout autotp:tp=2,copies=2    ranks 0 1 | 2 3     --separate: 4 5 | 6 7
//! ```

use std::path::PathBuf;

use reshard_formats::{Checkpoint, OutputFolder};
use reshard_layout::Bytes;
use reshard_parallel::engine::DeepSpeed;
use reshard_parallel::model::ModelConfig;
use reshard_parallel::topology::AutoTp;
use reshard_parallel::zero::ZeroOptions;
use reshard_plan::Policy;
use serde::{Deserialize, Serialize};

use super::scratch::Scratch;
use crate::checkpoint;
use crate::error::TrainerError;
use crate::model::{BuiltIn, Model, check_functions};
use crate::storage::check_storable;
use crate::text::{DEFAULT_TEXT, check_text};
use crate::topology::{autotp, is_in_order};

/// The most processes that the demo starts: each holds a model and its gradients in the memory of one machine.
pub const PROCESSES_MAX: u32 = 64;

/// The most elements that all processes together may work with, a model in each: some ten gigabytes.
pub const ELEMENTS_MAX: u64 = 1 << 29;

/// A way of moving weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// By a plan made of two layouts.
    Affine,
    /// Whole parameters by plain collectives, sliced.
    Gather,
    /// Through files: a ZeRO checkpoint, made a Universal one, loaded.
    Checkpoint,
}

impl Path {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Affine, Self::Gather, Self::Checkpoint];

    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Affine => "affine",
            Self::Gather => "gather",
            Self::Checkpoint => "checkpoint",
        }
    }

    /// The path of a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|path| path.name() == name)
    }
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemoModel {
    /// What the report calls it.
    pub name: String,
    /// Its `config.json`.
    pub config_json: String,
}

impl From<BuiltIn> for DemoModel {
    fn from(model: BuiltIn) -> Self {
        Self { name: model.name.to_owned(), config_json: model.config_json.to_owned() }
    }
}

/// Faults that tests plant, to see that they are found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Seed offsets of the initial weights, by tensor-parallel rank: replicas drift apart.
    pub weight_seed_offsets: Vec<u64>,
    /// Describe the source with the first two ranks of every tensor-parallel group in each other's place, wherever
    /// both hold as much of a parameter.
    pub swap_tp_ranks: bool,
}

/// What the demo is asked to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DemoOptions {
    /// The trainer's topology, such as `autotp:tp=2,dp=2,zero=3`.
    pub train: String,
    /// The rollout engines' topology, such as `autotp:tp=4`, numbered from rank 0.
    pub rollout: String,
    /// The model.
    pub model: DemoModel,
    /// A file to train on; the text of this crate if there is none.
    pub text: Option<PathBuf>,
    /// Training steps. After each, every path syncs.
    pub steps: u32,
    /// Syncs without training between them, after the last step.
    pub repeats: u32,
    /// How the plan chooses sources.
    pub policy: Policy,
    /// The ways to try, in order; one that is named again is not tried again.
    pub paths: Vec<Path>,
    /// Whether the rollout engines have processes of their own.
    pub separate: bool,
    /// Decides initial weights and batches.
    pub seed: u64,
    /// Where the launcher makes the folder that checkpoints pass through; among the system's temporary files if
    /// there is none.
    pub scratch: Option<PathBuf>,
    /// Where a ZeRO checkpoint is left after the last step. Nothing may be there yet.
    pub save: Option<PathBuf>,
    /// A ZeRO or Universal checkpoint to go on from.
    pub resume: Option<PathBuf>,
    /// Faults to plant; none by default.
    pub faults: Faults,
}

impl Default for DemoOptions {
    fn default() -> Self {
        Self {
            train: "autotp:tp=2,dp=2,zero=3".to_owned(),
            rollout: "autotp:tp=4".to_owned(),
            model: crate::model::TINY.into(),
            text: None,
            steps: 3,
            repeats: 3,
            policy: Policy::Balanced,
            paths: Path::ALL.to_vec(),
            separate: false,
            seed: 1,
            scratch: None,
            save: None,
            resume: None,
            faults: Faults::default(),
        }
    }
}

/// Options with their topologies and model read and found to fit together.
///
/// Invariants, in the order of their checks: (1) the trainer numbers its ranks from 0 in order, and so does the
/// rollout, from 0 or with `separate` from the end of the trainer's; (2) the rollout stores plain weights;
/// (3) without `separate` it has at most as many ranks as the trainer; (4) all together are at most
/// [`PROCESSES_MAX`]; (5) the model can be trained and cut; (6) all processes together work with at most
/// [`ELEMENTS_MAX`] elements; (7) every path is there once.
#[derive(Clone, Debug)]
pub struct CheckedOptions {
    pub(crate) train: AutoTp,
    pub(crate) rollout: AutoTp,
    pub(crate) config: ModelConfig,
    pub(crate) options: DemoOptions,
}

impl DemoOptions {
    /// Reads and checks the topologies and the model.
    ///
    /// # Errors
    /// [`TrainerError::Parallel`] for a topology that is malformed, [`TrainerError::RanksRenamed`],
    /// [`TrainerError::RolloutPartitioned`], [`TrainerError::RolloutTooLarge`], [`TrainerError::WorldTooLarge`], [`TrainerError::ModelTooLarge`];
    /// [`TrainerError::InModel`] with what is wrong with the model.
    pub fn check(&self) -> Result<CheckedOptions, TrainerError> {
        let train = in_order(&self.train)?;
        let mut rollout = in_order(&self.rollout)?;
        let (dp, zero) = (rollout.dp().get(), rollout.stage().number());
        let of_trainers = [("dp", dp, dp > 1), ("zero", zero, zero > 0)];
        if let Some(&(key, value, _)) = of_trainers.iter().find(|(.., given)| *given) {
            return Err(TrainerError::RolloutPartitioned { topology: self.rollout.clone(), key, value });
        }
        if self.separate {
            rollout = autotp(&format!("{rollout},first={}", train.world()))?;
        } else if rollout.world() > train.world() {
            let (tp, copies) = (rollout.tp().get(), rollout.copies().get());
            return Err(TrainerError::RolloutTooLarge {
                tp,
                copies,
                needed: rollout.world(),
                found: train.world(),
            });
        }
        let needed = processes(&train, &rollout, self.separate);
        if needed > PROCESSES_MAX {
            return Err(TrainerError::WorldTooLarge { needed, maximum: PROCESSES_MAX });
        }
        let config = self.model.check(&[&train, &rollout]).map_err(|cause| TrainerError::InModel {
            model: self.model.name.clone(),
            cause: Box::new(cause),
        })?;
        let parameters: u64 =
            config.parameters().iter().map(|parameter| parameter.shape.iter().product::<u64>()).sum();
        let elements = parameters.saturating_mul(u64::from(needed));
        if elements > ELEMENTS_MAX {
            return Err(TrainerError::ModelTooLarge {
                model: self.model.name.clone(),
                parameters,
                processes: needed,
                maximum: ELEMENTS_MAX,
            });
        }
        let mut options = self.clone();
        options.paths = unique(&self.paths);
        Ok(CheckedOptions { train, rollout, config, options })
    }
}

impl DemoModel {
    /// Reads the configuration, and checks that it can be trained and cut for some topologies.
    fn check(&self, topologies: &[&AutoTp]) -> Result<ModelConfig, TrainerError> {
        let config = ModelConfig::from_json(&self.config_json)?;
        check_functions(&self.config_json)?;
        check_storable(config.dtype())?;
        for topology in topologies {
            Model::new(&config, topology.tp())?;
        }
        Ok(config)
    }
}

fn processes(train: &AutoTp, rollout: &AutoTp, separate: bool) -> u32 {
    if separate { train.world() + rollout.world() } else { train.world() }
}

fn unique(paths: &[Path]) -> Vec<Path> {
    let mut unique = Vec::new();
    for path in paths {
        if !unique.contains(path) {
            unique.push(*path);
        }
    }
    unique
}

impl CheckedOptions {
    /// Processes that the demo needs: at most [`PROCESSES_MAX`].
    #[must_use]
    pub fn world(&self) -> u32 {
        processes(&self.train, &self.rollout, self.options.separate)
    }

    /// The folder that checkpoints pass through, where a way needs one.
    ///
    /// # Errors
    /// [`TrainerError::Io`] if it cannot be made.
    pub fn scratch(&self) -> Result<Option<Scratch>, TrainerError> {
        let parent = self.options.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let is_needed = self.options.paths.contains(&Path::Checkpoint);
        is_needed.then(|| Scratch::create(&parent)).transpose()
    }

    /// Looks at every file and folder that the options name, before anything is started.
    ///
    /// # Errors
    /// For a text that is unusable, a checkpoint that is none, or a place where nothing can be saved.
    pub(crate) fn check_files(&self) -> Result<(), TrainerError> {
        self.text()?;
        if let Some(path) = &self.options.resume {
            let deepspeed = DeepSpeed::new(&self.config, &self.train, ZeroOptions::default())?;
            let checked = checkpoint::check(&Checkpoint::open(path)?, &deepspeed);
            checked.map_err(|cause| TrainerError::Resume { path: path.clone(), cause: Box::new(cause) })?;
        }
        if let Some(path) = &self.options.save {
            // Dropped at once: it leaves nothing, and everything that it needs is there.
            OutputFolder::create(path, false)?;
        }
        Ok(())
    }

    /// The text to train on, long enough for that.
    pub(crate) fn text(&self) -> Result<Vec<u8>, TrainerError> {
        let Some(path) = &self.options.text else { return Ok(DEFAULT_TEXT.as_bytes().to_vec()) };
        let io = |cause| TrainerError::Io { operation: format!("read {}", path.display()), cause };
        // Every rank reads it again: what can be read only once, or has no end, would differ or hang there.
        let about = std::fs::metadata(path).map_err(io)?;
        if !about.is_file() || about.len() > TEXT_BYTES_MAX.0 {
            let cause = format!("it is no regular file of at most {TEXT_BYTES_MAX} bytes");
            return Err(io(std::io::Error::other(cause)));
        }
        let text = std::fs::read(path).map_err(io)?;
        check_text(&text, Some(path))?;
        Ok(text)
    }
}

/// The longest text to train on.
const TEXT_BYTES_MAX: Bytes = Bytes(1 << 30);

fn in_order(text: &str) -> Result<AutoTp, TrainerError> {
    let topology = autotp(text)?;
    if !is_in_order(&topology) {
        return Err(TrainerError::RanksRenamed { topology: text.to_owned() });
    }
    Ok(topology)
}

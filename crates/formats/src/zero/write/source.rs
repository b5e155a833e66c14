//! What another checkpoint says of where its trainer stood.
//!
//! ```text
//!   ZeRO       mp_rank_00_model_states.pt  + zero_pp_rank_0_mp_rank_00_optim_states.pt   ┐ steps, schedulers,
//!   Universal  ..._model_states.pt         + zero/optimizer_state.pt, zero/<name>/step.pt┘ hyper-parameters
//! ```
//!
//! Only the files of the first rank are asked: what is taken from them is the same on all ranks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use reshard_parallel::engine::DeepSpeed;

use super::fault::WriteFault;
use super::model::DERIVED;
use super::record::{Record, Scalars, no_loss_scale};
use super::tree::Tree;
use crate::checkpoint::{Checkpoint, Format};
use crate::error::FormatError;
use crate::files::{FileId, Files};
use crate::kept::Kept;
use crate::pickle::Value;
use crate::torch::TorchFile;
use crate::zero::files::{FileName, LATEST, Position, named_folder};
use crate::zero::{ModelStates, UniversalInfo};

/// The file that names the newest Universal checkpoint of a folder.
pub(crate) const LATEST_UNIVERSAL: &str = "latest_universal";
/// What a Universal checkpoint's folder ends with.
pub(crate) const UNIVERSAL_ENDING: &str = "_universal";
/// The file of a Universal checkpoint that says what is not of one parameter.
pub(crate) const OPTIMIZER_STATE: &str = "optimizer_state.pt";
const PARAM_GROUPS: &str = "param_groups";
/// Entries of the optimizer's dictionary that do not follow from the topology.
const GLOBAL: [&str; 4] = ["loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad"];

/// A torch file, and where it is.
pub(crate) struct Opened {
    file: FileId,
    path: PathBuf,
    torch: TorchFile,
}

impl Opened {
    pub(crate) fn open(files: &mut Files, path: PathBuf) -> Result<Self, FormatError> {
        let file = files.add(&path)?;
        let torch = TorchFile::open(files, file)?;
        Ok(Self { file, path, torch })
    }

    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    pub(crate) fn root(&self) -> Value<'_> {
        self.torch.pickle.root()
    }

    /// An entry of the whole.
    pub(crate) fn entry(&self, key: &'static str) -> Result<Value<'_>, FormatError> {
        self.below(self.root(), key)
    }

    /// An entry of a part.
    pub(crate) fn below<'v>(&self, value: Value<'v>, key: &'static str) -> Result<Value<'v>, FormatError> {
        value.get(key).ok_or_else(|| self.fault(key))
    }

    fn fault(&self, entry: &'static str) -> FormatError {
        let file = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        WriteFault::Entry { file, entry }.at(&self.path)
    }

    /// An object, to write it again.
    pub(crate) fn taken<'v>(
        &self,
        files: &Files,
        key: &str,
        value: Value<'v>,
    ) -> Result<Tree<'v>, FormatError> {
        Tree::taken(files, self.file, &self.torch, key, value)
    }
}

/// The files of a checkpoint that say where its trainer stood.
pub(crate) struct Origin<'c> {
    pub(crate) source: &'c Checkpoint,
    pub(crate) files: Files,
    /// The folder with the files of model states.
    pub(crate) folder: PathBuf,
    /// Files of model states, one a tensor-parallel rank.
    pub(crate) plain: BTreeMap<Position, PathBuf>,
    /// Files of model states, one a rank.
    pub(crate) partitioned: BTreeMap<Position, PathBuf>,
    pub(crate) model: Opened,
    pub(crate) optimizer: Opened,
    /// What `zero/<name>/step.pt` say, by parameter.
    steps: Vec<(String, Opened)>,
}

impl<'c> Origin<'c> {
    /// Opens the files of the first rank.
    pub(crate) fn open(source: &'c Checkpoint) -> Result<Self, FormatError> {
        let pointer = match source.format {
            Format::Zero => LATEST,
            Format::Universal => LATEST_UNIVERSAL,
            _ => return Err(WriteFault::NoTrainer.at(&source.root)),
        };
        let folder = named_folder(&source.root, pointer)?;
        let (mut plain, mut partitioned, mut optimizer) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        for entry in std::fs::read_dir(&folder).map_err(|cause| FormatError::io("list", &folder, cause))? {
            let entry = entry.map_err(|cause| FormatError::io("list", &folder, cause))?;
            let name = entry.file_name();
            let (files, position) = match FileName::parse(&name.to_string_lossy()) {
                FileName::Model(position) => (&mut plain, position),
                FileName::PartitionedModel(position) => (&mut partitioned, position),
                FileName::Optimizer(position) => (&mut optimizer, position),
                _ => continue,
            };
            files.insert(position, folder.join(name));
        }
        let first =
            |files: &BTreeMap<Position, PathBuf>| files.first_key_value().map(|(_, path)| path.clone());
        let universal = source.format == Format::Universal;
        let zero = folder.join("zero");
        let model = first(&plain).or_else(|| first(&partitioned));
        let state = if universal { Some(zero.join(OPTIMIZER_STATE)) } else { first(&optimizer) };
        let (Some(model), Some(state)) = (model, state) else {
            return Err(WriteFault::NoTrainer.at(&folder));
        };
        let mut files = Files::default();
        let (model, optimizer) = (Opened::open(&mut files, model)?, Opened::open(&mut files, state)?);
        let mut origin =
            Self { source, files, folder, plain, partitioned, model, optimizer, steps: Vec::new() };
        if universal {
            origin.open_steps(&zero)?;
        }
        Ok(origin)
    }

    fn open_steps(&mut self, zero: &Path) -> Result<(), FormatError> {
        let Some(master) = self.source.parts.get(&Kept::Master) else { return Ok(()) };
        for (_, parameter) in master.layout.parameters() {
            let path = zero.join(&parameter.name).join("step.pt");
            if path.is_file() {
                self.steps.push((parameter.name.clone(), Opened::open(&mut self.files, path)?));
            }
        }
        Ok(())
    }

    /// The optimizer's dictionary.
    pub(crate) fn optimizer_entries(&self) -> Result<Value<'_>, FormatError> {
        match self.source.format {
            Format::Universal => Ok(self.optimizer.root()),
            _ => self.optimizer.entry("optimizer_state_dict"),
        }
    }

    /// The dictionary that torch's optimizer made: `state` and `param_groups`. In a Universal checkpoint of stages 1
    /// and 2 it is not there.
    fn inner(&self) -> Result<Option<Value<'_>>, FormatError> {
        let entries = self.optimizer_entries()?;
        let inner = entries.get("base_optimizer_state").or_else(|| entries.get("optimizer_state_dict"));
        Ok(inner.filter(|inner| inner.entries().is_some()))
    }

    /// The name of the folder, without what a Universal checkpoint's ends with.
    pub(crate) fn tag(&self) -> String {
        let name = self.folder.file_name().unwrap_or_default().to_string_lossy();
        name.strip_suffix(UNIVERSAL_ENDING).unwrap_or(&name).to_owned()
    }

    /// All that it says.
    pub(crate) fn record(&self) -> Result<Record<'_>, FormatError> {
        let mut model = Vec::new();
        for (key, value) in self.model.root().entries().into_iter().flatten() {
            if let Some(key) = key.as_str().filter(|key| !DERIVED.contains(key)) {
                model.push((key.to_owned(), self.model.taken(&self.files, key, value)?));
            }
        }
        Ok(Record {
            tag: self.tag(),
            model,
            optimizer: self.global_entries()?,
            groups: self.groups()?,
            scalars: self.scalars()?,
            config: self.model.taken(&self.files, "ds_config", self.model.entry("ds_config")?)?,
            version: self.model.taken(&self.files, "ds_version", self.model.entry("ds_version")?)?,
        })
    }

    fn global_entries(&self) -> Result<Vec<(String, Tree<'_>)>, FormatError> {
        let entries = self.optimizer_entries()?;
        let mut known = if entries.get("loss_scaler").is_none() { no_loss_scale() } else { Vec::new() };
        for key in GLOBAL {
            if let Some(value) = entries.get(key) {
                known.push((key.to_owned(), self.optimizer.taken(&self.files, key, value)?));
            }
        }
        Ok(known)
    }

    fn group_list(&self) -> Result<Value<'_>, FormatError> {
        match self.inner()? {
            Some(inner) => self.optimizer.below(inner, PARAM_GROUPS),
            None => self.optimizer.entry(PARAM_GROUPS),
        }
    }

    /// The hyper-parameters of all groups, as torch's optimizer lists them.
    pub(crate) fn param_groups(&self) -> Result<Tree<'_>, FormatError> {
        self.optimizer.taken(&self.files, PARAM_GROUPS, self.group_list()?)
    }

    fn groups(&self) -> Result<Vec<Vec<(String, Tree<'_>)>>, FormatError> {
        let groups = self.group_list()?.items().ok_or_else(|| self.optimizer.fault(PARAM_GROUPS))?;
        groups.into_iter().map(|group| self.named(group, |key, _| Ok(key != "params"))).collect()
    }

    /// The stage, as the optimizer's dictionary says it.
    pub(crate) fn zero_stage(&self) -> Result<Option<Tree<'_>>, FormatError> {
        const KEY: &str = "zero_stage";
        let stage = self.optimizer_entries()?.get(KEY);
        stage.map(|stage| self.optimizer.taken(&self.files, KEY, stage)).transpose()
    }

    /// How the shards of tensor-parallel ranks join, as the model states say it.
    pub(crate) fn universal_info(&self) -> Result<Option<UniversalInfo>, FormatError> {
        let states = ModelStates::open(&self.files, self.model.file)?;
        Ok(states.universal)
    }

    /// What is kept of each flat tensor that is no tensor of its length.
    pub(crate) fn states(&self) -> Result<Vec<Tree<'_>>, FormatError> {
        let state = self.inner()?.and_then(|inner| inner.get("state"));
        let Some(entries) = state.and_then(Value::entries) else {
            let first = self.steps.first();
            let step = first.map(|(_, step)| step.taken(&self.files, "step", step.root())).transpose()?;
            return Ok(vec![Tree::dict(step.map(|step| ("step", step)).into_iter().collect())]);
        };
        entries.map(|(_, value)| Ok(Tree::dict(self.scalar_entries(value)?))).collect()
    }

    fn scalar_entries<'v>(&self, value: Value<'v>) -> Result<Vec<(String, Tree<'v>)>, FormatError> {
        self.named(value, |_, value| {
            Ok(self.optimizer.torch.tensor(value)?.is_none_or(|it| it.shape.is_empty()))
        })
    }

    /// The entries of a dictionary that are wanted, by their names.
    fn named<'v>(
        &self,
        value: Value<'v>,
        wanted: impl Fn(&str, Value<'v>) -> Result<bool, FormatError>,
    ) -> Result<Vec<(String, Tree<'v>)>, FormatError> {
        let mut list = Vec::new();
        for (key, value) in value.entries().into_iter().flatten() {
            let Some(key) = key.as_str() else { continue };
            if wanted(key, value)? {
                list.push((key.to_owned(), self.optimizer.taken(&self.files, key, value)?));
            }
        }
        Ok(list)
    }

    /// What is kept of parameters beside tensors: of a flat tensor, which holds of all parameters in it.
    fn scalars(&self) -> Result<Scalars<'_>, FormatError> {
        let mut scalars = Scalars::default();
        let state = self.inner()?.and_then(|inner| inner.get("state"));
        let of_group = |number: usize| {
            let mut entries = state.into_iter().flat_map(|state| state.entries().into_iter().flatten());
            entries.find(|(key, _)| key.as_u64() == Some(number as u64)).map(|(_, value)| value)
        };
        if self.source.format == Format::Universal {
            // As DeepSpeed's stage 3 does, which looks at the first group alone.
            if let (Some(value), Some(master)) = (of_group(0), self.source.parts.get(&Kept::Master)) {
                let names = master.layout.parameters().map(|(_, parameter)| parameter.name.clone());
                scalars.add(self.scalar_entries(value)?, names);
            }
            for (name, step) in &self.steps {
                let value = step.taken(&self.files, "step", step.root())?;
                scalars.add(vec![("step".to_owned(), value)], std::iter::once(name.clone()));
            }
            return Ok(scalars);
        }
        const SHAPES: &str = "param_shapes";
        let groups = self.model.entry(SHAPES)?.items().ok_or_else(|| self.model.fault(SHAPES))?;
        for (number, shapes) in groups.into_iter().enumerate() {
            let names = shapes.entries().ok_or_else(|| self.model.fault(SHAPES))?;
            let names = names.filter_map(|(name, _)| name.as_str().map(str::to_owned));
            if let Some(value) = of_group(number) {
                scalars.add(self.scalar_entries(value)?, names);
            }
        }
        Ok(scalars)
    }

    /// The configuration of the source's engine, with the stage and tensor parallelism of another one.
    pub(crate) fn config_for(&self, engine: &DeepSpeed) -> Result<Tree<'_>, FormatError> {
        let config = self.model.entry("ds_config")?;
        let tp = engine.topology().tp().get();
        let size = Tree::Int(i64::from(tp));
        let mut list = self.but(config, &["zero_optimization", "tensor_parallel"])?;
        let stage = ("stage", Tree::Int(i64::from(engine.topology().stage().number())));
        list.push(("zero_optimization".to_owned(), self.changed(config.get("zero_optimization"), stage)?));
        if tp > 1 {
            let parallel = self.changed(config.get("tensor_parallel"), ("autotp_size", size))?;
            list.push(("tensor_parallel".to_owned(), parallel));
        }
        Ok(Tree::dict(list))
    }

    fn changed<'v>(
        &self,
        value: Option<Value<'v>>,
        (key, now): (&str, Tree<'v>),
    ) -> Result<Tree<'v>, FormatError> {
        let mut list = value.map_or(Ok(Vec::new()), |value| self.but(value, &[key]))?;
        list.push((key.to_owned(), now));
        Ok(Tree::dict(list))
    }

    fn but<'v>(&self, value: Value<'v>, left_out: &[&str]) -> Result<Vec<(String, Tree<'v>)>, FormatError> {
        let mut list = Vec::new();
        for (key, value) in value.entries().into_iter().flatten() {
            if let Some(key) = key.as_str().filter(|key| !left_out.contains(key)) {
                list.push((key.to_owned(), self.model.taken(&self.files, key, value)?));
            }
        }
        Ok(list)
    }
}

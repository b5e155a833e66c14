//! Reading a Universal checkpoint.
//!
//! ```text
//!   model states ─ param_shapes ─► which parameters are trained, and shapes of flat tensors (stage 3 on one TP rank)
//!                  module       ─► the type that the model computes with; buffers, and frozen weights if not in zero/
//!   zero/<name>  ─ fp32.pt      ─► Master and Weights      other states ─► State(name)
//! ```
//!
//! A parameter has `fp32.pt` and either every state that another one has, or none: then it never had a gradient, and
//! is in no part of states.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use reshard_layout::DType;

use super::fault::UniversalFault;
use super::folder::{Folder, STEP};
use super::tensors::{TensorsDraft, read};
use crate::checkpoint::{Checkpoint, Facts, Format, Part};
use crate::error::FormatError;
use crate::files::Files;
use crate::kept::Kept;
use crate::torch::{Tensor, TorchFile, read_scalar};
use crate::zero::files::named_folder;
use crate::zero::write::LATEST_UNIVERSAL;
use crate::zero::{Join, ModelStates, frozen, second_names};

/// Opens the folder that holds `latest_universal`, or the one that this names.
///
/// # Errors
/// [`FormatError::Universal`] and [`FormatError::Zero`] naming the file, [`FormatError::Layout`],
/// [`FormatError::Io`].
pub fn open(path: &Path) -> Result<Checkpoint, FormatError> {
    let root = named_folder(path, LATEST_UNIVERSAL)?;
    let folder = Folder::list(&root)?;
    let mut files = Files::default();
    let first = folder.plain.values().next().or_else(|| folder.partitioned.values().next());
    let model = match first {
        Some(first) => Some(Model::open(&mut files, first)?),
        None => None,
    };
    let mut reader = Reader { folder: &folder, model: model.as_ref(), files, root: &root, step: None };
    let tensors = reader.tensors()?;
    let parts = reader.parts(&tensors)?;
    let facts = reader.facts(&parts)?;
    let Reader { files, .. } = reader;
    Ok(Checkpoint { format: Format::Universal, root: root.clone(), files, parts, facts })
}

/// What the first file of model states says.
struct Model {
    path: PathBuf,
    states: ModelStates,
    /// Shapes of the shards of what is trained, in the trainer's order.
    shards: IndexMap<String, Vec<u64>>,
    second_names: BTreeMap<String, String>,
}

impl Model {
    fn open(files: &mut Files, path: &Path) -> Result<Self, FormatError> {
        let file = files.add(path)?;
        let states = ModelStates::open(files, file)?;
        let shards = states.parameter_shapes.iter().flatten().flatten();
        let shards: IndexMap<String, Vec<u64>> =
            shards.map(|(name, shape)| (name.clone(), shape.clone())).collect();
        let second_names = second_names(&states).into_iter().collect();
        Ok(Self { path: path.to_owned(), states, shards, second_names })
    }

    /// The whole shape of a parameter, where the file says it.
    fn shape(&self, name: &str) -> Result<Option<Vec<u64>>, FormatError> {
        let shard =
            self.shards.get(name).or_else(|| self.states.frozen.get(name).map(|frozen| &frozen.shape));
        if let Some(info) = &self.states.universal {
            let empty = shard.is_some_and(|shape| shape.contains(&0));
            let join = info
                .join(name, empty)
                .map_err(|fault| FormatError::Zero { path: self.path.clone(), fault })?;
            if let Join::Affine(map) = join {
                return Ok(Some(map.logical_shape));
            }
        }
        Ok(shard.filter(|_| self.states.ranks.tensor.unwrap_or(1) == 1).cloned())
    }

    fn is_buffer(&self, name: &str) -> bool {
        self.states.buffers.iter().any(|buffer| buffer == name)
    }
}

/// The tensors of a parameter, by state.
type States = IndexMap<String, Tensor>;

struct Reader<'a> {
    folder: &'a Folder,
    model: Option<&'a Model>,
    files: Files,
    root: &'a Path,
    /// The optimizer's step of the first parameter that says one.
    step: Option<(String, f64)>,
}

impl Reader<'_> {
    /// Every tensor in `zero/`, in the trainer's order as far as that is known.
    fn tensors(&mut self) -> Result<IndexMap<String, States>, FormatError> {
        let known = self.model.into_iter().flat_map(|model| model.shards.keys());
        let mut order: Vec<&String> =
            known.filter(|name| self.folder.parameters.contains_key(*name)).collect();
        let first: BTreeSet<&String> = order.iter().copied().collect();
        order.extend(self.folder.parameters.keys().filter(|name| !first.contains(*name)));
        let mut tensors = IndexMap::new();
        for name in order {
            if self.model.is_some_and(|model| model.second_names.contains_key(name)) {
                continue;
            }
            let paths = &self.folder.parameters[name];
            match self.states(name, paths) {
                // DeepSpeed's converter writes the first shard alone of frozen parameters; files of model states
                // have them all.
                Err(FormatError::Universal { fault: UniversalFault::Shape { .. }, .. })
                    if paths.len() == 1 && self.has_in_model(name) => {}
                states => drop(tensors.insert(name.clone(), states?)),
            }
        }
        Ok(tensors)
    }

    fn has_in_model(&self, name: &str) -> bool {
        let frozen = |model: &Model| !model.shards.contains_key(name) && !model.is_buffer(name);
        self.model.is_some_and(|model| frozen(model) && model.states.module.contains_key(name))
    }

    fn states(&mut self, name: &str, paths: &BTreeMap<String, PathBuf>) -> Result<States, FormatError> {
        let folder = self.root.join("zero").join(name);
        let Some(master) = paths.get(Kept::Master.name()) else {
            return Err(UniversalFault::NoMaster { parameter: name.to_owned() }.at(&folder));
        };
        let mut shape = self.model.map_or(Ok(None), |model| model.shape(name))?;
        let mut states = States::new();
        let others = paths.iter().filter(|(state, _)| *state != Kept::Master.name() && *state != STEP);
        for (state, path) in std::iter::once((&Kept::Master.name().to_owned(), master)).chain(others) {
            let file = self.files.add(path)?;
            let tensor = read(&self.files, file, name, shape.as_deref())?;
            shape.get_or_insert_with(|| tensor.shape.clone());
            states.insert(state.clone(), tensor);
        }
        if let Some(path) = paths.get(STEP) {
            self.check_step(name, path)?;
        }
        Ok(states)
    }

    /// All parameters are of one step, or files of two moments lie together.
    fn check_step(&mut self, name: &str, path: &Path) -> Result<(), FormatError> {
        let file = self.files.add(path)?;
        let torch = TorchFile::open(&self.files, file)?;
        let root = torch.pickle.root();
        let tensor = torch.tensor(root)?;
        let found = tensor.map(|tensor| read_scalar(&self.files, &tensor)).transpose()?.or(root.as_f64());
        let Some(found) = found else { return Ok(()) };
        let (other, expected) = self.step.get_or_insert_with(|| (name.to_owned(), found));
        if *expected == found {
            return Ok(());
        }
        let (parameter, other, expected) = (name.to_owned(), other.clone(), *expected);
        Err(UniversalFault::Step { parameter, found, other, expected }.at(path))
    }

    /// Whether an optimizer owns a parameter. Where nothing says so, what has states is owned.
    fn is_trained(&self, name: &str, states: &States) -> bool {
        match self.model.filter(|model| !model.shards.is_empty()) {
            Some(model) => model.shards.contains_key(name) || states.len() > 1,
            None => states.len() > 1 || self.model.is_none_or(|model| !model.is_buffer(name)),
        }
    }

    fn parts(&mut self, tensors: &IndexMap<String, States>) -> Result<IndexMap<Kept, Part>, FormatError> {
        let names: BTreeSet<&String> = tensors.values().flat_map(States::keys).collect();
        let (mut weights, mut master) = (TensorsDraft::default(), TensorsDraft::default());
        let mut drafts: IndexMap<&String, TensorsDraft> = IndexMap::new();
        for (name, states) in tensors {
            let trained = self.is_trained(name, states);
            for (state, tensor) in states {
                if state != Kept::Master.name() {
                    drafts.entry(state).or_default().add(name, tensor);
                    continue;
                }
                // A buffer of the model keeps its type there, and is a float here.
                let own = self
                    .model
                    .filter(|_| !trained)
                    .and_then(|model| model.is_buffer(name).then(|| model.states.module.get(name)).flatten());
                weights.add(name, own.unwrap_or(tensor));
                if trained {
                    master.add(name, tensor);
                }
            }
            if let Some(missing) =
                names.iter().find(|state| states.len() > 1 && !states.contains_key(**state))
            {
                let fault =
                    UniversalFault::StateMissing { parameter: name.clone(), state: (*missing).clone() };
                return Err(fault.at(&self.root.join("zero").join(name)));
            }
        }
        self.add_from_model(tensors, &mut weights)?;
        for (second, first) in self.model.into_iter().flat_map(|model| &model.second_names) {
            for draft in drafts.values_mut().chain([&mut weights, &mut master]) {
                draft.alias(second, first);
            }
        }
        let mut parts = IndexMap::new();
        let states = drafts.into_iter().map(|(state, draft)| (Kept::State(state.clone()), draft));
        for (kept, draft) in [(Kept::Weights, weights), (Kept::Master, master)].into_iter().chain(states) {
            let part =
                draft.build().map_err(|error| FormatError::Layout { path: self.root.to_owned(), error })?;
            parts.insert(kept, part);
        }
        Ok(parts)
    }

    /// Buffers and frozen parameters that are in the files of model states alone.
    fn add_from_model(
        &mut self,
        tensors: &IndexMap<String, States>,
        weights: &mut TensorsDraft,
    ) -> Result<(), FormatError> {
        let Some(model) = self.model else { return Ok(()) };
        let mut is_wanted = false;
        for (name, tensor) in &model.states.module {
            if tensors.contains_key(name) || model.second_names.contains_key(name) {
                continue;
            }
            if model.is_buffer(name) {
                weights.add(name, tensor);
            } else {
                let placeholder = tensor.shape == [0] && !model.states.frozen.contains_key(name);
                is_wanted |= !model.shards.contains_key(name) && !placeholder;
            }
        }
        if is_wanted {
            let sliced = self.folder.plain.is_empty();
            let paths = if sliced { &self.folder.partitioned } else { &self.folder.plain };
            let wanted = |name: &str| !tensors.contains_key(name);
            weights.add_part(&frozen(&mut self.files, paths, sliced, self.root, wanted)?);
        }
        Ok(())
    }

    fn facts(&mut self, parts: &IndexMap<Kept, Part>) -> Result<Facts, FormatError> {
        let mut facts = Facts { stage: self.stage()?, ..Facts::default() };
        let held =
            |kept: &Kept, name: &str| parts.get(kept).is_some_and(|part| part.layout.find(name).is_some());
        if let Some(model) = self.model {
            let count = |value: Option<u64>| value.and_then(|value| u32::try_from(value).ok());
            facts.tp = count(model.states.ranks.tensor);
            facts.dp = count(model.states.ranks.data);
            facts.step = model.states.global_steps;
            facts.buffers = model.states.buffers.clone();
            facts
                .metadata
                .extend(model.states.version.clone().map(|version| ("ds_version".to_owned(), version)));
            facts.model_dtypes = self.model_dtypes(model, &parts[&Kept::Weights]);
        }
        let weights = parts[&Kept::Weights].layout.parameters();
        let untrained =
            weights.map(|(_, parameter)| &parameter.name).filter(|name| !held(&Kept::Master, name));
        facts.frozen = untrained.filter(|name| !facts.buffers.contains(name)).cloned().collect();
        if !self.folder.unknown.is_empty() {
            facts.notes.push(format!("unknown entries: {}", self.folder.unknown.join(", ")));
        }
        facts.config = Some(self.root.join("config.json")).filter(|config| config.is_file());
        Ok(facts)
    }

    fn model_dtypes(&self, model: &Model, weights: &Part) -> IndexMap<String, DType> {
        let parameters = weights.layout.parameters().map(|(_, parameter)| &parameter.name);
        let dtype = |name: &String| model.states.module.get(name).map(|tensor| (name.clone(), tensor.dtype));
        parameters.filter_map(dtype).collect()
    }

    /// The stage that `optimizer_state.pt` names; without it, the one that the files of model states are of.
    fn stage(&mut self) -> Result<Option<u32>, FormatError> {
        if let Some(path) = &self.folder.optimizer {
            let file = self.files.add(path)?;
            let torch = TorchFile::open(&self.files, file)?;
            let stage = torch.pickle.root().get("zero_stage");
            let of_enum = stage.and_then(|stage| stage.arguments().first().and_then(|value| value.as_u64()));
            let stage = stage.and_then(|stage| stage.as_u64()).or(of_enum);
            if let Some(stage) = stage.and_then(|stage| u32::try_from(stage).ok()) {
                return Ok(Some(stage));
            }
        }
        let named =
            self.model.and_then(|model| model.states.stage).and_then(|stage| u32::try_from(stage).ok());
        Ok(named.or_else(|| (!self.folder.partitioned.is_empty()).then_some(3)))
    }
}

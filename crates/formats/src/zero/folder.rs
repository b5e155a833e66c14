//! A ZeRO checkpoint with all its files read, and compared with each other.
//!
//! ```text
//!   model files      one a tensor-parallel rank, at stage 3 one a rank
//!   optimizer files  one a rank: data rank d, tensor rank t -> rank d * tp + t
//!   all of one step, as many as they say themselves, no more and no less
//! ```
//!
//! The pickles are dropped as soon as they are understood.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use super::catalogue::{Catalogue, catalogue};
use super::fault::ZeroFault;
use super::files::{Position, Survey, base_name, checkpoint_folder};
use super::model_states::{FrozenParameter, ModelStates};
use super::optimizer_states::OptimizerStates;
use super::sharing::{FrozenSlices, RankStates, Sharing};
use crate::error::FormatError;
use crate::files::{FileId, Files};

/// The highest stage whose model files stand for all data-parallel ranks.
const STAGE_OF_PLAIN_NAMES_MAX: u64 = 2;

/// A ZeRO checkpoint.
#[derive(Debug)]
pub struct Folder {
    /// The folder of its files.
    pub path: PathBuf,
    /// Its files.
    pub files: Files,
    /// The ZeRO stage.
    pub stage: u64,
    /// Data-parallel ranks.
    pub data_ranks: u32,
    /// Tensor-parallel ranks.
    pub tensor_ranks: u32,
    /// The model files, by tensor-parallel rank; at stage 3 those of data-parallel rank 0.
    pub models: Vec<ModelStates>,
    /// Every tensor of the model.
    pub catalogue: Catalogue,
    /// The optimizer files, by rank. Empty at stage 0, or where none is there.
    pub optimizer: BTreeMap<Position, RankStates>,
    /// Slices of frozen parameters at stage 3, by rank.
    pub frozen: BTreeMap<Position, FrozenSlices>,
    /// File names that mean nothing here.
    pub unknown: Vec<String>,
}

impl Folder {
    /// Reads a checkpoint: the folder with `latest` in it, or the one that it names.
    ///
    /// # Errors
    /// [`FormatError::Zero`] naming file and reason, and what reading a file gives.
    pub fn open(path: &Path) -> Result<Self, FormatError> {
        let path = checkpoint_folder(path)?;
        let survey = Survey::of(&path)?;
        let mut files = Files::default();
        let mut model_files = BTreeMap::new();
        for (position, file) in &survey.model {
            model_files.insert(*position, files.add(file)?);
        }
        let mut optimizer_files = BTreeMap::new();
        for (position, file) in &survey.optimizer {
            optimizer_files.insert(*position, files.add(file)?);
        }
        let reading = Reading { path: &path, files: &files, partitioned: survey.partitioned };
        let (models, others) = reading.models(&model_files)?;
        let optimizer =
            optimizer_files.iter().map(|(at, file)| Ok((*at, OptimizerStates::open(&files, *file)?)));
        let optimizer: BTreeMap<_, _> = optimizer.collect::<Result<_, FormatError>>()?;
        let stage = reading.stage(&models, &optimizer)?;
        let tensor_ranks = models.len() as u64;
        let data_ranks = reading.data_ranks(&models, &optimizer, tensor_ranks)?;
        reading.count(
            "model",
            &model_files,
            if survey.partitioned { data_ranks } else { 1 },
            tensor_ranks,
        )?;
        let catalogue = catalogue(&files, &models, models[0].universal.as_ref(), stage == 3)?;
        let sharing =
            Sharing { files: &files, models: &models, catalogue: &catalogue, data_ranks, tensor_ranks };
        let frozen = if stage == 3 { sharing.frozen(&model_files, others)? } else { BTreeMap::new() };
        let optimizer = sharing.optimizer(stage, optimizer)?;
        let narrow = |ranks: u64| u32::try_from(ranks).unwrap_or(u32::MAX);
        let (data_ranks, tensor_ranks) = (narrow(data_ranks), narrow(tensor_ranks));
        let unknown = survey.unknown;
        Ok(Self {
            path,
            files,
            stage,
            data_ranks,
            tensor_ranks,
            models,
            catalogue,
            optimizer,
            frozen,
            unknown,
        })
    }

    /// The number of a rank in the layouts.
    #[must_use]
    pub fn rank(&self, position: Position) -> u32 {
        position.data * self.tensor_ranks + position.tensor
    }
}

type Models = (Vec<ModelStates>, BTreeMap<Position, IndexMap<String, FrozenParameter>>);

/// Files that are being read.
struct Reading<'a> {
    path: &'a Path,
    files: &'a Files,
    /// Whether the names are those of stage 3.
    partitioned: bool,
}

impl Reading<'_> {
    /// The model files of data-parallel rank 0, and what the other ones hold of frozen parameters.
    fn models(&self, model_files: &BTreeMap<Position, FileId>) -> Result<Models, FormatError> {
        let (mut models, mut others): Models = Default::default();
        for (position, file) in model_files {
            let model = ModelStates::read(self.files, *file, models.is_empty())?;
            if position.data == 0 {
                if models.is_empty() {
                    self.tensor_ranks(&model, model_files)?;
                }
                if let Some(first) = models.first() {
                    self.same_step(first, &model)?;
                }
                models.push(model);
                continue;
            }
            let Some(first) = models.get(position.tensor as usize) else {
                let tensor_ranks = model_files.keys().map(|at| u64::from(at.tensor) + 1).max().unwrap_or(1);
                let tensor_ranks = if models.is_empty() { tensor_ranks } else { models.len() as u64 };
                self.count("model", model_files, u64::from(position.data) + 1, tensor_ranks)?;
                continue;
            };
            self.same_step(first, &model)?;
            if first.parameter_shapes != model.parameter_shapes {
                let key = "param_shapes".to_owned();
                let fault = ZeroFault::NotShared { key, first: self.name(first.file) };
                return Err(fault.at(self.files.path(*file)));
            }
            others.insert(*position, model.frozen);
        }
        if models.is_empty() {
            self.count("model", &BTreeMap::new(), 1, 1)?;
        }
        Ok((models, others))
    }

    /// The files of data-parallel rank 0 are as many as the first one says that there are tensor-parallel ranks.
    fn tensor_ranks(
        &self,
        model: &ModelStates,
        files: &BTreeMap<Position, FileId>,
    ) -> Result<(), FormatError> {
        let of_rank_0: BTreeMap<_, _> =
            files.iter().filter(|(at, _)| at.data == 0).map(|(at, id)| (*at, *id)).collect();
        let expected = model.ranks.tensor.unwrap_or(of_rank_0.len() as u64);
        self.count("model", &of_rank_0, 1, expected)
    }

    fn name(&self, file: FileId) -> String {
        base_name(self.files.path(file))
    }

    fn same_step(&self, first: &ModelStates, model: &ModelStates) -> Result<(), FormatError> {
        if first.global_steps == model.global_steps {
            return Ok(());
        }
        let text = |steps: Option<u64>| steps.map_or("absent".to_owned(), |steps| steps.to_string());
        let fault = ZeroFault::Steps {
            key: "global_steps".to_owned(),
            first: self.name(first.file),
            expected: text(first.global_steps),
            found: text(model.global_steps),
        };
        Err(fault.at(self.files.path(model.file)))
    }

    fn stage(
        &self,
        models: &[ModelStates],
        optimizer: &BTreeMap<Position, OptimizerStates>,
    ) -> Result<u64, FormatError> {
        if self.partitioned && optimizer.is_empty() {
            let key = "optimizer file, which holds the weights at stage 3".to_owned();
            return Err(ZeroFault::Missing { key }.at(self.path));
        }
        let asked = models[0].stage.unwrap_or(0);
        if optimizer.is_empty() && asked > STAGE_OF_PLAIN_NAMES_MAX {
            let key = "ds_config.zero_optimization.stage".to_owned();
            let (expected, because) = (STAGE_OF_PLAIN_NAMES_MAX, "at most, as the names of the files say");
            let fault = ZeroFault::Disagrees { key, expected, found: asked, because };
            return Err(fault.at(self.files.path(models[0].file)));
        }
        let mut stage = None;
        for states in optimizer.values() {
            // The bf16 optimizer does not say.
            let found = states.stage.unwrap_or(1);
            let expected = *stage.get_or_insert(if self.partitioned { 3 } else { found });
            if found != expected || found > 3 || (found == 3) != self.partitioned {
                let key = "optimizer_state_dict.zero_stage".to_owned();
                let because = "as the other files and their names say";
                let fault = ZeroFault::Disagrees { key, expected, found, because };
                return Err(fault.at(self.files.path(states.file)));
            }
        }
        Ok(stage.unwrap_or(asked))
    }

    /// How many data-parallel ranks there are, after a check that each has an optimizer file.
    fn data_ranks(
        &self,
        models: &[ModelStates],
        optimizer: &BTreeMap<Position, OptimizerStates>,
        tensor_ranks: u64,
    ) -> Result<u64, FormatError> {
        let Some(first) = optimizer.values().next() else { return Ok(models[0].ranks.data.unwrap_or(1)) };
        let expected = first.partition_counts.first().copied().unwrap_or(1);
        for states in optimizer.values() {
            if let Some(found) = states.partition_counts.iter().copied().find(|found| *found != expected) {
                let key = "optimizer_state_dict.partition_count".to_owned();
                let because = "as in the other groups and files; groups of experts are not read";
                let fault = ZeroFault::Disagrees { key, expected, found, because };
                return Err(fault.at(self.files.path(states.file)));
            }
        }
        let found = optimizer.iter().map(|(at, states)| (*at, states.file)).collect();
        self.count("optimizer", &found, expected, tensor_ranks)?;
        Ok(expected)
    }

    /// Whether there is a file for each rank and no other.
    fn count(
        &self,
        kind: &'static str,
        files: &BTreeMap<Position, FileId>,
        data_ranks: u64,
        tensor_ranks: u64,
    ) -> Result<(), FormatError> {
        let (data_ranks, tensor_ranks) = (data_ranks.max(1), tensor_ranks.max(1));
        let (expected, found) = (data_ranks.saturating_mul(tensor_ranks), files.len() as u64);
        let too_much =
            files.keys().find(|at| u64::from(at.data) >= data_ranks || u64::from(at.tensor) >= tensor_ranks);
        let odd = match too_much {
            None if found == expected => return Ok(()),
            Some(at) => format!("{} is too much", name_of(*at)),
            None => {
                // All files that are there belong, so one of the first `found + 1` ranks has none.
                let narrow = |rank: u64| u32::try_from(rank).unwrap_or(u32::MAX);
                let place =
                    |at| Position { data: narrow(at / tensor_ranks), tensor: narrow(at % tensor_ranks) };
                let missing = (0..=found).map(place).find(|at| !files.contains_key(at));
                missing.map_or_else(String::new, |at| format!("{} is missing", name_of(at)))
            }
        };
        Err(ZeroFault::FileCount { kind, expected, found, tensor_ranks, data_ranks, odd }.at(self.path))
    }
}

fn name_of(position: Position) -> String {
    format!("that of data-parallel rank {} and tensor-parallel rank {}", position.data, position.tensor)
}

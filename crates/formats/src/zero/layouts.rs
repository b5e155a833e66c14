//! The layouts of a ZeRO checkpoint: weights, masters, and every state that the optimizer keeps.
//!
//! ```text
//!   weights   stages 0 to 2: the module's tensors, rank = tensor-parallel rank
//!             stage 3: the masters, slices of frozen parameters, buffers; rank = data rank * tp + tensor rank
//!   fp32      single_partition_of_fp32_groups, or fp32_flat_groups
//!   exp_avg   the flat tensors of that name
//! ```
//!
//! Each tensor of a file is a storage of its own.

use indexmap::{IndexMap, IndexSet};

use super::catalogue::{LogicalTensor, Role};
use super::fault::ZeroFault;
use super::folder::Folder;
use super::part::Pieces;
use super::partitions::Share;
use super::sharing::RankStates;
use crate::checkpoint::{Checkpoint, Facts, Format, Part};
use crate::error::FormatError;
use crate::kept::Kept;
use crate::safetensors::config_beside;
use crate::torch::Tensor;

/// States that have one element for each of a parameter, so that another length is damage.
const ELEMENTWISE: [&str; 4] = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"];

impl Folder {
    /// The checkpoint that the files are.
    ///
    /// # Errors
    /// [`FormatError::Layout`] where something is missing or there twice.
    pub fn checkpoint(self) -> Result<Checkpoint, FormatError> {
        let mut parts = IndexMap::new();
        parts.insert(Kept::Weights, self.weights()?);
        if !self.optimizer.is_empty() {
            parts.insert(Kept::Master, self.flat(None)?);
            for state in self.states()? {
                let part = self.flat(Some(&state))?;
                parts.insert(Kept::State(state), part);
            }
        }
        let facts = self.facts();
        Ok(Checkpoint { format: Format::Zero, root: self.path, files: self.files, parts, facts })
    }

    /// Names of the states that some group keeps, in the order in which they are found.
    fn states(&self) -> Result<IndexSet<String>, FormatError> {
        let mut names = IndexSet::new();
        for states in self.optimizer.values() {
            for (group, (kept, share)) in states.groups.iter().enumerate() {
                for (name, tensor) in &kept.states {
                    if fits(tensor, share) {
                        names.insert(name.clone());
                    } else if ELEMENTWISE.contains(&name.as_str()) {
                        let fault = ZeroFault::Disagrees {
                            key: format!("the length of {name} of group {group}"),
                            expected: share.length,
                            found: tensor.shape[0],
                            because: "as the group has elements in this rank",
                        };
                        return Err(fault.at(self.files.path(states.file)));
                    }
                }
            }
        }
        Ok(names)
    }

    /// The masters, or a state.
    fn flat(&self, state: Option<&str>) -> Result<Part, FormatError> {
        let mut part = Pieces::new(&self.catalogue);
        self.place_flat(&mut part, state)?;
        part.build(&self.path)
    }

    fn place_flat<'a>(&'a self, part: &mut Pieces<'a>, state: Option<&str>) -> Result<(), FormatError> {
        for (position, states) in &self.optimizer {
            for (group, (kept, share)) in states.groups.iter().enumerate() {
                let (name, tensor) = match state {
                    Some(state) => (state, kept.states.get(state).filter(|tensor| fits(tensor, share))),
                    None => (Kept::Master.name(), Some(&kept.master)),
                };
                let Some(tensor) = tensor else { continue };
                if let Some(parameter) = part.scaled(share).filter(|_| state.is_some()) {
                    let (parameter, state) = (parameter.to_owned(), name.to_owned());
                    return Err(ZeroFault::ScaledState { parameter, state }.at(self.files.path(states.file)));
                }
                part.share(self.rank(*position), *position, tensor, share, format!("{name} {group}"));
            }
        }
        Ok(())
    }

    fn weights(&self) -> Result<Part, FormatError> {
        let mut part = Pieces::new(&self.catalogue);
        if self.stage == 3 {
            self.place_flat(&mut part, None)?;
            for (position, frozen) in &self.frozen {
                for (name, (kept, share)) in &frozen.slices {
                    if let Some(tensor) = &kept.fragment {
                        let label = format!("frozen {name}");
                        part.share(self.rank(*position), *position, tensor, share, label);
                    }
                }
            }
        }
        for (rank, model) in (0u32..).zip(&self.models) {
            for (name, tensor) in &model.module {
                let role = self.catalogue.tensors.get(name).map(|logical| logical.role);
                let is_sliced =
                    self.stage == 3 && (role == Some(Role::Trained) || model.frozen.contains_key(name));
                if !is_sliced {
                    part.whole(rank, rank, name, tensor);
                }
            }
        }
        part.build(&self.path)
    }

    fn facts(&self) -> Facts {
        let first = &self.models[0];
        let of_role = |role: Role| {
            let named = self.catalogue.tensors.iter().filter(move |(_, tensor)| tensor.role == role);
            named.map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        let dtype = |(name, tensor): (&String, &LogicalTensor)| Some((name.clone(), tensor.dtype?));
        let mut metadata = IndexMap::new();
        if let Some(version) = &first.version {
            metadata.insert("ds_version".to_owned(), version.clone());
        }
        let steps = self.optimizer.values().next().map_or(Vec::new(), RankStates::steps);
        if !steps.is_empty() {
            metadata.insert("optimizer steps by group".to_owned(), steps.join(", "));
        }
        Facts {
            stage: u32::try_from(self.stage).ok(),
            tp: Some(self.tensor_ranks),
            dp: Some(self.data_ranks),
            step: first.global_steps,
            frozen: of_role(Role::Frozen),
            buffers: of_role(Role::Buffer),
            model_dtypes: self.catalogue.tensors.iter().filter_map(dtype).collect(),
            config: config_beside(&self.path),
            metadata,
            packed: IndexMap::new(),
            notes: self.notes(),
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |what: &str, names: Vec<&str>| {
            if !names.is_empty() {
                notes.push(format!("{what}: {}", names.join(", ")));
            }
        };
        let first = &self.models[0];
        let left_out = self.catalogue.left_out.iter().chain(&first.left_out).map(String::as_str);
        note(
            "left out, entries of the module that are no tensors or nothing is known of",
            left_out.collect(),
        );
        let states: IndexSet<&str> = self.optimizer.values().flat_map(RankStates::left_out).collect();
        note(
            "left out, states that have not one element for each of the parameters",
            states.into_iter().collect(),
        );
        note("files whose names mean nothing here", self.unknown.iter().map(String::as_str).collect());
        if self.optimizer.is_empty() {
            notes.push("weights only: no optimizer states of ZeRO are here".to_owned());
        }
        notes
    }
}

impl RankStates {
    /// How many steps the optimizer took with each group, as far as it counts them.
    fn steps(&self) -> Vec<String> {
        self.groups.iter().filter_map(|(kept, _)| kept.step).map(|step| step.to_string()).collect()
    }

    fn left_out(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().flat_map(|(kept, share)| {
            let odd = kept.states.iter().filter(|(_, tensor)| !fits(tensor, share)).map(|(name, _)| name);
            odd.chain(&kept.left_out).map(String::as_str)
        })
    }
}

/// Whether a flat tensor has the elements of a share, with or without the padding at its end.
fn fits(tensor: &Tensor, share: &Share) -> bool {
    tensor.shape[0] == share.length || tensor.shape[0] == share.unpadded
}

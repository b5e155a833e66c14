//! The parameters of a checkpoint: whole shapes, tensor-parallel shards, who trains them, second names.
//!
//! ```text
//!   rank 0: up (9, 7)    rank 1: up (9, 7)    ─join──►  up (18, 7), trained, shards: rows 0..9 and 9..18
//!   rank 0: count ()     rank 1: count ()               count (), a buffer, whole on both
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use indexmap::{IndexMap, IndexSet};
use reshard_layout::{DType, Elements, LayoutError, volume};

use super::fault::ZeroFault;
use super::join::{Joined, join};
use super::model_states::ModelStates;
use super::universal_info::UniversalInfo;
use crate::error::FormatError;
use crate::files::{Files, Span};
use crate::torch::Tensor;

/// What a tensor of the model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A parameter that an optimizer owns.
    Trained,
    /// A parameter that none owns.
    Frozen,
    /// No parameter.
    Buffer,
}

/// A tensor of the model.
#[derive(Clone, Debug)]
pub struct LogicalTensor {
    /// What it is.
    pub role: Role,
    /// Its whole shape, and its shards.
    pub joined: Joined,
    /// The type that the model computes with, where the module says it.
    pub dtype: Option<DType>,
}

/// Every tensor of the model.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// By name, in the module's order.
    pub tensors: IndexMap<String, LogicalTensor>,
    /// Second names, and the first names.
    pub aliases: Vec<(String, String)>,
    /// Names in the module that nothing is known of.
    pub left_out: Vec<String>,
}

/// Finds the tensors, given the model files by tensor-parallel rank.
pub(super) fn catalogue(
    files: &Files,
    models: &[ModelStates],
    info: Option<&UniversalInfo>,
    sliced: bool,
) -> Result<Catalogue, FormatError> {
    let first = &models[0];
    let path = files.path(first.file);
    let aliases = aliases(first, sliced);
    let second: IndexSet<&str> = aliases.iter().map(|(name, _)| name.as_str()).collect();
    let trained: Vec<HashMap<&str, &Vec<u64>>> = models.iter().map(trained_shapes).collect();
    let buffers: IndexSet<&str> = first.buffers.iter().map(String::as_str).collect();
    let mut catalogue = Catalogue { aliases: Vec::new(), ..Catalogue::default() };
    for name in names(models).into_iter().filter(|name| !second.contains(name)) {
        let role = match () {
            () if buffers.contains(name) => Role::Buffer,
            () if trained.iter().any(|shapes| shapes.contains_key(name)) => Role::Trained,
            () => Role::Frozen,
        };
        let mut shapes = Vec::with_capacity(models.len());
        for (rank, model) in models.iter().enumerate() {
            match shape(model, trained[rank].get(name).copied(), name, sliced) {
                Ok(Some(shape)) => shapes.push(shape),
                Ok(None) => {}
                Err(expected) => {
                    let fault = ZeroFault::Shard {
                        parameter: name.to_owned(),
                        rank,
                        found: model.module[name].shape.clone(),
                        expected,
                    };
                    return Err(fault.at(files.path(model.file)));
                }
            }
        }
        if shapes.is_empty() {
            catalogue.left_out.push(name.to_owned());
            continue;
        }
        if shapes.len() < models.len() {
            let lacks = |model: &ModelStates| !model.module.contains_key(name);
            let rank = models.iter().position(lacks).unwrap_or_default();
            return Err(ZeroFault::NotEverywhere { parameter: name.to_owned(), rank }.at(path));
        }
        let joined = joined(name, &shapes, role, info, path)?;
        let dtype = models.iter().find_map(|model| model.module.get(name)).map(|tensor| tensor.dtype);
        catalogue.tensors.insert(name.to_owned(), LogicalTensor { role, joined, dtype });
    }
    catalogue.aliases =
        aliases.into_iter().filter(|(_, target)| catalogue.tensors.contains_key(target)).collect();
    Ok(catalogue)
}

fn joined(
    name: &str,
    shapes: &[Vec<u64>],
    role: Role,
    info: Option<&UniversalInfo>,
    path: &std::path::Path,
) -> Result<Joined, FormatError> {
    if role == Role::Buffer && shapes.iter().all(|shape| *shape == shapes[0]) {
        return Ok(Joined::whole(&shapes[0], shapes.len()));
    }
    let layout = |error: LayoutError| FormatError::Layout { path: path.to_owned(), error };
    join(name, shapes, info, &|fault| fault.at(path), &layout)
}

/// Every name, in the first module's order; what only other ranks or records know comes last.
fn names(models: &[ModelStates]) -> IndexSet<&str> {
    let modules = models.iter().flat_map(|model| model.module.keys());
    let trained =
        models.iter().flat_map(|model| model.parameter_shapes.iter().flatten().flat_map(IndexMap::keys));
    let frozen = models.iter().flat_map(|model| model.frozen.keys());
    modules.chain(trained).chain(frozen).map(String::as_str).collect()
}

fn trained_shapes(model: &ModelStates) -> HashMap<&str, &Vec<u64>> {
    let groups = model.parameter_shapes.iter().flatten();
    groups.flatten().map(|(name, shape)| (name.as_str(), shape)).collect()
}

/// The shape of one rank's shard: as recorded, or that of the module's tensor where it is no placeholder.
fn shape(
    model: &ModelStates,
    trained: Option<&Vec<u64>>,
    name: &str,
    sliced: bool,
) -> Result<Option<Vec<u64>>, String> {
    let recorded = trained.or_else(|| model.frozen.get(name).map(|frozen| &frozen.shape));
    let held = model.module.get(name).map(|tensor| &tensor.shape);
    match (recorded, held) {
        (Some(recorded), Some(held)) if !sliced && recorded != held => {
            Err(format!("recorded as {recorded:?}"))
        }
        (Some(recorded), _) => Ok(Some(recorded.clone())),
        (None, Some(held)) if sliced && held == &[0] => Ok(None),
        (None, held) => Ok(held.cloned()),
    }
}

/// Second names of parameters. Below stage 3 tied tensors are one view of one storage, whatever the record says:
/// DeepSpeed compares addresses, which are equal for all tensors without elements.
pub(super) fn aliases(model: &ModelStates, sliced: bool) -> Vec<(String, String)> {
    if sliced {
        return aliases_of_placeholders(model);
    }
    let trained = trained_shapes(model);
    // What has a record of its own is a first name, wherever it stands in the module.
    let is_first = |name: &str| trained.contains_key(name) || model.frozen.contains_key(name);
    let held = model.module.iter().filter(|(_, tensor)| volume(&tensor.shape) != Some(0));
    let (firsts, others): (Vec<_>, Vec<_>) = held.partition(|(name, _)| is_first(name));
    let mut views: HashMap<_, _> = firsts.into_iter().map(|(name, tensor)| (view(tensor), name)).collect();
    let mut aliases = Vec::new();
    for (name, tensor) in others {
        match views.entry(view(tensor)) {
            Entry::Occupied(first) => aliases.push((name.clone(), (*first.get()).clone())),
            Entry::Vacant(place) => drop(place.insert(name)),
        }
    }
    aliases
}

/// The elements of a storage that a tensor is.
fn view(tensor: &Tensor) -> (Span, Elements, &[u64], &[u64]) {
    (tensor.storage, tensor.offset, &tensor.shape, &tensor.strides)
}

/// At stage 3 the record names tied parameters, but not the parameters of a module that has two names: DeepSpeed walks
/// each module once. Their placeholders are one empty storage, and that of no other parameter.
fn aliases_of_placeholders(model: &ModelStates) -> Vec<(String, String)> {
    let trained = trained_shapes(model);
    let is_first = |name: &str| trained.contains_key(name) || model.frozen.contains_key(name);
    let mut aliases: IndexMap<String, String> =
        model.shared.iter().filter(|(name, _)| !is_first(name)).cloned().collect();
    let mut firsts: HashMap<&str, Vec<&String>> = HashMap::new();
    for (name, tensor) in model.module.iter().filter(|(name, _)| is_first(name)) {
        firsts.entry(&tensor.key).or_default().push(name);
    }
    for (name, tensor) in &model.module {
        let is_second = tensor.shape == [0] && !is_first(name) && !aliases.contains_key(name);
        if let Some([first]) = firsts.get(tensor.key.as_str()).filter(|_| is_second).map(Vec::as_slice) {
            aliases.insert(name.clone(), (*first).clone());
        }
    }
    aliases.into_iter().collect()
}

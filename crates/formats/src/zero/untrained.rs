//! Frozen parameters and second names, from the files of model states alone: what a Universal checkpoint keeps of a ZeRO one.
//!
//! ```text
//!   mp_rank_00, mp_rank_01                 module[name]: a shard each
//!   zero_pp_rank_D_mp_rank_T               frozen_param_fragments[name]: slice D of shard T
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::catalogue::{Catalogue, Role, aliases, catalogue};
use super::files::Position;
use super::model_states::ModelStates;
use super::part::Pieces;
use super::sharing::Sharing;
use crate::checkpoint::Part;
use crate::error::FormatError;
use crate::files::Files;

/// Second names of parameters, and the first ones, as one file of model states shows them: with weights or without.
pub(crate) fn second_names(model: &ModelStates) -> Vec<(String, String)> {
    let mut shards = model.parameter_shapes.iter().flatten().flatten();
    let is_placeholder = |(name, shape): (&String, &Vec<u64>)| {
        model.module.get(name).is_some_and(|tensor| tensor.shape == [0] && shape != &[0])
    };
    aliases(model, shards.any(is_placeholder))
}

/// Where the frozen parameters that are `wanted` lie in files of model states: of stage 3 (`sliced`) or below.
///
/// # Errors
/// [`FormatError::Zero`] naming the file, [`FormatError::Layout`] where parts are missing.
pub(crate) fn frozen(
    files: &mut Files,
    paths: &BTreeMap<Position, PathBuf>,
    sliced: bool,
    root: &Path,
    wanted: impl Fn(&str) -> bool,
) -> Result<Part, FormatError> {
    let (mut models, mut others, mut model_files) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for (position, path) in paths {
        let file = files.add(path)?;
        let mut model = ModelStates::open(files, file)?;
        model.frozen.retain(|name, _| wanted(name));
        model_files.insert(*position, file);
        if position.data == 0 {
            models.push(model);
        } else {
            others.insert(*position, model.frozen);
        }
    }
    let Some(first) = models.first() else { return Pieces::new(&Catalogue::default()).build(root) };
    let catalogue = catalogue(files, &models, first.universal.as_ref(), sliced)?;
    let last = paths.keys().map(|at| u64::from(at.data)).max().unwrap_or(0);
    let (data_ranks, tensor_ranks) = (last + 1, models.len() as u64);
    let sharing = Sharing { files, models: &models, catalogue: &catalogue, data_ranks, tensor_ranks };
    let slices = if sliced { sharing.frozen(&model_files, others)? } else { BTreeMap::new() };
    let mut part = Pieces::new(&catalogue);
    for (position, held) in &slices {
        for (name, (kept, share)) in &held.slices {
            if let Some(tensor) = &kept.fragment {
                let rank = position.data * u32::try_from(tensor_ranks).unwrap_or(u32::MAX) + position.tensor;
                part.share(rank, *position, tensor, share, format!("frozen {name}"));
            }
        }
    }
    for (rank, model) in (0u32..).zip(&models).filter(|_| !sliced) {
        for (name, tensor) in &model.module {
            let role = catalogue.tensors.get(name).map(|logical| logical.role);
            if role == Some(Role::Frozen) && wanted(name) {
                part.whole(rank, rank, name, tensor);
            }
        }
    }
    part.build(root)
}

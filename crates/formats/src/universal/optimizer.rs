//! `zero/optimizer_state.pt`: what a loader wants of the optimizer that is not of one parameter.
//!
//! ```text
//!   stages 1, 2 want   loss_scaler ... ds_version  param_groups
//!   stage 3 wants      loss_scaler ...             optimizer_state_dict {state: {0: {step}}, param_groups}
//! ```
//!
//! None of the two minds the other's entries, so that one file serves both. Neither wants a flat tensor.

use super::output::Families;
use crate::error::FormatError;
use crate::zero::write::{Origin, Record, Tree, stage_enum};

/// Entries that hold flat tensors or say where in them something lies, and those that are written anew.
const REPLACED: [&str; 7] = [
    "base_optimizer_state",
    "param_slice_mappings",
    "single_partition_of_fp32_groups",
    "optimizer_state_dict",
    "fp32_flat_groups",
    "param_groups",
    "zero_stage",
];
/// Entries that say how the source's own flat tensors are partitioned.
const OF_PARTITIONS: [&str; 3] = ["group_paddings", "param_alignment_paddings", "partition_count"];

/// The contents of the file for loaders of `families`; `found` is of whom the source is.
pub(super) fn optimizer_state<'o>(
    origin: &'o Origin<'_>,
    record: &Record<'o>,
    found: Families,
    families: Families,
) -> Result<Tree<'o>, FormatError> {
    let keeps_partitions = (found.plain && families.plain) || (found.partitioned && families.partitioned);
    let mut entries = Vec::new();
    for (key, value) in origin.optimizer_entries()?.entries().into_iter().flatten() {
        let Some(key) = key.as_str().filter(|key| !REPLACED.contains(key)) else { continue };
        if keeps_partitions || !OF_PARTITIONS.contains(&key) {
            entries.push((key.to_owned(), origin.optimizer.taken(&origin.files, key, value)?));
        }
    }
    let stage = match (origin.zero_stage()?, families) {
        (Some(stage), _) if keeps_partitions => Some(stage),
        (_, Families { partitioned: true, .. }) => Some(stage_enum(3)),
        _ => Some(stage_enum(1)).filter(|_| !keeps_partitions),
    };
    entries.extend(stage.map(|stage| ("zero_stage".to_owned(), stage)));
    let groups = origin.param_groups()?;
    if families.plain && !entries.iter().any(|(key, _)| key == "ds_version") {
        entries.push(("ds_version".to_owned(), record.version.clone()));
    }
    if families.partitioned {
        let state = Tree::Dict((0..).map(Tree::Int).zip(origin.states()?).collect());
        let inner = vec![("state", state), ("param_groups", groups.clone())];
        entries.push(("optimizer_state_dict".to_owned(), Tree::dict(inner)));
    }
    entries.push(("param_groups".to_owned(), groups));
    Ok(Tree::dict(entries))
}

//! Files of model states: taken over as they are, or made for the other family of stages.
//!
//! ```text
//!   mp_rank_01_model_states.pt  ─── stages 1, 2 ──► copied
//!        module: weights        ─── stage 3 ──────► zero_pp_rank_0_mp_rank_01_model_states.pt
//!                                                     module: placeholders, and buffers
//! ```
//!
//! Who loads a Universal checkpoint takes the weights from `zero/` and asks these files for steps and schedulers only,
//! at stage 3 those of data-parallel rank 0 alone. There must be as many as `mp_world_size` says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::output::Families;
use crate::error::FormatError;
use crate::files::Files;
use crate::output::Output;
use crate::zero::ModelStates;
use crate::zero::files::Position;
use crate::zero::write::{Opened, Origin, Tree, file};

/// Adds the files of model states that loaders of `families` look for.
pub(super) fn add(
    output: &mut Output,
    origin: &Origin<'_>,
    folder: &Path,
    families: Families,
) -> Result<(), FormatError> {
    let plain = |position: &Position| format!("mp_rank_{:02}_model_states.pt", position.tensor);
    let partitioned =
        |position: &Position| format!("zero_pp_rank_0_mp_rank_{:02}_model_states.pt", position.tensor);
    if families.plain {
        one_family(output, folder, (&origin.plain, &origin.partitioned), plain)?;
    }
    if families.partitioned {
        one_family(output, folder, (&origin.partitioned, &origin.plain), partitioned)?;
    }
    Ok(())
}

/// The family's own files, if there are any; else the other's, rewritten.
fn one_family(
    output: &mut Output,
    folder: &Path,
    (own, other): (&BTreeMap<Position, PathBuf>, &BTreeMap<Position, PathBuf>),
    name: impl Fn(&Position) -> String,
) -> Result<(), FormatError> {
    for path in own.values() {
        let name = path.file_name().unwrap_or_default();
        output.copied.push((path.clone(), folder.join(name)));
    }
    if own.is_empty() {
        for (position, path) in other.iter().filter(|(position, _)| position.data == 0) {
            let mut files = Files::default();
            let opened = Opened::open(&mut files, path.clone())?;
            let tree = without_weights(&files, &opened)?;
            output.files.push(file(folder.join(name(position)), &tree, &[])?.0);
        }
    }
    Ok(())
}

/// A file of model states without a weight in it: what is in `zero/` anyway.
fn without_weights<'o>(files: &Files, opened: &'o Opened) -> Result<Tree<'o>, FormatError> {
    let states = ModelStates::open(files, opened.file())?;
    let mut entries = Vec::new();
    for (key, value) in opened.root().entries().into_iter().flatten() {
        let Some(key) = key.as_str() else { continue };
        let tree = match key {
            "module" => {
                let mut module = Vec::new();
                for (name, value) in value.entries().into_iter().flatten() {
                    let Some(name) = name.as_str() else { continue };
                    let tree = match states.module.get(name) {
                        Some(tensor) if !states.buffers.iter().any(|buffer| buffer == name) => {
                            Tree::empty(tensor.dtype, vec![0])
                        }
                        _ => opened.taken(files, name, value)?,
                    };
                    module.push((name.to_owned(), tree));
                }
                Tree::Ordered(module)
            }
            "frozen_param_fragments" => Tree::None,
            _ => opened.taken(files, key, value)?,
        };
        entries.push((key.to_owned(), tree));
    }
    Ok(Tree::dict(entries))
}

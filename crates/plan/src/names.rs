//! Joins two layouts by the names of their parameters.
//!
//! ```text
//!   target "lm_head.weight"  ->  source alias "lm_head.weight"  ->  source parameter "embed_tokens.weight"
//! ```

use reshard_layout::{DType, Layout, ParameterId};

use crate::error::PlanError;

/// A parameter of the target, and the source parameter that it is filled from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Match {
    pub(crate) source: ParameterId,
    pub(crate) target: ParameterId,
}

/// The source parameter of each target parameter, in the target's order. `cast` permits other float types.
pub(crate) fn matches(source: &Layout, target: &Layout, cast: bool) -> Result<Vec<Match>, PlanError> {
    let matched: Vec<Match> =
        target.parameters().map(|(id, _)| one(source, target, id, cast)).collect::<Result<_, _>>()?;
    for (alias, id) in target.aliases() {
        if source.find(alias).is_some_and(|found| found != matched[id.index()].source) {
            let parameter = target.parameter(id).name.clone();
            return Err(PlanError::UntiedOntoTied { parameter, alias: alias.to_owned() });
        }
    }
    Ok(matched)
}

fn one(source: &Layout, target: &Layout, id: ParameterId, cast: bool) -> Result<Match, PlanError> {
    let wanted = target.parameter(id);
    let mut names = std::iter::once(wanted.name.as_str())
        .chain(target.aliases().filter(|(_, of)| *of == id).map(|(alias, _)| alias));
    let found = names.find_map(|name| source.find(name)).ok_or_else(|| PlanError::MissingParameter {
        parameter: wanted.name.clone(),
        nearest: source.nearest_name(&wanted.name).map(str::to_owned),
    })?;
    let held = source.parameter(found);
    if held.shape != wanted.shape {
        return Err(PlanError::ShapesDiffer {
            parameter: wanted.name.clone(),
            source_shape: held.shape.clone(),
            target_shape: wanted.shape.clone(),
        });
    }
    if held.dtype != wanted.dtype && !(cast && castable(held.dtype, wanted.dtype)) {
        return Err(PlanError::DtypesDiffer {
            parameter: wanted.name.clone(),
            source_dtype: held.dtype,
            target_dtype: wanted.dtype,
        });
    }
    Ok(Match { source: found, target: id })
}

/// Whether values of one type can be turned into the other: between floats of 16 bits and more.
pub(crate) fn castable(source: DType, target: DType) -> bool {
    let is_float = |dtype| matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::Bf16);
    is_float(source) && is_float(target)
}

/// Names of source parameters that no target parameter is filled from.
#[must_use]
pub fn unused_parameters(source: &Layout, target: &Layout) -> Vec<String> {
    let mut used = vec![false; source.parameters().len()];
    for name in target
        .parameters()
        .map(|(_, parameter)| parameter.name.as_str())
        .chain(target.aliases().map(|(name, _)| name))
    {
        if let Some(id) = source.find(name) {
            used[id.index()] = true;
        }
    }
    source
        .parameters()
        .filter(|(id, _)| !used[id.index()])
        .map(|(_, parameter)| parameter.name.clone())
        .collect()
}

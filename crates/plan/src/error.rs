//! Why two layouts make no plan.

use reshard_layout::{DType, Dims, Kind, Rank, Region};

use crate::names::castable;

/// Errors of planning.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The target wants a parameter that the source does not have.
    #[error("the source has no parameter {parameter}{}", hint(nearest.as_deref()))]
    MissingParameter {
        /// The target's name for it.
        parameter: String,
        /// The source's nearest name.
        nearest: Option<String>,
    },
    /// The two sides give a parameter different shapes.
    #[error("{parameter}: the source has shape {source_shape:?}, the target {target_shape:?}")]
    ShapesDiffer {
        /// The parameter.
        parameter: String,
        /// Shape in the source layout.
        source_shape: Dims,
        /// Shape in the target layout.
        target_shape: Dims,
    },
    /// A cast would be needed, which is not permitted, or which is not one from float to float.
    #[error(
        "{parameter}: the source holds {source_dtype}, the target {target_dtype}, and {}",
        cast_refusal(*source_dtype, *target_dtype)
    )]
    DtypesDiffer {
        /// The parameter.
        parameter: String,
        /// Element type of the source layout.
        source_dtype: DType,
        /// Element type of the target layout.
        target_dtype: DType,
    },
    /// A multiplication would be needed.
    #[error(
        "{parameter}: box {region} has scale {source_scale} on rank {rank} and {target_scale} in the target"
    )]
    ScalesDiffer {
        /// The parameter.
        parameter: String,
        /// The box.
        region: Region,
        /// The holder.
        rank: Rank,
        /// Its scale.
        source_scale: f64,
        /// The target's scale.
        target_scale: f64,
    },
    /// The target ties two names that are two parameters of the source.
    #[error("the target ties {alias} to {parameter}, which are two parameters of the source and may differ")]
    UntiedOntoTied {
        /// The target's parameter.
        parameter: String,
        /// Its second name there.
        alias: String,
    },
    /// The policy of a caller was asked for without the caller's function.
    #[error("the policy custom is made with a function: plan_with or Options::ask")]
    NoSelector,
    /// A caller's policy named a rank that does not hold the box.
    #[error(
        "{parameter}: the policy chose rank {answer} for box {region}, the holders are {}",
        list(candidates)
    )]
    NotACandidate {
        /// The parameter.
        parameter: String,
        /// The box.
        region: Region,
        /// The answer.
        answer: Rank,
        /// The ranks that hold the box.
        candidates: Vec<Rank>,
    },
    /// No source rank holds a box that the target wants.
    #[error("{parameter}: no source rank holds box {region}")]
    NotHeld {
        /// The parameter.
        parameter: String,
        /// The box.
        region: Region,
    },
}

impl PlanError {
    /// Whether it is that permission to cast was not given ([`Options::cast`](crate::Options::cast)).
    #[must_use]
    pub fn wants_cast(&self) -> bool {
        matches!(self, Self::DtypesDiffer { source_dtype, target_dtype, .. } if castable(*source_dtype, *target_dtype))
    }

    /// Whether the layouts contradict each other, or ask for what is not expressed yet.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::DtypesDiffer { .. } | Self::ScalesDiffer { .. } | Self::UntiedOntoTied { .. } => {
                Kind::Unsupported
            }
            _ => Kind::Invalid,
        }
    }
}

fn cast_refusal(source: DType, target: DType) -> &'static str {
    if castable(source, target) {
        "a plan casts only with permission"
    } else {
        "a plan casts only between f64, f32, f16 and bf16"
    }
}

fn list(ranks: &[Rank]) -> String {
    ranks.iter().map(Rank::to_string).collect::<Vec<_>>().join(", ")
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(", the nearest name is {name}"))
}

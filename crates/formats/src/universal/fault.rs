//! What can be wrong with a Universal checkpoint.

use std::path::Path;

use reshard_layout::Kind;

use crate::error::FormatError;

/// What is wrong with a Universal checkpoint, or keeps one from being written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum UniversalFault {
    /// No folder of parameters.
    #[error("no folder named zero, which every universal checkpoint has")]
    NoParameters,
    /// More entries than any model has.
    #[error("more than {limit} entries")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// A file without a tensor where one is to be.
    #[error("neither a tensor nor a dictionary with one under {key:?}")]
    NotATensor {
        /// The key.
        key: &'static str,
    },
    /// A parameter without its master weights.
    #[error("{parameter} has no fp32.pt")]
    NoMaster {
        /// The parameter.
        parameter: String,
    },
    /// A parameter that has some of the states that others have.
    #[error("{parameter} has no {state}.pt, which other parameters have")]
    StateMissing {
        /// The parameter.
        parameter: String,
        /// The state.
        state: String,
    },
    /// A tensor without a shape, of which nothing else says the shape.
    #[error("a flat tensor of {elements} elements, and no model states say the shape of {parameter}")]
    NoShape {
        /// The parameter.
        parameter: String,
        /// Its elements.
        elements: u64,
    },
    /// A tensor of another shape than the parameter.
    #[error("{parameter} has the shape {expected:?}, this tensor {found:?}")]
    Shape {
        /// The parameter.
        parameter: String,
        /// Its shape, as other files say.
        expected: Vec<u64>,
        /// The tensor's.
        found: Vec<u64>,
    },
    /// A parameter of another step than the others.
    #[error("the optimizer's step of {parameter} is {found}, that of {other} {expected}")]
    Step {
        /// The parameter.
        parameter: String,
        /// Its step.
        found: f64,
        /// The first one that says a step.
        other: String,
        /// Its step.
        expected: f64,
    },
    /// A name that cannot be the name of a folder.
    #[error("{parameter:?} cannot be the name of a folder")]
    Name {
        /// The parameter.
        parameter: String,
    },
    /// The source keeps no master weights.
    #[error("the source keeps no fp32 weights, which every universal checkpoint has")]
    NoMasters,
    /// A fused parameter whose description has other axes than it.
    #[error("{parameter}: sub-parameters are described over {found} axes, the parameter has {expected}")]
    SubParameters {
        /// The parameter.
        parameter: String,
        /// Its axes.
        expected: usize,
        /// Axes of the description.
        found: usize,
    },
}

impl UniversalFault {
    /// Whether it contradicts itself, is beyond this library, or over a limit.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::TooMany { .. } => Kind::OverBudget,
            Self::NoShape { .. } | Self::NoMasters | Self::SubParameters { .. } => Kind::Unsupported,
            _ => Kind::Invalid,
        }
    }

    pub(super) fn at(self, path: &Path) -> FormatError {
        FormatError::Universal { path: path.to_owned(), fault: self }
    }
}

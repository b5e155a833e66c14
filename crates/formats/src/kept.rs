//! What a checkpoint keeps of a parameter.

use std::fmt;

/// One tensor that is kept of every parameter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kept {
    /// What the model computes with, in the model's dtype.
    Weights,
    /// The optimizer's master copy of the weights, `fp32` in DeepSpeed's files.
    Master,
    /// Another tensor of the optimizer, by its name there: `exp_avg`, `exp_avg_sq`, `momentum_buffer`, ...
    State(String),
}

impl Kept {
    /// Its name on the command line and in Universal checkpoints.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Weights => "weights",
            Self::Master => "fp32",
            Self::State(name) => name,
        }
    }

    /// What a name stands for; any name is at least a state's.
    #[must_use]
    pub fn parse(name: &str) -> Self {
        match name {
            "weights" => Self::Weights,
            "fp32" => Self::Master,
            state => Self::State(state.to_owned()),
        }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

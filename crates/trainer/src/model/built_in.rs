//! The models that the demo knows by name.

use reshard_parallel::model::ModelConfig;

use crate::error::TrainerError;

/// Hidden width 64, 4 layers, 8 heads over 4, MLP 144, vocabulary 257, untied, no biases.
pub const TINY: BuiltIn = BuiltIn { name: "tiny", config_json: include_str!("../../models/tiny.json") };

/// An MLP width of 18, which four ranks cut 5, 5, 4, 4; heads of 6, vocabulary 259, every bias.
pub const UNEVEN: BuiltIn = BuiltIn { name: "uneven", config_json: include_str!("../../models/uneven.json") };

/// A model whose `config.json` is part of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    /// What the demo calls it.
    pub name: &'static str,
    /// Its `config.json`.
    pub config_json: &'static str,
}

impl BuiltIn {
    /// The built-in model with this name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        [TINY, UNEVEN].into_iter().find(|model| model.name == name)
    }

    /// Its configuration.
    ///
    /// # Errors
    /// None for the texts in this crate.
    pub fn config(&self) -> Result<ModelConfig, TrainerError> {
        Ok(ModelConfig::from_json(self.config_json)?)
    }
}

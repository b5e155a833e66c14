//! The tensors of a Hugging Face checkpoint, each whole, on one rank. A tied head is no tensor of its own.

use super::dense::{Scheme, one_stage};
use super::tensors::Tensors;
use crate::model::ModelConfig;

pub(super) fn scheme(config: &ModelConfig) -> Scheme {
    Scheme { vocabulary_rows: config.vocab_size(), stages: one_stage(config), list }
}

fn list(tensors: &mut Tensors<'_>) {
    for parameter in tensors.engine.parameters() {
        tensors.whole(parameter.name.clone(), parameter.layer, parameter.role);
    }
}

//! What the computation can do with a configuration, checked before anything is allocated.
//!
//! ```text
//! head_dim 5          invalid      a rotary embedding turns pairs
//! rms_norm_eps 0      invalid      a row of zeros would be divided by zero
//! hidden_act "gelu"   unsupported  a model that exists, but not here
//! ```
//!
//! A layout needs none of these keys, so [`ModelConfig`] keeps only some of them: the others are read from the JSON.

use reshard_parallel::ParallelError;
use reshard_parallel::model::ModelConfig;
use serde_json::Value;

use super::BEGIN_OF_TEXT;
use crate::error::TrainerError;

/// Checks the numbers that the computation uses.
pub(super) fn check_numbers(config: &ModelConfig) -> Result<(), TrainerError> {
    let minimum = u64::from(BEGIN_OF_TEXT) + 1;
    if config.vocab_size() < minimum {
        return Err(TrainerError::VocabularyTooSmall { vocabulary: config.vocab_size(), minimum });
    }
    let invalid = |key, value: String, expected| Err(TrainerError::ModelInvalid { key, value, expected });
    if !config.head_dim().is_multiple_of(2) {
        return invalid("head_dim", config.head_dim().to_string(), "even, as a rotary embedding turns pairs");
    }
    // The computation adds it as an f32, in which tiny numbers are zero.
    let epsilon = config.rms_norm_eps() as f32;
    if !(epsilon > 0.0 && epsilon.is_finite()) {
        return invalid("rms_norm_eps", config.rms_norm_eps().to_string(), "positive and finite in f32");
    }
    let theta = config.rope_theta();
    if !(theta > 0.0 && theta.is_finite()) {
        return invalid("rope_theta", theta.to_string(), "positive and finite");
    }
    Ok(())
}

/// Checks the keys of a `config.json` that change the computation but no layout.
pub(crate) fn check_functions(config_json: &str) -> Result<(), TrainerError> {
    let config: Value = serde_json::from_str(config_json)
        .map_err(|error| ParallelError::ConfigSyntax { reason: error.to_string() })?;
    let supported = |key: &'static str, is_right: fn(&Value) -> bool, supported| match config.get(key) {
        Some(value) if !value.is_null() && !is_right(value) => {
            Err(TrainerError::ModelUnsupported { key, value: value.to_string(), supported })
        }
        _ => Ok(()),
    };
    supported("hidden_act", |value| value == "silu", "\"silu\"")?;
    supported("rope_scaling", is_plain_rope, "null, the plain rotary embedding")?;
    supported("rope_parameters", is_plain_rope, "\"rope_type\": \"default\", the plain rotary embedding")
}

/// An object that asks, in either spelling, for nothing but the plain rotary embedding.
fn is_plain_rope(value: &Value) -> bool {
    let kind = |key| value.get(key).map_or(Value::Null, Value::clone);
    let is_default = |kind: Value| kind.is_null() || kind == "default";
    value.is_object() && is_default(kind("rope_type")) && is_default(kind("type"))
}

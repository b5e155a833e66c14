//! The keys of `config.json` that decide a layout, read and checked once.
//!
//! ```text
//! "num_attention_heads": 32, "num_key_value_heads": 8      32 % 8 == 0    checked here, so that
//! "head_dim": null                                   ─►  hidden / heads   everything after is arithmetic
//! ```

use reshard_layout::{DType, volume};
use serde_json::{Map, Value};

use super::ModelParameter;
use super::dense;
use crate::error::ParallelError;

/// The most decoder blocks that a configuration may ask for.
const LAYERS_MAX: u64 = 1 << 16;
/// The largest width, head count or vocabulary that a configuration may ask for.
const WIDTH_MAX: u64 = 1 << 30;
/// The most elements that a model may have: an address in any type of ours fits in 64 bits.
const ELEMENTS_MAX: u64 = 1 << 56;

const HIDDEN: &str = "hidden_size";
const LAYERS: &str = "num_hidden_layers";
const HEADS: &str = "num_attention_heads";
const KV_HEADS: &str = "num_key_value_heads";

/// A dense decoder: Qwen3, or Llama, which has the same blocks without `q_norm` and `k_norm`.
///
/// Invariants, in the order of their checks: (1) the family is known and nothing in it is quantized;
/// (2) all widths and counts are at least 1 and within the limits; (3) query heads are a multiple of
/// key-value heads; (4) the model has at most 2^56 elements.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    name: String,
    hidden_size: u64,
    num_hidden_layers: u32,
    num_attention_heads: u64,
    num_key_value_heads: u64,
    head_dim: u64,
    intermediate_size: u64,
    vocab_size: u64,
    tie_word_embeddings: bool,
    attention_bias: bool,
    mlp_bias: bool,
    head_norms: bool,
    rms_norm_eps: f64,
    rope_theta: f64,
    dtype: DType,
}

impl ModelConfig {
    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    /// Invalid where it is not JSON, lacks a key, holds a wrong type, or its numbers contradict each other;
    /// unsupported where `model_type` is not `qwen3` or `llama`, or the weights are quantized.
    pub fn from_json(text: &str) -> Result<Self, ParallelError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| ParallelError::ConfigSyntax { reason: error.to_string() })?;
        let Value::Object(map) = value else {
            return Err(ParallelError::ConfigSyntax { reason: "another JSON value stands there".to_owned() });
        };
        let keys = Keys(&map);
        let model_type = keys.string("model_type")?.ok_or(missing("model_type"))?;
        let head_norms = match model_type {
            "qwen3" => true,
            "llama" => false,
            _ => {
                return Err(ParallelError::ModelUnsupported {
                    model_type: model_type.to_owned(),
                    known: "qwen3, llama".to_owned(),
                });
            }
        };
        keys.refuse("quantization_config")?;

        let hidden_size = keys.width(HIDDEN)?;
        let num_attention_heads = keys.width(HEADS)?;
        // Only Llama predates grouped heads: a file without the key has as many as query heads.
        let num_key_value_heads = match keys.number(KV_HEADS, WIDTH_MAX)? {
            None if !head_norms => num_attention_heads,
            found => found.ok_or(missing(KV_HEADS))?,
        };
        multiple(HEADS, num_attention_heads, KV_HEADS, num_key_value_heads)?;
        let head_dim = match keys.number("head_dim", WIDTH_MAX)? {
            Some(head_dim) => head_dim,
            None => {
                multiple(HIDDEN, hidden_size, HEADS, num_attention_heads)?;
                hidden_size / num_attention_heads
            }
        };
        let layers = keys.number(LAYERS, LAYERS_MAX)?.ok_or(missing(LAYERS))?;
        let config = Self {
            name: keys.name(model_type)?,
            hidden_size,
            num_hidden_layers: u32::try_from(layers).unwrap_or(u32::MAX),
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            intermediate_size: keys.width("intermediate_size")?,
            vocab_size: keys.width("vocab_size")?,
            tie_word_embeddings: keys.flag("tie_word_embeddings")?,
            attention_bias: keys.flag("attention_bias")?,
            mlp_bias: keys.flag("mlp_bias")?,
            head_norms,
            rms_norm_eps: keys.real("rms_norm_eps", 1e-6)?,
            rope_theta: keys.rope_theta()?,
            dtype: keys.dtype()?,
        };
        config.check_size()?;
        Ok(config)
    }

    fn check_size(&self) -> Result<(), ParallelError> {
        // Blocks are equal: one block, taken as often as there are blocks, bounds the sum before it is listed.
        let one = Self { num_hidden_layers: 1, ..self.clone() };
        let mut sum: u64 = 0;
        for parameter in dense::parameters(&one) {
            let times = if parameter.layer.is_some() { u64::from(self.num_hidden_layers) } else { 1 };
            sum = volume(&parameter.shape)
                .and_then(|numel| numel.checked_mul(times))
                .and_then(|numel| numel.checked_add(sum))
                .filter(|sum| *sum <= ELEMENTS_MAX)
                .ok_or(ParallelError::ModelTooLarge { parameter: parameter.name, maximum: ELEMENTS_MAX })?;
        }
        Ok(())
    }

    /// All parameters, in the order in which the model's modules register them: the order of
    /// `named_parameters()`, which is that of DeepSpeed's optimizer groups.
    #[must_use]
    pub fn parameters(&self) -> Vec<ModelParameter> {
        dense::parameters(self)
    }

    /// `_name_or_path`, else the architecture, else the model type.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Width of the residual stream.
    #[must_use]
    pub fn hidden_size(&self) -> u64 {
        self.hidden_size
    }

    /// Decoder blocks.
    #[must_use]
    pub fn num_hidden_layers(&self) -> u32 {
        self.num_hidden_layers
    }

    /// Query heads: a multiple of the key-value heads.
    #[must_use]
    pub fn num_attention_heads(&self) -> u64 {
        self.num_attention_heads
    }

    /// Key-value heads.
    #[must_use]
    pub fn num_key_value_heads(&self) -> u64 {
        self.num_key_value_heads
    }

    /// Width of one head.
    #[must_use]
    pub fn head_dim(&self) -> u64 {
        self.head_dim
    }

    /// Width of the MLP.
    #[must_use]
    pub fn intermediate_size(&self) -> u64 {
        self.intermediate_size
    }

    /// Rows of the embedding.
    #[must_use]
    pub fn vocab_size(&self) -> u64 {
        self.vocab_size
    }

    /// Whether head and embedding are one parameter.
    #[must_use]
    pub fn tie_word_embeddings(&self) -> bool {
        self.tie_word_embeddings
    }

    /// Whether the four attention projections have biases.
    #[must_use]
    pub fn attention_bias(&self) -> bool {
        self.attention_bias
    }

    /// Whether the three MLP projections have biases.
    #[must_use]
    pub fn mlp_bias(&self) -> bool {
        self.mlp_bias
    }

    /// Whether queries and keys are normalised per head (Qwen3).
    #[must_use]
    pub fn head_norms(&self) -> bool {
        self.head_norms
    }

    /// Epsilon of the normalisations.
    #[must_use]
    pub fn rms_norm_eps(&self) -> f64 {
        self.rms_norm_eps
    }

    /// Base of the rotary embedding.
    #[must_use]
    pub fn rope_theta(&self) -> f64 {
        self.rope_theta
    }

    /// The type of the weights.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }
}

fn missing(key: &'static str) -> ParallelError {
    ParallelError::ConfigKeyMissing { key }
}

fn multiple(
    key: &'static str,
    value: u64,
    divisor_key: &'static str,
    divisor: u64,
) -> Result<(), ParallelError> {
    if value.is_multiple_of(divisor) {
        return Ok(());
    }
    Err(ParallelError::ConfigMultiple { key, value, divisor_key, divisor })
}

/// Typed access to the object. A key that holds `null` counts as absent, as in `transformers`.
struct Keys<'a>(&'a Map<String, Value>);

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ParallelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || ParallelError::ConfigKeyType { key, expected, found: value.to_string() };
        read(value).map(Some).ok_or_else(wrong)
    }

    fn string(&self, key: &'static str) -> Result<Option<&'a str>, ParallelError> {
        self.typed(key, "a string", Value::as_str)
    }

    fn number(&self, key: &'static str, maximum: u64) -> Result<Option<u64>, ParallelError> {
        let Some(value) = self.typed(key, "a whole number", Value::as_u64)? else { return Ok(None) };
        if value == 0 || value > maximum {
            return Err(ParallelError::ConfigNumber { key, value, minimum: 1, maximum });
        }
        Ok(Some(value))
    }

    fn width(&self, key: &'static str) -> Result<u64, ParallelError> {
        self.number(key, WIDTH_MAX)?.ok_or(missing(key))
    }

    fn flag(&self, key: &'static str) -> Result<bool, ParallelError> {
        Ok(self.typed(key, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    fn real(&self, key: &'static str, default: f64) -> Result<f64, ParallelError> {
        Ok(self.typed(key, "a number", Value::as_f64)?.unwrap_or(default))
    }

    /// At the top, or among the parameters of the rotary embedding, where `transformers` 5 writes it.
    fn rope_theta(&self) -> Result<f64, ParallelError> {
        let nested = match self.get("rope_parameters") {
            Some(Value::Object(map)) => Keys(map).real("rope_theta", 10_000.0)?,
            _ => 10_000.0,
        };
        self.real("rope_theta", nested)
    }

    fn dtype(&self) -> Result<DType, ParallelError> {
        let read = |value: &Value| value.as_str().and_then(DType::parse);
        let expected = "the name of a dtype such as \"bfloat16\"";
        let older = self.typed("torch_dtype", expected, read)?;
        let newer = self.typed("dtype", expected, read)?;
        Ok(newer.or(older).unwrap_or(DType::Bf16))
    }

    fn name(&self, model_type: &str) -> Result<String, ParallelError> {
        let path = self.string("_name_or_path")?.filter(|name| !name.is_empty());
        let architecture = self.get("architectures").and_then(|list| list.get(0)).and_then(Value::as_str);
        Ok(path.or(architecture).unwrap_or(model_type).to_owned())
    }

    fn refuse(&self, key: &'static str) -> Result<(), ParallelError> {
        match self.get(key) {
            Some(value) => Err(ParallelError::ConfigUnsupported { key, value: value.to_string() }),
            None => Ok(()),
        }
    }
}

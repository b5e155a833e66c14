//! The parameters of a dense decoder, in module order.
//!
//! ```text
//! embed_tokens | q k v o  q_norm k_norm  gate up down  input_norm post_norm | ... | norm | lm_head
//!              '---------------------- one block ----------------------------'
//!              each weight is followed by its bias, if it has one
//! ```
//!
//! The order is that of `transformers` `models/qwen3/modeling_qwen3.py`: attention, MLP and the two
//! normalisations are registered in this order by `Qwen3DecoderLayer`, whatever order they compute in.

use super::config::ModelConfig;
use super::{ModelParameter, Norm, Projection, Role};

/// All parameters of the model.
pub(super) fn parameters(config: &ModelConfig) -> Vec<ModelParameter> {
    let vocabulary = vec![config.vocab_size(), config.hidden_size()];
    let mut list = vec![top("model.embed_tokens.weight", vocabulary.clone(), Role::Embedding)];
    for layer in 0..config.num_hidden_layers() {
        block(config, layer, &mut list);
    }
    list.push(top("model.norm.weight", vec![config.hidden_size()], Role::Norm(Norm::Final)));
    if config.tie_word_embeddings() {
        list[0].aliases.push("lm_head.weight".to_owned());
    } else {
        list.push(top("lm_head.weight", vocabulary, Role::Head));
    }
    list
}

fn top(name: &str, shape: Vec<u64>, role: Role) -> ModelParameter {
    ModelParameter { name: name.to_owned(), shape, role, layer: None, aliases: Vec::new() }
}

fn block(config: &ModelConfig, layer: u32, list: &mut Vec<ModelParameter>) {
    let hidden = config.hidden_size();
    let query = config.num_attention_heads() * config.head_dim();
    let key = config.num_key_value_heads() * config.head_dim();
    let inner = config.intermediate_size();
    let (attention, mlp) = (config.attention_bias(), config.mlp_bias());

    let mut block = Block { layer, list };
    block.linear(Projection::Query, query, hidden, attention);
    block.linear(Projection::Key, key, hidden, attention);
    block.linear(Projection::Value, key, hidden, attention);
    block.linear(Projection::Output, hidden, query, attention);
    if config.head_norms() {
        block.norm("self_attn.q_norm", config.head_dim(), Norm::Query);
        block.norm("self_attn.k_norm", config.head_dim(), Norm::Key);
    }
    block.linear(Projection::Gate, inner, hidden, mlp);
    block.linear(Projection::Up, inner, hidden, mlp);
    block.linear(Projection::Down, hidden, inner, mlp);
    block.norm("input_layernorm", hidden, Norm::Input);
    block.norm("post_attention_layernorm", hidden, Norm::PostAttention);
}

/// Names what it is given after one decoder block.
struct Block<'a> {
    layer: u32,
    list: &'a mut Vec<ModelParameter>,
}

impl Block<'_> {
    fn linear(&mut self, projection: Projection, rows: u64, columns: u64, bias: bool) {
        self.push(projection.module(), "weight", vec![rows, columns], Role::Weight(projection));
        if bias {
            self.push(projection.module(), "bias", vec![rows], Role::Bias(projection));
        }
    }

    fn norm(&mut self, module: &str, width: u64, norm: Norm) {
        self.push(module, "weight", vec![width], Role::Norm(norm));
    }

    fn push(&mut self, module: &str, tensor: &str, shape: Vec<u64>, role: Role) {
        let layer = self.layer;
        let name = format!("model.layers.{layer}.{module}.{tensor}");
        self.list.push(ModelParameter { name, shape, role, layer: Some(layer), aliases: Vec::new() });
    }
}

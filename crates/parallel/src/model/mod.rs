//! Models: the parameters that a Hugging Face `config.json` implies.
//!
//! ```text
//! config.json ─► ModelConfig ─► 0 model.embed_tokens.weight            (vocabulary, hidden)
//!                               1 model.layers.0.self_attn.q_proj.weight (heads x head_dim, hidden)
//!                               2 ...                   in the order in which the modules register them
//! ```

mod config;
mod dense;

pub use config::ModelConfig;

/// A linear layer of a decoder block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Projection {
    /// `q_proj`.
    Query,
    /// `k_proj`.
    Key,
    /// `v_proj`.
    Value,
    /// `o_proj`.
    Output,
    /// `gate_proj`.
    Gate,
    /// `up_proj`.
    Up,
    /// `down_proj`.
    Down,
}

impl Projection {
    /// The name of its module inside a decoder block.
    #[must_use]
    pub fn module(self) -> &'static str {
        match self {
            Self::Query => "self_attn.q_proj",
            Self::Key => "self_attn.k_proj",
            Self::Value => "self_attn.v_proj",
            Self::Output => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
        }
    }
}

/// A normalisation layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Norm {
    /// `self_attn.q_norm`, over one head.
    Query,
    /// `self_attn.k_norm`, over one head.
    Key,
    /// `input_layernorm`.
    Input,
    /// `post_attention_layernorm`.
    PostAttention,
    /// `model.norm`, after the last block.
    Final,
}

/// What a parameter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The token embedding, and the head too where the two are tied.
    Embedding,
    /// The weight of a projection: (out, in).
    Weight(Projection),
    /// The bias of a projection: (out).
    Bias(Projection),
    /// The weight of a normalisation.
    Norm(Norm),
    /// The untied head.
    Head,
}

/// A logical tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelParameter {
    /// Its name in a checkpoint.
    pub name: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// What it is for.
    pub role: Role,
    /// The decoder block that it belongs to.
    pub layer: Option<u32>,
    /// Its other names.
    pub aliases: Vec<String>,
}

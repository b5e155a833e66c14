//! What vLLM and SGLang share: Hugging Face's names, with q, k, v and gate, up fused, and heads cut whole.
//!
//! ```text
//! 4 query heads, 2 key-value heads      tp 2   q0 q1 | k0 | v0          q2 q3 | k1 | v1
//!                                       tp 4   q0 k0 v0   q1 k0 v0      q2 k1 v1   q3 k1 v1     copies stand together
//! gate_up_proj                          tp 2   g0 g1 g2 u0 u1 u2        g3 g4 g5 u3 u4 u5
//! ```
//!
//! Sources: `QKVParallelLinear`, `MergedColumnParallelLinear`, `VocabParallelEmbedding` of both engines.

use std::ops::Range;

use super::dense::divides;
use super::tensors::Tensors;
use crate::error::ParallelError;
use crate::model::{ModelConfig, Norm, Projection, Role};
use crate::topology::EngineTopology;

/// Rows of the vocabulary are a multiple of this (`DEFAULT_VOCAB_PADDING_SIZE`).
pub(super) const VOCABULARY_MULTIPLE: u64 = 64;

/// Refuses what the fused layers of both engines refuse.
pub(super) fn check(config: &ModelConfig, topology: &EngineTopology) -> Result<(), ParallelError> {
    let heads = config.num_attention_heads();
    divides(topology, "num_attention_heads", heads, "query heads are cut whole, as many on each rank")?;
    let (tp, kv_heads) = (u64::from(topology.tp().get()), config.num_key_value_heads());
    if !kv_heads.is_multiple_of(tp) && !tp.is_multiple_of(kv_heads) {
        let head_dim = config.head_dim();
        return Err(ParallelError::EngineCut {
            engine: topology.kind().name(),
            what: "num_key_value_heads",
            value: kv_heads,
            tp: topology.tp().get(),
            reason: format!("neither divides the other, and a head of {head_dim} rows is not cut"),
        });
    }
    let inner = config.intermediate_size();
    divides(topology, "intermediate_size", inner, "gate and up are each cut into equal parts")
}

/// Lists a rank.
pub(super) fn list(tensors: &mut Tensors<'_>) {
    let config = tensors.engine.config();
    let tied_head = config.tie_word_embeddings() && tensors.is_last_stage();
    if tensors.is_first_stage() || tied_head {
        tensors.vocabulary("model.embed_tokens.weight".to_owned(), Role::Embedding);
    }
    let qkv = qkv(config, tensors.tp(), tensors.tp_rank);
    let inner = tensors.share(config.intermediate_size());
    let gate_up = [(Projection::Gate, inner.clone()), (Projection::Up, inner)];
    for layer in tensors.engine.scheme().stages[tensors.stage].iter().cloned().flatten() {
        let block = format!("model.layers.{layer}");
        tensors.column_parallel(&format!("{block}.self_attn.qkv_proj"), layer, &qkv);
        tensors.row_parallel(&format!("{block}.self_attn.o_proj"), layer, Projection::Output);
        tensors.norm(format!("{block}.self_attn.q_norm.weight"), Some(layer), Norm::Query);
        tensors.norm(format!("{block}.self_attn.k_norm.weight"), Some(layer), Norm::Key);
        tensors.column_parallel(&format!("{block}.mlp.gate_up_proj"), layer, &gate_up);
        tensors.row_parallel(&format!("{block}.mlp.down_proj"), layer, Projection::Down);
        tensors.norm(format!("{block}.input_layernorm.weight"), Some(layer), Norm::Input);
        tensors.norm(format!("{block}.post_attention_layernorm.weight"), Some(layer), Norm::PostAttention);
    }
    if tensors.is_last_stage() {
        tensors.norm("model.norm.weight".to_owned(), None, Norm::Final);
        tensors.vocabulary("lm_head.weight".to_owned(), Role::Head);
    }
}

/// The rows of q, k and v that lie under one another on a rank.
fn qkv(config: &ModelConfig, tp: u64, tp_rank: u64) -> [(Projection, Range<u64>); 3] {
    let (kv_heads, head_dim) = (config.num_key_value_heads(), config.head_dim());
    let rows = |first: u64, heads: u64| first * head_dim..(first + heads) * head_dim;
    let query_heads = config.num_attention_heads() / tp;
    // As many ranks as there are heads, or fewer, share them out; more ranks than heads hold copies.
    let (heads, copies) = if tp >= kv_heads { (1, tp / kv_heads) } else { (kv_heads / tp, 1) };
    let key_value = rows(tp_rank / copies * heads, heads);
    [
        (Projection::Query, rows(tp_rank * query_heads, query_heads)),
        (Projection::Key, key_value.clone()),
        (Projection::Value, key_value),
    ]
}

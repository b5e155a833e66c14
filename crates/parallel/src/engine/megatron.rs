//! Megatron-core with Transformer Engine's layers: grouped qkv, gate and up per rank, numbers that start anew a stage.
//!
//! ```text
//! linear_qkv, 4 query heads, 2 groups     q0 q1 k0 v0 | q2 q3 k1 v1       all rows, a group after another
//!   tp 2   q0 q1 k0 v0        q2 q3 k1 v1
//!   tp 4   q0 q1 | k0 v0 | q2 q3 | k1 v1                                  cut evenly, copies nothing, also inside heads
//! 8 layers, pp 2, vp 2    stage 0 chunk 0: 0 1   stage 1 chunk 0: 2 3   stage 0 chunk 1: 4 5   stage 1 chunk 1: 6 7
//! ```
//!
//! With virtual stages a name begins with its chunk as in checkpoints: `model1.decoder.layers.0...`. Sources:
//! Megatron-core `transformer/attention.py`, `transformer/mlp.py`, `transformer/transformer_layer.py`,
//! `models/gpt/gpt_layer_specs.py`, `models/gpt/gpt_model.py`.

use std::ops::Range;

use super::dense::{Scheme, biases, divides, given_stages};
use super::tensors::Tensors;
use crate::error::ParallelError;
use crate::model::{ModelConfig, Norm, Projection, Role};
use crate::topology::{EngineKind, EngineTopology};

pub(super) fn scheme(config: &ModelConfig, topology: &EngineTopology) -> Result<Scheme, ParallelError> {
    let Heads { heads, groups, head_dim } = Heads::of(config);
    divides(topology, "num_attention_heads", heads, "each rank computes with as many query heads")?;
    let tp = u64::from(topology.tp().get());
    if !groups.is_multiple_of(tp) && !tp.is_multiple_of(groups) {
        return Err(ParallelError::EngineCut {
            engine: topology.kind().name(),
            what: "num_key_value_heads",
            value: groups,
            tp: topology.tp().get(),
            reason: format!("neither divides the other (query groups of {} rows)", Heads::of(config).width()),
        });
    }
    let rows = (heads + 2 * groups) * head_dim;
    divides(topology, "rows of linear_qkv", rows, "they are cut into equal runs")?;
    let inner = config.intermediate_size();
    divides(topology, "intermediate_size", inner, "gate and up are each cut into equal parts")?;
    let all_or_none = config.attention_bias() == config.mlp_bias();
    let has = |projection| {
        all_or_none || matches!(projection, Projection::Query | Projection::Key | Projection::Value)
    };
    biases(
        EngineKind::Megatron,
        config,
        has,
        "its layers have biases all (add_bias_linear) or on q, k and v only",
    )?;
    let vocabulary_rows = config.vocab_size().next_multiple_of(topology.pad().get() * tp);
    Ok(Scheme { vocabulary_rows, stages: stages(config, topology)?, list })
}

/// The layers of each chunk of each stage: equal, unless they are given.
fn stages(config: &ModelConfig, topology: &EngineTopology) -> Result<Vec<Vec<Range<u32>>>, ParallelError> {
    if let Some(given) = topology.layers() {
        return given_stages(EngineKind::Megatron, config, given);
    }
    let (layers, pp, vp) = (config.num_hidden_layers(), topology.pp().get(), topology.vp().get());
    let chunks = u64::from(pp) * u64::from(vp);
    let each = u32::try_from(u64::from(layers) / chunks).unwrap_or(0);
    if each == 0 || u64::from(each) * chunks != u64::from(layers) {
        let engine = EngineKind::Megatron.name();
        let stages = format!("pp={pp}, vp={vp}");
        return Err(ParallelError::EngineStages {
            engine,
            layers,
            stages,
            reason: "they are not equal, give layers=",
        });
    }
    let chunk = |stage: u32, chunk: u32| {
        let first = (chunk * pp + stage) * each;
        first..first + each
    };
    Ok((0..pp).map(|stage| (0..vp).map(|at| chunk(stage, at)).collect()).collect())
}

/// Lists a rank.
fn list(tensors: &mut Tensors<'_>) {
    let engine = tensors.engine;
    let (config, stages) = (engine.config(), &engine.scheme().stages);
    let qkv = qkv_rows(Heads::of(config), tensors.share(Heads::of(config).rows()));
    let chunks = &stages[tensors.stage];
    let tied = config.tie_word_embeddings();
    for (at, layers) in chunks.iter().enumerate() {
        let prefix = if chunks.len() > 1 { format!("model{at}.") } else { String::new() };
        if tensors.is_first_stage() && at == 0 {
            tensors.vocabulary(format!("{prefix}embedding.word_embeddings.weight"), Role::Embedding);
        }
        for (local, layer) in layers.clone().enumerate() {
            block(tensors, &format!("{prefix}decoder.layers.{local}"), layer, &qkv);
        }
        if tensors.is_last_stage() && at + 1 == chunks.len() {
            tensors.norm(format!("{prefix}decoder.final_layernorm.weight"), None, Norm::Final);
            let head = format!("{prefix}output_layer.weight");
            match tied {
                false => tensors.vocabulary(head, Role::Head),
                // The last stage has a copy of its own, unless it is the first one too.
                true if stages.len() > 1 => tensors.vocabulary(head, Role::Embedding),
                true => {}
            }
        }
    }
}

fn block(tensors: &mut Tensors<'_>, block: &str, layer: u32, qkv: &[(Projection, Range<u64>)]) {
    let inner = tensors.share(tensors.engine.config().intermediate_size());
    let gate_up = [(Projection::Gate, inner.clone()), (Projection::Up, inner)];
    let attention = format!("{block}.self_attention");
    tensors.row_parallel(&format!("{attention}.linear_proj"), layer, Projection::Output);
    tensors.norm(format!("{attention}.linear_qkv.layer_norm_weight"), Some(layer), Norm::Input);
    tensors.column_parallel(&format!("{attention}.linear_qkv"), layer, qkv);
    tensors.norm(format!("{attention}.q_layernorm.weight"), Some(layer), Norm::Query);
    tensors.norm(format!("{attention}.k_layernorm.weight"), Some(layer), Norm::Key);
    tensors.norm(format!("{block}.mlp.linear_fc1.layer_norm_weight"), Some(layer), Norm::PostAttention);
    tensors.column_parallel(&format!("{block}.mlp.linear_fc1"), layer, &gate_up);
    tensors.row_parallel(&format!("{block}.mlp.linear_fc2"), layer, Projection::Down);
}

/// Query heads, groups of them that share a key and a value head, and the rows of one head.
#[derive(Clone, Copy)]
struct Heads {
    heads: u64,
    groups: u64,
    head_dim: u64,
}

impl Heads {
    fn of(config: &ModelConfig) -> Self {
        Self {
            heads: config.num_attention_heads(),
            groups: config.num_key_value_heads(),
            head_dim: config.head_dim(),
        }
    }

    /// Rows of one group: its query heads, its key head, its value head.
    fn width(self) -> u64 {
        (self.heads / self.groups + 2) * self.head_dim
    }

    /// Rows of the whole `linear_qkv`.
    fn rows(self) -> u64 {
        self.groups * self.width()
    }
}

/// The rows of q, k and v that lie under one another in the rows `run` of the whole `linear_qkv`.
fn qkv_rows(all: Heads, run: Range<u64>) -> Vec<(Projection, Range<u64>)> {
    let (query_rows, head_dim) = (all.heads / all.groups * all.head_dim, all.head_dim);
    let mut list = Vec::new();
    for group in run.start / all.width()..run.end.div_ceil(all.width()) {
        let mut start = group * all.width();
        for (projection, rows) in
            [(Projection::Query, query_rows), (Projection::Key, head_dim), (Projection::Value, head_dim)]
        {
            let held = run.start.max(start)..run.end.min(start + rows);
            if held.start < held.end {
                let first = group * rows + held.start - start;
                list.push((projection, first..first + held.end - held.start));
            }
            start += rows;
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row of the whole tensor, by its definition: group after group, query heads, key head, value head.
    fn whole(all: Heads) -> Vec<(Projection, u64)> {
        let each = all.heads / all.groups;
        let mut rows = Vec::new();
        for group in 0..all.groups {
            for (projection, first, count) in [
                (Projection::Query, group * each, each),
                (Projection::Key, group, 1),
                (Projection::Value, group, 1),
            ] {
                for head in first..first + count {
                    rows.extend((0..all.head_dim).map(|i| (projection, head * all.head_dim + i)));
                }
            }
        }
        rows
    }

    #[test]
    fn a_run_of_rows_is_what_the_definition_says() {
        let shapes =
            [(32, 8, 4), (64, 4, 2), (16, 16, 2), (28, 4, 2), (40, 8, 2), (8, 1, 2), (4, 2, 2), (8, 2, 4)];
        let mut checked = 0;
        for (heads, groups, head_dim) in shapes {
            let all = Heads { heads, groups, head_dim };
            let whole = whole(all);
            assert_eq!(whole.len() as u64, all.rows());
            for tp in [1, 2, 4, 7, 8, 16] {
                if !all.rows().is_multiple_of(tp) {
                    continue;
                }
                let width = all.rows() / tp;
                let listed: Vec<(Projection, u64)> = (0..tp)
                    .flat_map(|rank| qkv_rows(all, rank * width..(rank + 1) * width))
                    .flat_map(|(projection, rows)| rows.map(move |row| (projection, row)))
                    .collect();
                assert_eq!(listed, whole, "{heads} {groups} {head_dim} over {tp}");
                checked += 1;
            }
        }
        assert_eq!(checked, 38);
    }
}

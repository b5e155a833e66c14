//! SGLang: vLLM's fused tensors; a vocabulary that 64 does not suit is padded further, not refused.
//!
//! ```text
//! 50257 rows, tp 8: 50304 = 786 x 64, 6288 a rank
//! 50257 rows, tp 5: 50304 is no multiple of 5, so 50560 = 158 x 64 x 5, 10112 a rank
//! ```
//!
//! Sources: SGLang `srt/layers/vocab_parallel_embedding.py`, `srt/models/{llama,qwen2,qwen3}.py`.

use super::dense::{Scheme, biases, one_stage};
use super::fused;
use crate::error::ParallelError;
use crate::model::{ModelConfig, Projection};
use crate::topology::{EngineKind, EngineTopology};

pub(super) fn scheme(config: &ModelConfig, topology: &EngineTopology) -> Result<Scheme, ParallelError> {
    fused::check(config, topology)?;
    let has = |projection| !matches!(projection, Projection::Gate | Projection::Up | Projection::Down);
    biases(EngineKind::Sglang, config, has, "its MLP has no biases")?;
    let tp = u64::from(topology.tp().get());
    let (vocabulary, multiple) = (config.vocab_size(), fused::VOCABULARY_MULTIPLE);
    let padded = vocabulary.next_multiple_of(multiple);
    let vocabulary_rows =
        if padded.is_multiple_of(tp) { padded } else { vocabulary.next_multiple_of(multiple * tp) };
    Ok(Scheme { vocabulary_rows, stages: one_stage(config), list: fused::list })
}

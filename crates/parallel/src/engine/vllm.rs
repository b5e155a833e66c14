//! vLLM: fused tensors, stages that keep the numbers of their layers, a vocabulary padded to 64.
//!
//! ```text
//! 5 layers, pp 2: 3|2     7 layers, pp 3: 2|3|2     layers over the even share go to the middle stages, last first
//! stage 1 of 3|2 holds    model.layers.3.*, model.layers.4.*, model.norm, lm_head
//! tied, pp 2              the last stage holds embed_tokens too, as its head
//! ```
//!
//! Sources: vLLM `distributed/utils.py` (`get_pp_indices`), `model_executor/models/{llama,qwen2,qwen3}.py`.

use super::dense::{Scheme, biases, divides, given_stages, stages_of};
use super::fused;
use crate::error::ParallelError;
use crate::model::{ModelConfig, Projection};
use crate::topology::{EngineKind, EngineTopology};

pub(super) fn scheme(config: &ModelConfig, topology: &EngineTopology) -> Result<Scheme, ParallelError> {
    fused::check(config, topology)?;
    let qwen = config.head_norms();
    let has = |projection| match projection {
        Projection::Query | Projection::Key | Projection::Value => true,
        Projection::Output | Projection::Gate | Projection::Up | Projection::Down => !qwen,
    };
    biases(EngineKind::Vllm, config, has, "its Qwen3 has biases on q, k and v only")?;
    let vocabulary_rows = config.vocab_size().next_multiple_of(fused::VOCABULARY_MULTIPLE);
    divides(
        topology,
        "padded vocab_size",
        vocabulary_rows,
        "the rows are a multiple of 64 and as many on each rank",
    )?;
    let stages = match topology.layers() {
        Some(given) => given_stages(EngineKind::Vllm, config, given)?,
        None => stages_of(&even(config, topology)?),
    };
    Ok(Scheme { vocabulary_rows, stages, list: fused::list })
}

fn even(config: &ModelConfig, topology: &EngineTopology) -> Result<Vec<u32>, ParallelError> {
    let (layers, pp) = (config.num_hidden_layers(), topology.pp().get());
    if layers < pp {
        let (engine, stages) = (EngineKind::Vllm.name(), format!("pp={pp}"));
        return Err(ParallelError::EngineStages {
            engine,
            layers,
            stages,
            reason: "a stage would hold none",
        });
    }
    // The last stage takes none of what is over, the first one only if all others but the last have one.
    let over = layers % pp;
    let takes = |stage: u32| stage + 1 < pp && stage + 1 + over >= pp;
    Ok((0..pp).map(|stage| layers / pp + u32::from(takes(stage))).collect())
}

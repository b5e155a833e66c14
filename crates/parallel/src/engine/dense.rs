//! A dense model in an engine's own tensors.
//!
//! ```text
//! scheme (one file an engine)  ─►  tensors(slot): names, shapes, what each holds  ─►  layout of all ranks
//!   padded rows, stages, names                                                       parameters: Hugging Face's
//!                                                                                    storages: the engine's tensors
//! ```
//!
//! The layout speaks of the parameters of the checkpoint, so that it plans against any other layout of the model by
//! name; its storages are the engine's tensors, so that a binding finds them by name.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::ops::Range;

use reshard_layout::{
    BufferId, Bytes, DType, Dims, Elements, Fill, GeometryId, Layout, LayoutBuilder, LayoutError, row_major,
};

use super::tensors::{EngineTensor, Tensors};
use super::{hf, megatron, sglang, vllm};
use crate::error::ParallelError;
use crate::model::{ModelConfig, ModelParameter, Projection, Role};
use crate::topology::{EngineKind, EnginePlace, EngineTopology, Slot};

/// What an engine decides of a model, and how it lists a rank.
#[derive(Clone, Debug)]
pub(super) struct Scheme {
    /// Rows of the vocabulary, padding included: a multiple of the tensor-parallel ranks.
    pub(super) vocabulary_rows: u64,
    /// The layers of each chunk of each stage.
    pub(super) stages: Vec<Vec<Range<u32>>>,
    /// Lists the tensors of a rank.
    pub(super) list: fn(&mut Tensors<'_>),
}

/// One dense model on one topology of vLLM, SGLang, Megatron or plain files.
#[derive(Clone, Debug)]
pub struct DenseEngine {
    topology: EngineTopology,
    dtype: DType,
    config: ModelConfig,
    parameters: Vec<ModelParameter>,
    by_role: HashMap<(Option<u32>, Role), usize>,
    scheme: Scheme,
}

impl DenseEngine {
    /// Lays a model out as an engine does.
    ///
    /// # Errors
    /// Unsupported, where the engine itself refuses the model on this topology: it does not cut evenly, has
    /// parameters that the engine has no tensor for, or layers that its stages do not hold.
    pub fn new(config: &ModelConfig, topology: &EngineTopology) -> Result<Self, ParallelError> {
        let scheme = match topology.kind() {
            EngineKind::Vllm => vllm::scheme(config, topology)?,
            EngineKind::Sglang => sglang::scheme(config, topology)?,
            EngineKind::Megatron => megatron::scheme(config, topology)?,
            EngineKind::Hf => hf::scheme(config),
        };
        let parameters = config.parameters();
        let by_role = parameters.iter().enumerate().map(|(index, p)| ((p.layer, p.role), index)).collect();
        let (topology, config) = (topology.clone(), config.clone());
        Ok(Self { topology, dtype: config.dtype(), config, parameters, by_role, scheme })
    }

    /// The topology.
    #[must_use]
    pub fn topology(&self) -> &EngineTopology {
        &self.topology
    }

    /// The type of the weights.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The model's parameters.
    #[must_use]
    pub fn parameters(&self) -> &[ModelParameter] {
        &self.parameters
    }

    /// The tensors of a rank, in the order in which the engine's modules hold them.
    ///
    /// # Panics
    /// If there is no such slot: a bug of the caller.
    #[must_use]
    pub fn tensors(&self, slot: Slot) -> Vec<EngineTensor> {
        let EnginePlace { tp_rank, stage, .. } = self.topology.place(slot);
        let mut tensors =
            Tensors { engine: self, tp_rank: tp_rank.into(), stage: stage as usize, list: Vec::new() };
        (self.scheme.list)(&mut tensors);
        tensors.list
    }

    /// Where every element of every parameter lies; padding is filled with zeros. Each tensor is one storage of its
    /// rank, with the engine's name, and one buffer.
    ///
    /// # Errors
    /// What [`LayoutBuilder::build`] finds: nothing, unless the rules of this crate contradict themselves.
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        let mut builder = LayoutBuilder::new();
        let mut ids = Vec::with_capacity(self.parameters.len());
        for parameter in &self.parameters {
            let id = builder.parameter(&parameter.name, parameter.shape.iter().copied(), self.dtype);
            for alias in &parameter.aliases {
                builder.alias(alias, id);
            }
            ids.push(id);
        }
        // An engine places a role alike in all layers, and in all copies of a tied embedding.
        let mut known: HashMap<(u32, Role), GeometryId> = HashMap::new();
        for slot in self.topology.slots() {
            let (rank, tp_rank) = (self.topology.rank(slot), self.topology.place(slot).tp_rank);
            for tensor in self.tensors(slot) {
                let length = tensor.elements();
                let storage = builder.storage(rank, &tensor.name, length.bytes(self.dtype));
                let buffer = builder.buffer(storage, Bytes(0), self.dtype, length);
                for held in &tensor.held {
                    let ModelParameter { shape, role, .. } = &self.parameters[held.parameter];
                    let geometry = *known
                        .entry((tp_rank, *role))
                        .or_insert_with(|| builder.geometry(tensor.geometry(held, shape)));
                    builder.place(ids[held.parameter], buffer, Elements(0), geometry);
                }
                if let Some(fill) = self.fill(&tensor, buffer) {
                    builder.fill(fill);
                }
            }
        }
        builder.build()
    }

    fn fill(&self, tensor: &EngineTensor, buffer: BufferId) -> Option<Fill> {
        let padding = NonZeroU64::new(tensor.padding_rows)?;
        let mut shape = Dims::from_slice(&tensor.shape);
        let first = shape[0] - padding.get();
        shape[0] = padding.get();
        let offset = Elements(first * tensor.row_elements().0);
        let value = vec![0; usize::try_from(self.dtype.size()).unwrap_or(0)];
        Some(Fill { buffer, offset, strides: row_major(&tensor.shape), shape, value })
    }

    /// Where a parameter stands in the list, if the model has it.
    pub(super) fn find(&self, layer: Option<u32>, role: Role) -> Option<usize> {
        self.by_role.get(&(layer, role)).copied()
    }

    pub(super) fn config(&self) -> &ModelConfig {
        &self.config
    }

    pub(super) fn scheme(&self) -> &Scheme {
        &self.scheme
    }
}

/// All layers, on one stage.
pub(super) fn one_stage(config: &ModelConfig) -> Vec<Vec<Range<u32>>> {
    vec![vec![0..config.num_hidden_layers()]]
}

/// Stages of so many layers each.
pub(super) fn stages_of(layers: &[u32]) -> Vec<Vec<Range<u32>>> {
    let mut first = 0;
    let stage = |count: &u32| {
        let range = first..first + count;
        first += count;
        vec![range]
    };
    layers.iter().map(stage).collect()
}

/// Checks stages whose sizes are given.
pub(super) fn given_stages(
    engine: EngineKind,
    config: &ModelConfig,
    given: &[u32],
) -> Result<Vec<Vec<Range<u32>>>, ParallelError> {
    let sum: u64 = given.iter().map(|&count| u64::from(count)).sum();
    if sum == u64::from(config.num_hidden_layers()) {
        return Ok(stages_of(given));
    }
    let stages = given.iter().map(u32::to_string).collect::<Vec<_>>().join(".");
    let (engine, layers) = (engine.name(), config.num_hidden_layers());
    Err(ParallelError::EngineStages { engine, layers, stages, reason: "they do not add up" })
}

/// Refuses a count that the tensor-parallel ranks do not divide.
pub(super) fn divides(
    topology: &EngineTopology,
    what: &'static str,
    value: u64,
    reason: &str,
) -> Result<(), ParallelError> {
    let tp = topology.tp().get();
    if value.is_multiple_of(tp.into()) {
        return Ok(());
    }
    Err(ParallelError::EngineCut {
        engine: topology.kind().name(),
        what,
        value,
        tp,
        reason: reason.to_owned(),
    })
}

/// Refuses biases of projections for which the engine makes none.
pub(super) fn biases(
    engine: EngineKind,
    config: &ModelConfig,
    has: impl Fn(Projection) -> bool,
    reason: &'static str,
) -> Result<(), ParallelError> {
    let missing = config.parameters().into_iter().find(|parameter| match parameter.role {
        Role::Bias(projection) => !has(projection),
        _ => false,
    });
    match missing {
        None => Ok(()),
        Some(ModelParameter { name: parameter, .. }) => {
            Err(ParallelError::EngineTensorMissing { engine: engine.name(), parameter, reason })
        }
    }
}

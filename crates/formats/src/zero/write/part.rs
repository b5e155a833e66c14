//! The layout of what the files of all ranks hold of the weights, or of a state.
//!
//! ```text
//!   RankStorage: storages "fp32.0" 6 elements   runs  a [5, 9) at 2        file 3, from byte 4,096
//!                                               ──add──►  storage, buffer, piece of a; fills 0 at 0..2
//! ```

use reshard_layout::{
    BufferId, Bytes, DType, Elements, Fill, Geometry, LayoutBuilder, LayoutError, ParameterId, Rank,
};
use reshard_parallel::RankStorage;
use reshard_parallel::engine::DeepSpeed;

use super::model::BufferSpec;
use crate::checkpoint::Part;
use crate::files::{FileId, Span};

/// Collects a part, rank by rank.
pub(super) struct PartDraft {
    builder: LayoutBuilder,
    dtype: DType,
    /// One for each parameter of the engine, once one is held: buffers alone hold none.
    parameters: Vec<ParameterId>,
    buffers: Vec<(String, ParameterId)>,
    spans: Vec<Span>,
}

impl PartDraft {
    pub(super) fn new(dtype: DType) -> Self {
        Self {
            builder: LayoutBuilder::new(),
            dtype,
            parameters: Vec::new(),
            buffers: Vec::new(),
            spans: Vec::new(),
        }
    }

    pub(super) fn holds_any(&self) -> bool {
        !self.spans.is_empty()
    }

    /// Adds what a rank stores, whose storages begin at these offsets of a file.
    pub(super) fn add(&mut self, engine: &DeepSpeed, stored: &RankStorage, file: FileId, offsets: &[u64]) {
        if self.parameters.is_empty() {
            self.declare(engine);
        }
        let mut buffers = Vec::with_capacity(stored.storages.len());
        for (spec, offset) in stored.storages.iter().zip(offsets) {
            let length = spec.length.bytes(spec.dtype);
            self.spans.push(Span { file, offset: Bytes(*offset), length });
            let storage = self.builder.storage(stored.rank, &spec.name, length);
            buffers.push(self.builder.buffer(storage, Bytes(0), spec.dtype, spec.length));
        }
        let mut ends = vec![Elements(0); buffers.len()];
        for run in &stored.runs {
            let parameter = &engine.parameters()[run.parameter];
            let shard = engine.cuts()[run.parameter].shard(&parameter.shape, stored.tp_rank);
            let shard = self.builder.shard(shard);
            let range = run.first.0..run.first.0 + run.length.0;
            let buffer = buffers[run.storage];
            self.fill(buffer, ends[run.storage], run.offset);
            self.builder.place_run(self.parameters[run.parameter], buffer, run.offset, shard, range);
            ends[run.storage] = run.offset + run.length;
        }
        for ((buffer, end), spec) in buffers.into_iter().zip(ends).zip(&stored.storages) {
            self.fill(buffer, end, spec.length);
        }
    }

    fn declare(&mut self, engine: &DeepSpeed) {
        for parameter in engine.parameters() {
            let id = self.builder.parameter(&parameter.name, parameter.shape.iter().copied(), self.dtype);
            for alias in &parameter.aliases {
                self.builder.alias(alias, id);
            }
            self.parameters.push(id);
        }
    }

    /// Padding is zero, as DeepSpeed's is where it matters.
    fn fill(&mut self, buffer: BufferId, start: Elements, end: Elements) {
        if start < end {
            let shape = [end.0 - start.0].into_iter().collect();
            let value = vec![0; usize::try_from(self.dtype.size()).unwrap_or_default()];
            self.builder.fill(Fill {
                buffer,
                offset: start,
                shape,
                strides: [1].into_iter().collect(),
                value,
            });
        }
    }

    /// Adds a rank's copy of a tensor that is no parameter.
    pub(super) fn add_buffer(&mut self, spec: &BufferSpec, rank: Rank, file: FileId, offset: u64) {
        let known = self.buffers.iter().find(|(name, _)| *name == spec.name).map(|(_, id)| *id);
        let parameter = known.unwrap_or_else(|| {
            let id = self.builder.parameter(&spec.name, spec.shape.iter().copied(), spec.dtype);
            self.buffers.push((spec.name.clone(), id));
            id
        });
        let elements = Elements(spec.shape.iter().product());
        let length = elements.bytes(spec.dtype);
        self.spans.push(Span { file, offset: Bytes(offset), length });
        let storage = self.builder.storage(rank, &spec.name, length);
        let buffer = self.builder.buffer(storage, Bytes(0), spec.dtype, elements);
        let geometry = self.builder.geometry(Geometry::whole(&spec.shape));
        if elements.0 > 0 {
            self.builder.place(parameter, buffer, Elements(0), geometry);
        }
    }

    pub(super) fn build(self) -> Result<Part, LayoutError> {
        Ok(Part { layout: self.builder.build()?, spans: self.spans })
    }
}

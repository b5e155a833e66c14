//! What every rank stores, as a [`Layout`].
//!
//! ```text
//!  cut: W (3, 6) -> shard (3, 3) of tp rank 0      run: elements [5, 9) of the shard, at offset 2 of storage 1
//!    # # # . . .                                     . . .
//!    # # # . . .              nest                   . . f           ->  W (1,2)+(1,1) at 2, (2,0)+(1,3) at 3
//!    # # # . . .                                     g h i
//! ```

use reshard_layout::{Bytes, DType, Layout, LayoutBuilder, LayoutError, ParameterId};

use super::{DeepSpeed, State};
use crate::storage::RankStorage;
use crate::topology::Slot;

impl DeepSpeed {
    /// Where every element of the weights lies. Padding is in no piece.
    ///
    /// # Errors
    /// What [`LayoutBuilder::build`] finds: nothing, unless the rules of this crate contradict themselves.
    pub fn layout(&self) -> Result<Layout, LayoutError> {
        self.collect(self.dtype(), |engine, slot| engine.weights(slot))
    }

    /// Where every element of an optimizer state lies. Padding is in no piece.
    ///
    /// # Errors
    /// As [`layout`](Self::layout).
    pub fn optimizer_layout(&self, state: State) -> Result<Layout, LayoutError> {
        self.collect(DType::F32, |engine, slot| engine.optimizer(slot, state))
    }

    fn collect(
        &self,
        dtype: DType,
        stored: impl Fn(&Self, Slot) -> RankStorage,
    ) -> Result<Layout, LayoutError> {
        let mut collector = Collector::new(self, dtype);
        for slot in self.topology().slots() {
            collector.add(&stored(self, slot));
        }
        collector.builder.build()
    }
}

/// Collects ranks.
struct Collector<'a> {
    builder: LayoutBuilder,
    engine: &'a DeepSpeed,
    ids: Vec<ParameterId>,
}

impl<'a> Collector<'a> {
    fn new(engine: &'a DeepSpeed, dtype: DType) -> Self {
        let mut builder = LayoutBuilder::new();
        let mut ids = Vec::new();
        for parameter in engine.parameters() {
            let id = builder.parameter(&parameter.name, parameter.shape.iter().copied(), dtype);
            for alias in &parameter.aliases {
                builder.alias(alias, id);
            }
            ids.push(id);
        }
        Self { builder, engine, ids }
    }

    fn add(&mut self, stored: &RankStorage) {
        let mut buffers = Vec::with_capacity(stored.storages.len());
        for spec in &stored.storages {
            let storage = self.builder.storage(stored.rank, &spec.name, spec.length.bytes(spec.dtype));
            buffers.push(self.builder.buffer(storage, Bytes(0), spec.dtype, spec.length));
        }
        for run in &stored.runs {
            let shape = &self.engine.parameters()[run.parameter].shape;
            let shard = self.builder.shard(self.engine.cuts()[run.parameter].shard(shape, stored.tp_rank));
            let range = run.first.0..run.first.0 + run.length.0;
            self.builder.place_run(self.ids[run.parameter], buffers[run.storage], run.offset, shard, range);
        }
    }
}

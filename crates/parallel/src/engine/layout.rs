//! What every rank stores, as a [`Layout`].
//!
//! ```text
//!  cut: W (3, 6) -> shard (3, 3) of tp rank 0      run: elements [5, 9) of the shard, at offset 2 of storage 1
//!    # # # . . .                                     . . .
//!    # # # . . .              nest                   . . f           ->  W (1,2)+(1,1) at 2, (2,0)+(1,3) at 3
//!    # # # . . .                                     g h i
//! ```

use std::collections::HashMap;

use indexmap::IndexSet;
use reshard_layout::{
    Block, Bytes, DType, Elements, Geometry, GeometryId, Layout, LayoutBuilder, LayoutError, ParameterId,
    Region, nest, stored_run,
};

use super::{DeepSpeed, State};
use crate::storage::{RankStorage, Run};
use crate::tensor::Cut;
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

/// Collects ranks. Equal runs of parameters that have the same shape and cut share one geometry.
struct Collector<'a> {
    builder: LayoutBuilder,
    ids: Vec<ParameterId>,
    /// Which shape and cut each parameter has.
    classes: Vec<usize>,
    shapes: IndexSet<(&'a [u64], &'a Cut)>,
    known: HashMap<Key, GeometryId>,
}

/// Class, tensor-parallel rank, first element and length of a run.
type Key = (usize, u32, Elements, Elements);

impl<'a> Collector<'a> {
    fn new(engine: &'a DeepSpeed, dtype: DType) -> Self {
        let mut builder = LayoutBuilder::new();
        let (mut ids, mut classes, mut shapes) = (Vec::new(), Vec::new(), IndexSet::new());
        for (parameter, cut) in engine.parameters().iter().zip(engine.cuts()) {
            let id = builder.parameter(&parameter.name, parameter.shape.iter().copied(), dtype);
            for alias in &parameter.aliases {
                builder.alias(alias, id);
            }
            ids.push(id);
            classes.push(shapes.insert_full((parameter.shape.as_slice(), cut)).0);
        }
        Self { builder, ids, classes, shapes, known: HashMap::new() }
    }

    fn add(&mut self, stored: &RankStorage) {
        let mut buffers = Vec::with_capacity(stored.storages.len());
        for spec in &stored.storages {
            let storage = self.builder.storage(stored.rank, &spec.name, spec.length.bytes(spec.dtype));
            buffers.push(self.builder.buffer(storage, Bytes(0), spec.dtype, spec.length));
        }
        for run in &stored.runs {
            let geometry = self.geometry(run, stored.tp_rank);
            self.builder.place(self.ids[run.parameter], buffers[run.storage], run.offset, geometry);
        }
    }

    fn geometry(&mut self, run: &Run, tp_rank: u32) -> GeometryId {
        let class = self.classes[run.parameter];
        let (shape, cut) = self.shapes[class];
        let key = (class, tp_rank, run.first, run.length);
        *self.known.entry(key).or_insert_with(|| {
            let shard = cut.shard_shape(shape, tp_rank);
            let inner = stored_run(&shard, run.first.0..run.first.0 + run.length.0);
            let region = Region::new(cut.origin(shape.len(), tp_rank), shard);
            let outer = Geometry::new(shape.iter().copied(), [Block::dense(region, Elements(0))]);
            // One dense block that is the whole shard is a box of the shard, which is all that `nest` asks.
            let nested = nest(&outer, &inner).expect("a dense shard nests with any run of it");
            self.builder.geometry(nested)
        })
    }
}

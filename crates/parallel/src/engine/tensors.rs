//! The tensors that one rank of an engine holds, and which boxes of which parameters lie in each.
//!
//! ```text
//! self_attn.qkv_proj.weight (8, C)     held: q_proj rows 4..8 at row 0
//!   q4 q5 q6 q7 | k2 k3 | v2 v3              k_proj rows 2..4 at row 4      stack(name, runs, padding)
//!                                            v_proj rows 2..4 at row 6
//! embed_tokens.weight (64, C)          held: embed_tokens rows 192..250 at row 0
//!   192 ... 249 | 0 x 6                padding_rows 6, each element zero
//! ```

use std::ops::Range;

use reshard_layout::{Block, DType, Elements, Geometry, Region, address, row_major};

use super::dense::DenseEngine;
use crate::model::{ModelParameter, Norm, Projection, Role};

/// A box of a parameter, and where its lowest corner lies in a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The box, in coordinates of the parameter; never empty.
    pub region: Region,
    /// A coordinate of the tensor, which has as many axes as the parameter.
    pub at: Vec<u64>,
}

/// What a tensor holds of one parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Position in [`ModelConfig::parameters`](crate::model::ModelConfig::parameters).
    pub parameter: usize,
    /// Its boxes, in the order of their places in the tensor.
    pub boxes: Vec<Placed>,
}

/// A tensor of an engine, on one rank.
///
/// Every element of it lies in exactly one box or in the padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineTensor {
    /// The engine's own name of it, unique on its rank.
    pub name: String,
    /// Its shape on that rank; row-major.
    pub shape: Vec<u64>,
    /// The type of its elements.
    pub dtype: DType,
    /// What it holds, a parameter at a time.
    pub held: Vec<Held>,
    /// How many of its last rows belong to no parameter. They must be zero.
    pub padding_rows: u64,
}

impl EngineTensor {
    /// The number of its elements.
    #[must_use]
    pub fn elements(&self) -> Elements {
        Elements(self.shape.iter().product())
    }

    /// The number of elements of one row.
    #[must_use]
    pub fn row_elements(&self) -> Elements {
        Elements(self.shape.iter().skip(1).product())
    }

    /// How boxes of a parameter of shape `shape` lie in it.
    pub(super) fn geometry(&self, held: &Held, shape: &[u64]) -> Geometry {
        let strides = row_major(&self.shape);
        let block = |placed: &Placed| {
            let offset = Elements(address(&placed.at, &strides));
            Block::new(placed.region.clone(), offset, strides.iter().copied())
        };
        Geometry::new(shape.iter().copied(), held.boxes.iter().map(block))
    }
}

/// Rows of a parameter, all columns of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) parameter: usize,
    pub(super) rows: Range<u64>,
}

/// Lists the tensors of one rank.
pub(super) struct Tensors<'a> {
    pub(super) engine: &'a DenseEngine,
    pub(super) tp_rank: u64,
    pub(super) stage: usize,
    pub(super) list: Vec<EngineTensor>,
}

impl Tensors<'_> {
    /// The number of tensor-parallel ranks.
    pub(super) fn tp(&self) -> u64 {
        self.engine.topology().tp().get().into()
    }

    pub(super) fn is_first_stage(&self) -> bool {
        self.stage == 0
    }

    pub(super) fn is_last_stage(&self) -> bool {
        self.stage + 1 == self.engine.scheme().stages.len()
    }

    /// This rank's part of an axis that is cut evenly.
    pub(super) fn share(&self, total: u64) -> Range<u64> {
        let width = total / self.tp();
        self.tp_rank * width..(self.tp_rank + 1) * width
    }

    /// A tensor of rows of parameters, one under another, and padding under them. Nothing without rows of anything.
    pub(super) fn stack(&mut self, name: String, parts: &[Rows], padding_rows: u64) {
        let Some(first) = parts.first() else { return };
        let columns = self.parameter(first.parameter).shape[1..].to_vec();
        let (mut held, mut at): (Vec<Held>, u64) = (Vec::new(), 0);
        for Rows { parameter, rows } in parts {
            let count = rows.end - rows.start;
            if count == 0 {
                continue;
            }
            let column_origin = columns.iter().map(|_| 0);
            let region = Region::new(
                std::iter::once(rows.start).chain(column_origin.clone()),
                std::iter::once(count).chain(columns.iter().copied()),
            );
            let placed = Placed { region, at: std::iter::once(at).chain(column_origin).collect() };
            at += count;
            match held.iter_mut().find(|held| held.parameter == *parameter) {
                Some(held) => held.boxes.push(placed),
                None => held.push(Held { parameter: *parameter, boxes: vec![placed] }),
            }
        }
        let shape = std::iter::once(at + padding_rows).chain(columns).collect();
        self.push(name, shape, held, padding_rows);
    }

    /// All of a parameter, if the model has it.
    pub(super) fn whole(&mut self, name: String, layer: Option<u32>, role: Role) {
        let Some(parameter) = self.engine.find(layer, role) else { return };
        let rows = self.parameter(parameter).shape[0];
        self.stack(name, &[Rows { parameter, rows: 0..rows }], 0);
    }

    /// The weight of a normalisation, whole on every rank, if the model has it.
    pub(super) fn norm(&mut self, name: String, layer: Option<u32>, norm: Norm) {
        self.whole(name, layer, Role::Norm(norm));
    }

    /// A layer that computes some of its outputs: rows of the weights of projections, and the same rows of their
    /// biases where they have any.
    pub(super) fn column_parallel(&mut self, module: &str, layer: u32, parts: &[(Projection, Range<u64>)]) {
        for (tensor, role) in [("weight", Role::Weight as fn(Projection) -> Role), ("bias", Role::Bias)] {
            let rows = parts.iter().filter_map(|(projection, rows)| {
                let parameter = self.engine.find(Some(layer), role(*projection))?;
                Some(Rows { parameter, rows: rows.clone() })
            });
            let rows: Vec<Rows> = rows.collect();
            self.stack(format!("{module}.{tensor}"), &rows, 0);
        }
    }

    /// A layer that computes with some of its inputs: a block of columns of the weight, and all of the bias.
    pub(super) fn row_parallel(&mut self, module: &str, layer: u32, projection: Projection) {
        if let Some(parameter) = self.engine.find(Some(layer), Role::Weight(projection)) {
            let [rows, total] = self.parameter(parameter).shape[..] else { return };
            let columns = self.share(total);
            let shape = vec![rows, columns.end - columns.start];
            let region = Region::new([0, columns.start], shape.iter().copied());
            let held = Held { parameter, boxes: vec![Placed { region, at: vec![0, 0] }] };
            self.push(format!("{module}.weight"), shape, vec![held], 0);
        }
        self.whole(format!("{module}.bias"), Some(layer), Role::Bias(projection));
    }

    /// This rank's run of rows of an embedding or a head that is padded, if the model has it.
    pub(super) fn vocabulary(&mut self, name: String, role: Role) {
        let Some(parameter) = self.engine.find(None, role) else { return };
        let real = self.parameter(parameter).shape[0];
        let padded = self.share(self.engine.scheme().vocabulary_rows);
        let rows = padded.start.min(real)..padded.end.min(real);
        let padding_rows = (padded.end - padded.start) - (rows.end - rows.start);
        self.stack(name, &[Rows { parameter, rows }], padding_rows);
    }

    fn parameter(&self, index: usize) -> &ModelParameter {
        &self.engine.parameters()[index]
    }

    fn push(&mut self, name: String, shape: Vec<u64>, held: Vec<Held>, padding_rows: u64) {
        let dtype = self.engine.dtype();
        self.list.push(EngineTensor { name, shape, dtype, held, padding_rows });
    }
}

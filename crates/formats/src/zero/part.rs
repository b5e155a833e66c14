//! A part of a checkpoint: runs of shards in tensors of files, collected and put in the module's order.
//!
//! ```text
//!   tensor 3: "fp32 0" of rank 1, bytes 448..704 of file 2
//!     at 0   norm.weight, shard of tensor rank 1, elements 4..7
//!     at 4   up.weight,   shard of tensor rank 1, elements 32..63
//! ```

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use reshard_layout::{
    Block, BufferId, Bytes, DType, Dims, Elements, Geometry, LayoutBuilder, ParameterId, Rank, Region, Shard,
    nest, volume,
};

use super::catalogue::Catalogue;
use super::fault::ZeroFault;
use super::files::Position;
use super::partitions::Share;
use crate::checkpoint::Part;
use crate::error::FormatError;
use crate::torch::Tensor;

/// What lies where, before the parameters are in order.
pub(super) struct Pieces<'a> {
    catalogue: &'a Catalogue,
    tensors: Vec<Stored<'a>>,
    pieces: Vec<Piece>,
}

/// A tensor of a file.
struct Stored<'a> {
    rank: u32,
    label: String,
    tensor: &'a Tensor,
}

/// A run of a shard in it, or the shard as a whole.
struct Piece {
    stored: usize,
    parameter: usize,
    tensor_rank: usize,
    base: u64,
    run: Option<Range<u64>>,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(catalogue: &'a Catalogue) -> Self {
        Self { catalogue, tensors: Vec::new(), pieces: Vec::new() }
    }

    /// The first parameter of a share that is kept multiplied by a number.
    pub(super) fn scaled<'s>(&self, share: &'s Share) -> Option<&'s str> {
        let is_scaled =
            |name: &&str| self.catalogue.tensors.get(*name).is_some_and(|one| one.joined.is_scaled());
        share.held.iter().map(|held| held.parameter.as_str()).find(is_scaled)
    }

    /// A rank's flat tensor holds a share.
    pub(super) fn share(
        &mut self,
        rank: u32,
        at: Position,
        tensor: &'a Tensor,
        share: &Share,
        label: String,
    ) {
        let stored = self.tensors.len();
        self.tensors.push(Stored { rank, label, tensor });
        for held in &share.held {
            if let Some(parameter) = self.catalogue.tensors.get_index_of(&held.parameter) {
                let (base, run) = (held.offset, Some(held.run.clone()));
                self.pieces.push(Piece { stored, parameter, tensor_rank: at.tensor as usize, base, run });
            }
        }
    }

    /// A tensor is the shard of a tensor-parallel rank.
    pub(super) fn whole(&mut self, rank: u32, tensor_rank: u32, name: &str, tensor: &'a Tensor) {
        let Some(parameter) = self.catalogue.tensors.get_index_of(name) else { return };
        let stored = self.tensors.len();
        self.tensors.push(Stored { rank, label: name.to_owned(), tensor });
        self.pieces.push(Piece { stored, parameter, tensor_rank: tensor_rank as usize, base: 0, run: None });
    }

    /// The layout. `path` is the checkpoint's, for errors.
    pub(super) fn build(self, path: &Path) -> Result<Part, FormatError> {
        let mut builder = LayoutBuilder::new();
        let ids = self.parameters(&mut builder);
        let (mut spans, mut buffers) = (Vec::new(), Vec::new());
        for Stored { rank, label, tensor } in &self.tensors {
            let span = tensor.span();
            let storage = builder.storage(Rank(*rank), label, span.length);
            let length = Elements(span.length.0 / tensor.dtype.size());
            buffers.push(builder.buffer(storage, Bytes(0), tensor.dtype, length));
            spans.push(span);
        }
        let mut shards = HashMap::new();
        for piece in &self.pieces {
            let (name, logical) = &self.catalogue.tensors.get_index(piece.parameter).expect("an index of it");
            let shard = &logical.joined.shards[piece.tensor_rank];
            let (parameter, buffer) = (ids[&piece.parameter], buffers[piece.stored]);
            let tensor = self.tensors[piece.stored].tensor;
            let elements = volume(shard.shape()).unwrap_or(0);
            if piece.run.is_none() && !tensor.is_dense() && elements > 0 {
                place_strided(&mut builder, parameter, buffer, shard, tensor).map_err(|found| {
                    let (parameter, rank) = (name.to_string(), piece.tensor_rank);
                    let expected = "in boxes that do not lie in its rows".to_owned();
                    ZeroFault::Shard { parameter, rank, found, expected }.at(path)
                })?;
                continue;
            }
            let id = *shards
                .entry((piece.parameter, piece.tensor_rank))
                .or_insert_with(|| builder.shard(shard.clone()));
            builder.place_run(
                parameter,
                buffer,
                Elements(piece.base),
                id,
                piece.run.clone().unwrap_or(0..elements),
            );
        }
        for (second, first) in &self.catalogue.aliases {
            let index = self.catalogue.tensors.get_index_of(first);
            if let Some(id) = index.and_then(|index| ids.get(&index)) {
                builder.alias(second, *id);
            }
        }
        let layout = builder.build().map_err(|error| FormatError::Layout { path: path.to_owned(), error })?;
        Ok(Part { layout, spans })
    }

    /// The parameters of which something lies in a tensor, in the module's order.
    fn parameters(&self, builder: &mut LayoutBuilder) -> HashMap<usize, ParameterId> {
        let mut dtypes: HashMap<usize, DType> = HashMap::new();
        for piece in &self.pieces {
            dtypes.entry(piece.parameter).or_insert(self.tensors[piece.stored].tensor.dtype);
        }
        let mut ids = HashMap::new();
        for (index, (name, logical)) in self.catalogue.tensors.iter().enumerate() {
            if let Some(dtype) = dtypes.get(&index) {
                ids.insert(index, builder.parameter(name, logical.joined.shape.iter().copied(), *dtype));
            }
        }
        ids
    }
}

/// A shard whose tensor has strides of its own, as a row-parallel weight has where it is a view of the whole one.
fn place_strided(
    builder: &mut LayoutBuilder,
    parameter: ParameterId,
    buffer: BufferId,
    shard: &Shard,
    tensor: &Tensor,
) -> Result<(), Vec<u64>> {
    let own = Dims::from_slice(shard.shape());
    let block = Block::new(Region::whole(&own), Elements(0), tensor.strides.iter().copied());
    let geometry =
        nest(shard.geometry(), &Geometry::new(own, [block])).ok_or_else(|| shard.shape().to_vec())?;
    let geometry = builder.geometry(geometry);
    builder.place(parameter, buffer, Elements(0), geometry);
    Ok(())
}

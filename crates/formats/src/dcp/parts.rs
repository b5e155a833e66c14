//! Chunks of tensors in files become parts of a checkpoint: a storage and a buffer a chunk, all of rank 0.

use std::path::Path;

use indexmap::IndexMap;
use reshard_layout::{Block, Bytes, DType, Elements, Geometry, LayoutBuilder, ParameterId, Rank, Region};

use crate::checkpoint::Part;
use crate::error::FormatError;
use crate::files::{Files, Span};
use crate::kept::Kept;

/// A box of a tensor and where it lies.
pub(super) struct Placed<'a> {
    pub(super) offsets: &'a [u64],
    pub(super) sizes: &'a [u64],
    /// The bytes that hold it.
    pub(super) span: Span,
    /// Its first element in them.
    pub(super) first: Elements,
    /// Elements between neighbours along each axis.
    pub(super) strides: &'a [u64],
}

/// Parts that grow.
#[derive(Default)]
pub(super) struct Parts {
    parts: IndexMap<Kept, (LayoutBuilder, Vec<Span>)>,
}

impl Parts {
    /// A tensor, whose boxes are to come.
    pub(super) fn parameter(&mut self, kept: &Kept, name: &str, shape: &[u64], dtype: DType) -> ParameterId {
        let (builder, _) = self.parts.entry(kept.clone()).or_default();
        builder.parameter(name, shape.iter().copied(), dtype)
    }

    /// A box of a tensor.
    pub(super) fn place(
        &mut self,
        files: &Files,
        (kept, id): (&Kept, ParameterId),
        (shape, dtype): (&[u64], DType),
        placed: &Placed<'_>,
    ) {
        let (builder, spans) = self.parts.entry(kept.clone()).or_default();
        let span = placed.span;
        let file = files.path(span.file).file_name().unwrap_or_default().to_string_lossy();
        let storage = builder.storage(Rank(0), &format!("{file}:{}", span.offset), span.length);
        let buffer = builder.buffer(storage, Bytes(0), dtype, Elements(span.length.0 / dtype.size()));
        let region = Region::new(placed.offsets.iter().copied(), placed.sizes.iter().copied());
        let block = Block::new(region, placed.first, placed.strides.iter().copied());
        let geometry = builder.geometry(Geometry::new(shape.iter().copied(), [block]));
        builder.place(id, buffer, Elements(0), geometry);
        spans.push(span);
    }

    /// The parts, the weights first, each proved to hold every element of every tensor once.
    pub(super) fn finish(mut self, path: &Path) -> Result<IndexMap<Kept, Part>, FormatError> {
        self.parts.sort_keys();
        let part = |(kept, (builder, spans)): (Kept, (LayoutBuilder, Vec<Span>))| {
            let layout =
                builder.build().map_err(|error| FormatError::Layout { path: path.to_owned(), error })?;
            Ok((kept, Part { layout, spans }))
        };
        self.parts.into_iter().map(part).collect()
    }
}

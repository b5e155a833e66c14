//! What a plan is made of: one strided box copy.
//!
//! ```text
//! source buffer, strides (8, 1)         target buffer, strides (2, 1)
//! . . a b . . . .                       a b
//! . . c d . . . .        shape (3, 2)   c d
//! . . e f . . . .        -------------> e f
//! ```

use reshard_layout::{BufferId, DType, Dims, Elements, ParameterId};
use serde::{Deserialize, Serialize};

/// One end of a copy: an element of a buffer, and how far apart the elements of the box lie there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct End {
    /// The buffer, in the plan's `Places` of this side.
    pub buffer: BufferId,
    /// The element of the buffer at which the box begins.
    pub offset: Elements,
    /// Elements between neighbours along each axis of the box.
    pub strides: Dims,
}

/// One strided box copy, source buffer to target buffer. Both buffers hold the same dtype, unless the plan casts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Copy {
    /// Where the box is written.
    pub target: End,
    /// Where the box is read.
    pub source: End,
    /// Extents of the box; empty for a scalar.
    pub shape: Dims,
    /// The parameter, in the target layout. Carried for verification and reports only.
    pub parameter: ParameterId,
    /// The box's lowest corner in the parameter, whose axes are those of `shape`.
    pub origin: Dims,
}

impl Copy {
    /// The number of elements that it moves.
    #[must_use]
    pub fn elements(&self) -> Elements {
        Elements(self.shape.iter().product())
    }
}

/// The type in which elements travel between ranks: the narrower one, so that whoever has the wider one converts;
/// the source's if both are as wide.
pub(crate) fn wire_type(source: DType, target: DType) -> DType {
    if target.size() < source.size() { target } else { source }
}

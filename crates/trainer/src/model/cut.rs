//! A parameter and its shards, in the units that the computation uses.
//!
//! ```text
//! up_proj (18, 64), tp 4     rank 0 rows 0..5 | rank 1 rows 5..10 | rank 2 rows 10..14 | rank 3 rows 14..18
//! down_proj (64, 18), tp 4   the same ranges of columns
//! ```

use std::num::NonZeroU32;
use std::ops::Range;

use reshard_parallel::ParallelError;
use reshard_parallel::model::{ModelConfig, Role};
use reshard_parallel::tensor::{Cut, cut};

/// An axis that is cut over a tensor-parallel group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisCut {
    /// The axis.
    pub axis: usize,
    /// The coordinates of each rank; they follow each other and may be empty.
    pub ranges: Vec<Range<usize>>,
}

/// A parameter of a model that is cut over a tensor-parallel group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardedParameter {
    /// Its name in a checkpoint.
    pub name: String,
    /// Its whole shape.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
    /// The decoder layer that it belongs to.
    pub layer: Option<u32>,
    /// The axis that is cut; `None` where every rank has all of it.
    pub cut: Option<AxisCut>,
}

impl ShardedParameter {
    /// Elements of the whole parameter.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The shape of a rank's shard.
    #[must_use]
    pub fn shard_shape(&self, tp_rank: usize) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some(cut) = &self.cut {
            shape[cut.axis] = cut.ranges[tp_rank].len();
        }
        shape
    }

    /// The coordinates along axis 0 that a rank holds.
    #[must_use]
    pub fn rows(&self, tp_rank: usize) -> Range<usize> {
        match &self.cut {
            Some(cut) if cut.axis == 0 => cut.ranges[tp_rank].clone(),
            _ => 0..self.shape[0],
        }
    }

    /// The flat index in the whole parameter of an element of a rank's flattened shard.
    #[must_use]
    pub fn logical_index(&self, tp_rank: usize, index: usize) -> usize {
        let Some(cut) = &self.cut else { return index };
        let range = &cut.ranges[tp_rank];
        let inner: usize = self.shape[cut.axis + 1..].iter().product();
        let (outer, rest) = (index / (range.len() * inner), index % (range.len() * inner));
        (outer * self.shape[cut.axis] + range.start) * inner + rest
    }
}

/// All parameters of a model, cut over `tp` ranks.
pub(super) fn sharded_parameters(
    config: &ModelConfig,
    tp: NonZeroU32,
) -> Result<Vec<ShardedParameter>, ParallelError> {
    let sharded = |parameter: reshard_parallel::model::ModelParameter| {
        let cut = match cut(config, &parameter, tp)? {
            Cut::Whole => None,
            Cut::Axis { axis, widths } => {
                let ends = widths.iter().scan(0, |end, width| {
                    let start = *end;
                    *end += *width as usize;
                    Some(start..*end)
                });
                Some(AxisCut { axis, ranges: ends.collect() })
            }
        };
        Ok(ShardedParameter {
            name: parameter.name,
            shape: parameter.shape.iter().map(|extent| *extent as usize).collect(),
            role: parameter.role,
            layer: parameter.layer,
            cut,
        })
    };
    config.parameters().into_iter().map(sharded).collect()
}

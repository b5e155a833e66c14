//! Stages 0, 1 and 2: one flat buffer an optimizer group, and equal windows of it.
//!
//! ```text
//! numels 5, 4, 8 over W = 3: aligned to 2 W = 6
//!  0         5       9               17 18
//! |a a a a a|b b b b|c c c c c c c c|0|        length F = 18
//! |  rank 0   |  rank 1   |  rank 2   |        window P = F / W = 6, cut anywhere inside parameters
//! ```
//!
//! Source: DeepSpeed 0.19.8 `runtime/zero/stage_1_and_2.py`.

use std::num::NonZeroU64;

use reshard_layout::{DType, Elements};

/// Start of a window, in multiples of this many elements a rank (`nccl_start_alignment_factor`).
const START_ALIGNMENT: u64 = 2;
/// `parameter_alignment` pads to this many bytes.
const PARAMETER_ALIGNMENT_BYTES: u64 = 16;

/// How a flat buffer is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatRules {
    /// Windows: W.
    pub partitions: NonZeroU64,
    /// The buffer's length is a multiple of this.
    pub alignment: Elements,
    /// Every parameter but the last is padded to a multiple of this.
    pub parameter_alignment: Elements,
    /// Whether parameters are dealt out to the windows.
    pub round_robin: bool,
}

impl FlatRules {
    /// Stage 0: one window, no padding (the flat group of `FP16_Optimizer` in `runtime/fp16/fused_optimizer.py`).
    pub const REPLICATED: Self = Self {
        partitions: NonZeroU64::MIN,
        alignment: Elements(1),
        parameter_alignment: Elements(1),
        round_robin: false,
    };

    /// Stages 1 and 2 over a group of `ranks`, for weights of a dtype.
    #[must_use]
    pub fn partitioned(
        ranks: NonZeroU64,
        dtype: DType,
        parameter_alignment: bool,
        round_robin: bool,
    ) -> Self {
        // Element sizes are powers of two up to 8, so 16 / gcd(16, size) is a plain quotient.
        let aligned = if parameter_alignment { PARAMETER_ALIGNMENT_BYTES / dtype.size() } else { 1 };
        Self {
            partitions: ranks,
            alignment: Elements(START_ALIGNMENT * ranks.get()),
            parameter_alignment: Elements(aligned),
            round_robin,
        }
    }
}

/// A parameter in a flat buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlatEntry {
    /// The parameter.
    pub parameter: usize,
    /// Its elements; not zero.
    pub numel: Elements,
    /// Where it begins in the flat buffer.
    pub offset: Elements,
}

/// A stretch of a parameter in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The parameter.
    pub parameter: usize,
    /// Where it begins in the window.
    pub offset: Elements,
    /// Its first element in the parameter.
    pub first: Elements,
    /// Its length; not zero.
    pub length: Elements,
}

/// The flat buffer of one optimizer group of one tensor-parallel rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlatGroup {
    entries: Vec<FlatEntry>,
    unpadded: Elements,
    length: Elements,
    partitions: NonZeroU64,
}

impl FlatGroup {
    /// Lays out shards (parameter, elements), given in optimizer order. Empty ones are left out.
    #[must_use]
    pub fn new(shards: &[(usize, Elements)], rules: FlatRules) -> Self {
        let present: Vec<_> = shards.iter().copied().filter(|(_, numel)| numel.0 > 0).collect();
        let order = if rules.round_robin {
            round_robin(present.len(), rules.partitions)
        } else {
            (0..present.len()).collect()
        };
        let mut entries: Vec<FlatEntry> = Vec::with_capacity(present.len());
        let mut end: u64 = 0;
        for index in order {
            let (parameter, numel) = present[index];
            // Only what is followed by another parameter is padded.
            let offset = Elements(end.next_multiple_of(rules.parameter_alignment.0));
            entries.push(FlatEntry { parameter, numel, offset });
            end = offset.0 + numel.0;
        }
        let length = Elements(end.next_multiple_of(rules.alignment.0));
        Self { entries, unpadded: Elements(end), length, partitions: rules.partitions }
    }

    /// The parameters, by address.
    #[must_use]
    pub fn entries(&self) -> &[FlatEntry] {
        &self.entries
    }

    /// F: the buffer's length.
    #[must_use]
    pub fn length(&self) -> Elements {
        self.length
    }

    /// Where the last parameter ends: the length without the padding of the tail.
    #[must_use]
    pub fn unpadded(&self) -> Elements {
        self.unpadded
    }

    /// P: the length of a window.
    #[must_use]
    pub fn partition_length(&self) -> Elements {
        Elements(self.length.0 / self.partitions)
    }

    /// How much of a window lies past the last parameter. Trailing windows may be nothing but padding.
    #[must_use]
    pub fn padding(&self, partition: u64) -> Elements {
        let window = self.partition_length();
        let start = window.0 * partition;
        window - Elements(self.unpadded.0.clamp(start, start + window.0) - start)
    }

    /// What lies in a window, by address.
    pub fn fragments(&self, partition: u64) -> impl Iterator<Item = Fragment> {
        let window = self.partition_length().0;
        let (start, end) = (window * partition, window * (partition + 1));
        self.entries.iter().filter_map(move |entry| {
            let first = start.max(entry.offset.0);
            let last = end.min(entry.offset.0 + entry.numel.0);
            (first < last).then(|| Fragment {
                parameter: entry.parameter,
                offset: Elements(first - start),
                first: Elements(first - entry.offset.0),
                length: Elements(last - first),
            })
        })
    }
}

/// `round_robin_gradients`: index `i` goes to bucket `i % ranks`, and the buckets follow each other.
#[must_use]
pub fn round_robin(count: usize, ranks: NonZeroU64) -> Vec<usize> {
    let ranks = usize::try_from(ranks.get()).unwrap_or(usize::MAX);
    (0..ranks.min(count)).flat_map(|bucket| (bucket..count).step_by(ranks)).collect()
}

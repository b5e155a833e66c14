//! Numbers that depend on their name and position only, so that any rank can make any part of a tensor.
//!
//! ```text
//! value(seed, "mlp.up_proj.weight", 17)   is the same on every rank, whichever shard element 17 falls into
//! ```

/// One round of SplitMix64: a bijection of 64 bits that looks random.
#[must_use]
pub(crate) fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of numbers, addressed by index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream(u64);

impl Stream {
    /// The stream of a seed and a name.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        Self(name.bytes().fold(mix(seed), |state, byte| mix(state ^ u64::from(byte))))
    }

    /// The number at an index, over all 64 bits.
    pub(crate) fn bits(self, index: u64) -> u64 {
        mix(self.0 ^ mix(index))
    }

    /// The number at an index, even in `[0, 1)`.
    pub(crate) fn unit(self, index: u64) -> f64 {
        (self.bits(index) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The number at an index, even in `[-1, 1)`.
    pub(crate) fn signed(self, index: u64) -> f64 {
        2.0 * self.unit(index) - 1.0
    }
}

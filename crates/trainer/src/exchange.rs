//! Small values that ranks tell each other: JSON of any length over plain collectives.
//!
//! ```text
//! lengths  |  17|   4|  29|      all-gather of 8 bytes each
//! texts    |xxxx.|xx...|xxxxx|   all-gather of the longest length each
//! ```

use reshard_transport::Communicator;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::TrainerError;

/// The values of all members, in group order.
pub(crate) fn everyones<T: Serialize + DeserializeOwned>(
    group: &dyn Communicator,
    mine: &T,
) -> Result<Vec<T>, TrainerError> {
    let text = serde_json::to_vec(mine)?;
    let size = group.ranks().len();
    let mut lengths = vec![0; 8 * size];
    group.all_gather(&(text.len() as u64).to_le_bytes(), &mut lengths)?;
    let lengths: Vec<usize> =
        lengths.as_chunks::<8>().0.iter().map(|length| u64::from_le_bytes(*length) as usize).collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut padded = text;
    padded.resize(longest, b' ');
    let mut all = vec![0; longest * size];
    group.all_gather(&padded, &mut all)?;
    let parts = all.chunks_exact(longest.max(1)).zip(lengths);
    parts.map(|(part, length)| Ok(serde_json::from_slice(&part[..length])?)).collect()
}

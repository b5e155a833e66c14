//! ZeRO to Universal, by one rank for all.
//!
//! ```text
//!   zero_pp_rank_0_mp_rank_00_optim_states.pt ..  (a file a rank)  ──►  zero/<parameter>/fp32.pt ..  (a file a state)
//! ```

use std::num::NonZeroUsize;
use std::path::Path;

use reshard_formats::universal::{self, ForStage, UniversalOptions};
use reshard_formats::{Checkpoint, Conversion, Replicas, Silent, WriteOptions};
use reshard_layout::Bytes;

use super::Cost;
use crate::error::TrainerError;

/// Memory of the converter: a window of a file, and as much beside it.
const CONVERT_BYTES: Bytes = Bytes(2 << 20);

/// Converts a ZeRO checkpoint into a Universal one at `target`. Replicas are compared; nobody waits for the disk.
pub(crate) fn convert(source: Checkpoint, target: &Path) -> Result<Cost, TrainerError> {
    let output = universal::output(&source, &UniversalOptions { for_stage: ForStage::Same })?;
    let options = WriteOptions {
        memory: CONVERT_BYTES,
        threads: NonZeroUsize::MIN,
        sync: false,
        force: false,
        replicas: Replicas::Compare,
    };
    let report = Conversion::new(source, output)?.run(target, &options, &Silent)?;
    Ok(Cost {
        bytes_written: report.bytes_written,
        bytes_read: report.bytes_read,
        staging_max: CONVERT_BYTES,
    })
}

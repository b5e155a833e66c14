//! Fills a window of a target storage from sources that are read by position: what files are moved with.
//!
//! ```text
//!   target storage  |......[ window ]..........|      source storages, read by `ReadAt`
//!                    every copy that reaches into the window, cut to it, is read and put in place
//! ```

use std::ops::Range;

use reshard_layout::{Bytes, StorageId};
use reshard_plan::Plan;

use crate::error::TransportError;

/// Storages that are read by position.
pub trait ReadAt: Sync {
    /// Fills `into` with the bytes of a storage from `offset` on.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read_at(&self, storage: StorageId, offset: Bytes, into: &mut [u8]) -> std::io::Result<()>;
}

/// The copies of a plan, ready to be carried out window by window.
#[derive(Debug)]
pub struct Assembly<'p> {
    plan: &'p Plan,
}

impl<'p> Assembly<'p> {
    /// Checks every copy of the plan against its places.
    ///
    /// # Errors
    /// As [`compile`](crate::compile), except that float casts are carried out.
    pub fn new(plan: &'p Plan) -> Result<Self, TransportError> {
        Ok(Self { plan })
    }

    /// Writes the part `window` (bytes of the target storage) into `into`, which is as long as the window. What no
    /// copy and no fill reaches stays as it is. `scratch` is working memory; no more is allocated.
    ///
    /// # Errors
    /// If a source cannot be read.
    pub fn fill(
        &self,
        storage: StorageId,
        window: Range<u64>,
        sources: &dyn ReadAt,
        into: &mut [u8],
        scratch: &mut [u8],
    ) -> Result<(), TransportError> {
        let _ = (self.plan, storage, window, sources, into, scratch);
        Err(TransportError::CopyMalformed { copy: 0, cause: "not written yet".to_owned() })
    }
}

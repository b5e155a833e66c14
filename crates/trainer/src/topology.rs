//! The topologies that this crate trains and rolls out on.

use reshard_parallel::ParallelError;
use reshard_parallel::topology::{AutoTp, Topology};

use crate::error::TrainerError;

/// Reads a topology of DeepSpeed's engine.
pub(crate) fn autotp(text: &str) -> Result<AutoTp, TrainerError> {
    match Topology::parse(text)? {
        Topology::AutoTp(topology) => Ok(topology),
        other => Err(ParallelError::TopologyUnsupported {
            what: format!("topology {other} in the demo"),
            supported: "autotp".to_owned(),
        }
        .into()),
    }
}

/// Whether ranks are numbered from 0 in the order of their slots.
pub(crate) fn is_in_order(topology: &AutoTp) -> bool {
    topology.ranks().iter().zip(0..).all(|(rank, expected)| rank.0 == expected)
}

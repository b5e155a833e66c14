//! Why a plan has no schedule.

use reshard_layout::{Bytes, Kind};

/// Errors of scheduling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// Too little memory for the smallest chunks.
    #[error("a schedule needs {expected} bytes of staging a rank, found {found}")]
    StagingTooSmall {
        /// The least that works.
        expected: Bytes,
        /// What was given.
        found: Bytes,
    },
    /// The plan is of another version of its form.
    #[error("the plan has version {found}, this library schedules version {expected}")]
    PlanVersion {
        /// The version of this library.
        expected: u32,
        /// The version of the plan.
        found: u32,
    },
    /// A copy whose parts do not fit together.
    #[error("copy {copy} is malformed: {cause}")]
    CopyMalformed {
        /// Position of the copy in the plan.
        copy: usize,
        /// What does not fit.
        cause: &'static str,
    },
    /// More messages than are scheduled.
    #[error("{found} messages of at most {chunk} bytes are more than the {expected} that are scheduled")]
    TooManyMessages {
        /// The most that are scheduled.
        expected: u64,
        /// What the plan needs.
        found: u64,
        /// Bytes of the largest message.
        chunk: Bytes,
    },
    /// A share was asked for with another plan than the one that was scheduled.
    #[error("the schedule is of plan {expected:016x}, not of plan {found:016x}")]
    OtherPlan {
        /// Fingerprint of the plan that was scheduled.
        expected: u64,
        /// Fingerprint of the plan that was given.
        found: u64,
    },
}

impl ScheduleError {
    /// Whether the inputs contradict each other, or ask for more work than the limits allow.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::TooManyMessages { .. } => Kind::OverBudget,
            _ => Kind::Invalid,
        }
    }

    /// A way out, where there is one.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::StagingTooSmall { .. } => Some("256 MiB is a good start"),
            Self::TooManyMessages { .. } => Some("more staging makes fewer and larger messages"),
            _ => None,
        }
    }
}

//! How a plan is made, beyond the two layouts.
//!
//! ```text
//!   Options::new(Policy::Balanced)                  what plan() does
//!   Options::ask(|request| ...)                     what plan_with() does
//!                             .cast(true)           f32 here, bf16 there: the copies convert
//! ```

use reshard_layout::{Layout, Rank};

use crate::choose::{How, Request};
use crate::error::PlanError;
use crate::plan::{Plan, Policy};
use crate::planner::plan_how;

/// Who sends what several ranks hold, and whether copies may cast. A plan records them.
pub struct Options<'a> {
    how: How<'a>,
    cast: bool,
}

impl<'a> Options<'a> {
    /// A policy, and no cast.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { how: How::Policy(policy), cast: false }
    }

    /// A caller's own policy, asked as [`plan_with`](crate::plan_with) says, and no cast.
    #[must_use]
    pub fn ask(selector: impl FnMut(&Request<'_>) -> Rank + 'a) -> Self {
        Self { how: How::Selector(Box::new(selector)), cast: false }
    }

    /// Whether the two sides may have different float types (f64, f32, f16, bf16) of one parameter, so that values
    /// are rounded to the target's. A box travels in the narrower type; its sender converts if that is the
    /// target's, its receiver otherwise.
    ///
    /// ```
    /// use reshard_layout::{Bytes, DType, Elements, Geometry, Layout, LayoutBuilder, Rank};
    /// use reshard_plan::{Options, Policy, plan};
    ///
    /// fn whole(rank: u32, dtype: DType) -> Layout {
    ///     let mut builder = LayoutBuilder::new();
    ///     let w = builder.parameter("w", [4], dtype);
    ///     let storage = builder.storage(Rank(rank), "w", Elements(4).bytes(dtype));
    ///     let buffer = builder.buffer(storage, Bytes(0), dtype, Elements(4));
    ///     let geometry = builder.geometry(Geometry::whole(&[4]));
    ///     builder.place(w, buffer, Elements(0), geometry);
    ///     builder.build().unwrap()
    /// }
    ///
    /// let (masters, weights) = (whole(0, DType::F32), whole(1, DType::Bf16));
    /// assert!(plan(&masters, &weights, Policy::Balanced).is_err());
    /// let made = Options::new(Policy::Balanced).cast(true).plan(&masters, &weights)?;
    /// assert_eq!(made.statistics.bytes_sent, Bytes(8));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cast(self, permitted: bool) -> Self {
        Self { cast: permitted, ..self }
    }

    /// Plans how every element of `target` is filled from `source`, as [`plan`](crate::plan) does.
    ///
    /// # Errors
    /// [`PlanError`] if a parameter is missing, or the sides disagree about its shape, dtype or scale;
    /// [`PlanError::NoSelector`] for the policy `custom` without a caller's function, and
    /// [`PlanError::NotACandidate`] for an answer of that function that is no holder.
    pub fn plan(self, source: &Layout, target: &Layout) -> Result<Plan, PlanError> {
        if matches!(self.how, How::Policy(Policy::Custom)) {
            return Err(PlanError::NoSelector);
        }
        plan_how(source, target, self.how, self.cast)
    }
}

impl std::fmt::Debug for Options<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("policy", &self.how.policy()).field("cast", &self.cast).finish()
    }
}

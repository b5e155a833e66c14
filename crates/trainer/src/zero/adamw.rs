//! AdamW with decoupled weight decay, on f32 masters.
//!
//! ```text
//! m <- b1 m + (1 - b1) g        w <- w (1 - rate decay) - rate m^ / (sqrt(v^) + eps)
//! v <- b2 v + (1 - b2) g^2      m^ = m / (1 - b1^t), v^ = v / (1 - b2^t)
//! ```

/// What AdamW is set to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub rate: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { rate: 5e-3, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl AdamW {
    /// The default for a model of some hidden width: wide models learn at a lower rate.
    #[must_use]
    pub fn for_width(hidden: u64) -> Self {
        let default = Self::default();
        Self { rate: default.rate * (64.0 / hidden as f32).min(1.0), ..default }
    }
}

/// The same stretch of a master and of its moments.
pub(super) struct Stretch<'a> {
    pub(super) master: &'a mut [f32],
    pub(super) exp_avg: &'a mut [f32],
    pub(super) exp_avg_sq: &'a mut [f32],
    pub(super) gradient: &'a [f32],
}

impl AdamW {
    /// Updates a stretch; `step` counts from 1. Every element depends on itself only, so any partition of the
    /// elements over ranks gives the same bits.
    pub(super) fn update(&self, stretch: Stretch<'_>, step: u64) {
        let exponent = i32::try_from(step).unwrap_or(i32::MAX);
        let correction1 = 1.0 - self.beta1.powi(exponent);
        let correction2 = 1.0 - self.beta2.powi(exponent);
        let moments = stretch.exp_avg.iter_mut().zip(stretch.exp_avg_sq);
        for ((weight, (first, second)), gradient) in
            stretch.master.iter_mut().zip(moments).zip(stretch.gradient)
        {
            *first = self.beta1 * *first + (1.0 - self.beta1) * gradient;
            *second = self.beta2 * *second + (1.0 - self.beta2) * gradient * gradient;
            let step = (*first / correction1) / ((*second / correction2).sqrt() + self.epsilon);
            *weight = *weight * (1.0 - self.rate * self.weight_decay) - self.rate * step;
        }
    }
}

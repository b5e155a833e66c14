//! ZeRO checkpoints: what real engines wrote, what is put together here by hand, and what is refused.

mod engines;
pub(crate) mod fuzz;
mod joins;
mod made;
mod optimizers;
mod refused;

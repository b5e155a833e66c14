//! ZeRO checkpoints: what real engines wrote, what is put together here by hand, and what is refused.

mod engines;
mod fuzz;
mod joins;
mod made;
mod optimizers;
mod refused;

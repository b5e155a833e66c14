//! safetensors against the official crate, against hostile bytes, and against public bug reports.

mod cases;
mod fuzz;
mod hostile;
mod index;
mod oracle;
pub(crate) mod support;
mod write;

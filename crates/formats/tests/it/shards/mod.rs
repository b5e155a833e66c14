//! Files of one rank each: written, read back element by element, damaged, and against public bug reports.

mod cases;
mod hostile;
mod refused;
mod roundtrip;
mod support;

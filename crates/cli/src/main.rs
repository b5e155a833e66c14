//! The `reshard` program.

fn main() {}

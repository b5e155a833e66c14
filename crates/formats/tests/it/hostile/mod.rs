//! Files that were damaged, or made to do harm: each is refused with a reason, or as good as any other file.

mod fuzz;
mod pickle;
mod torch;
mod zip;

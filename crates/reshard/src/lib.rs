//! Move model weights between two shardings, bit for bit: no whole parameter anywhere, one plan, many moves.
//!
//! ```text
//!   source layout ─┐
//!                  ├─ plan ─ verify ─ move ─ move ─ move ...
//!   target layout ─┘
//! ```
//!
//! A trainer holds `W` in two column shards; a rollout engine wants it in three row shards. Both sides are
//! layouts, the plan is their intersection, and moving is a loop over the plan:
//!
//! ```
//! use reshard::layout::{Block, Bytes, DType, Elements, Geometry, Layout, LayoutBuilder, Rank, Region, StorageId};
//! use reshard::plan::{Policy, plan, verify};
//! use reshard::transport::{Alone, Local, SourceBinding, Synchroniser, TargetBinding, TargetState, Version};
//!
//! /// `W` (6 x 4, f32) cut into `parts` along an axis, one part a rank from `first` on.
//! fn cut(axis: usize, parts: u32, first: u32) -> Layout {
//!     let mut builder = LayoutBuilder::new();
//!     let w = builder.parameter("W", [6, 4], DType::F32);
//!     for part in 0..parts {
//!         let (mut origin, mut extent) = ([0, 0], [6, 4]);
//!         extent[axis] /= u64::from(parts);
//!         origin[axis] = u64::from(part) * extent[axis];
//!         let length = Elements(extent.iter().product());
//!         let storage = builder.storage(Rank(first + part), "weights", length.bytes(DType::F32));
//!         let buffer = builder.buffer(storage, Bytes(0), DType::F32, length);
//!         let block = Block::dense(Region::new(origin, extent), Elements(0));
//!         let geometry = builder.geometry(Geometry::new([6, 4], [block]));
//!         builder.place(w, buffer, Elements(0), geometry);
//!     }
//!     builder.build().expect("the parts cover W")
//! }
//!
//! let (source, target) = (cut(1, 2, 0), cut(0, 3, 2));
//! let made = plan(&source, &target, Policy::Balanced)?;
//! assert_eq!(verify(&made, &source, &target)?.elements, Elements(24));
//! assert_eq!(made.statistics.bytes_sent, Bytes(96));
//!
//! // Every element holds its own row-major number; the target starts as NaN.
//! let halves: Vec<Vec<f32>> =
//!     (0..2).map(|half| (0..12).map(|at| (at / 2 * 4 + 2 * half + at % 2) as f32).collect()).collect();
//! let mut thirds = vec![vec![f32::NAN; 8]; 3];
//! let mut sources = SourceBinding::new();
//! for (id, half) in (0..).map(StorageId).zip(&halves) {
//!     sources.bind(id, bytemuck::cast_slice::<f32, u8>(half));
//! }
//! let mut targets = TargetBinding::new();
//! for (id, third) in (0..).map(StorageId).zip(&mut thirds) {
//!     targets.bind(id, bytemuck::cast_slice_mut::<f32, u8>(third));
//! }
//! // One process holds all ranks, so there is nobody to agree with; with several, the group goes here.
//! let (alone, mut state) = (Alone::default(), TargetState::Torn);
//! let mut synchroniser = Synchroniser::new(Local::new(&made)?, &alone);
//! synchroniser.sync(Version(1), &sources, &mut targets, &mut state, |_| Ok(()))?;
//! assert_eq!(state, TargetState::Committed(Version(1)));
//! drop(targets);
//! assert_eq!(thirds.concat(), (0..24).map(|at| at as f32).collect::<Vec<_>>());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What it does not do: it does not guess a layout, cast unasked, or average replicas that differ.

pub use reshard_formats as formats;
pub use reshard_layout as layout;
pub use reshard_parallel as parallel;
pub use reshard_plan as plan;
pub use reshard_transport as transport;

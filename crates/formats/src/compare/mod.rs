//! Do two checkpoints hold the same bits, whatever their layouts?
//!
//! ```text
//!   a ──► names, shapes, types ◄── b       differ: named
//!   small, or `exact`:  both put together window by window in logical order, compared byte by byte
//!   large:              each read in the order of its own files, a fingerprint a box, summed up for each parameter;
//!                       parameters whose sums differ are then compared byte by byte, to name what differs
//! ```
//!
//! Weights are compared in the type in which the model computes: where a side keeps fp32 masters alone, as these rounded.
//! Bits are bits: a NaN is equal to a NaN of the same payload only, and zero differs from negative zero.

mod exact;
mod sums;

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Instant;

use reshard_layout::{Bytes, DType, Dims, Layout, volume};
use reshard_plan::{Options, Plan, Policy};

use crate::checkpoint::{Checkpoint, Part};
use crate::error::FormatError;
use crate::kept::Kept;
use crate::replicas::compare_replicas;
use crate::write::{Crew, Progress, Replicas};

/// Checkpoints of this many bytes and more are compared by fingerprints.
const FINGERPRINT_BYTES_MIN: u64 = 64 << 20;

/// How to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompareOptions {
    /// Whether every byte is compared, however large the files are.
    pub exact: bool,
    /// Memory of all workers together.
    pub memory: Bytes,
    /// How many workers there are at most.
    pub threads: NonZeroUsize,
    /// What is done about elements that several files of one side hold.
    pub replicas: Replicas,
}

impl Default for CompareOptions {
    /// Fingerprints for large files, 256 MiB, a worker a processor, replicas compared.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { exact: false, memory: Bytes(256 << 20), threads, replicas: Replicas::Compare }
    }
}

/// A value of one of two checkpoints each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<T> {
    /// The first checkpoint's.
    pub first: T,
    /// The second checkpoint's.
    pub second: T,
}

/// One parameter that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Difference {
    /// One of the two does not have it.
    Missing {
        /// Which tensor.
        kept: Kept,
        /// The parameter.
        parameter: String,
        /// Who has it.
        held: Held<bool>,
    },
    /// The shapes differ.
    Shape {
        /// Which tensor.
        kept: Kept,
        /// The parameter.
        parameter: String,
        /// The shapes.
        shapes: Held<Dims>,
    },
    /// The types differ.
    Type {
        /// Which tensor.
        kept: Kept,
        /// The parameter.
        parameter: String,
        /// The types.
        dtypes: Held<DType>,
    },
    /// Elements differ.
    Bits {
        /// Which tensor.
        kept: Kept,
        /// The parameter.
        parameter: String,
        /// How many elements.
        elements: u64,
        /// The first of them, in row-major order.
        coordinate: Vec<u64>,
        /// Its bytes, little-endian.
        bytes: Held<Vec<u8>>,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { kept, parameter, held } => {
                let side = if held.first { "first" } else { "second" };
                write!(f, "{kept} of {parameter}: only the {side} has it")
            }
            Self::Shape { kept, parameter, shapes: Held { first, second } } => {
                write!(f, "{kept} of {parameter}: shape {first:?} and {second:?}")
            }
            Self::Type { kept, parameter, dtypes: Held { first, second } } => {
                write!(f, "{kept} of {parameter}: {first} and {second}")
            }
            Self::Bits { kept, parameter, elements, coordinate, bytes } => {
                let (first, second) = (hexadecimal(&bytes.first), hexadecimal(&bytes.second));
                write!(
                    f,
                    "{kept} of {parameter}: {elements} elements differ, the first at {coordinate:?}: "
                )?;
                write!(f, "{first} and {second}")
            }
        }
    }
}

/// The number that little-endian bytes stand for.
fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().rev().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// What both keep, and was compared.
    pub compared: Vec<Kept>,
    /// What only one of the two keeps. It was not compared, and is no difference.
    pub alone: Vec<(Kept, Held<bool>)>,
    /// Parameters of both, over all that was compared.
    pub parameters: usize,
    /// Every parameter that differs.
    pub differences: Vec<Difference>,
    /// Whether every byte was compared, and not sums of them.
    pub is_exact: bool,
    /// Bytes that were read.
    pub bytes_read: Bytes,
    /// How long it took.
    pub seconds: f64,
}

/// A parameter that both have, alike in shape and type.
#[derive(Clone, Debug)]
struct Common {
    name: String,
    shape: Dims,
    dtype: DType,
}

impl Common {
    fn bytes(&self) -> u64 {
        volume(&self.shape).unwrap_or(0).saturating_mul(self.dtype.size())
    }
}

/// One of the two sides of a kept tensor.
#[derive(Clone, Copy)]
struct Side<'a> {
    checkpoint: &'a Checkpoint,
    part: &'a Part,
}

impl Side<'_> {
    /// The plan into whole parameters.
    fn plan(&self, dense: &Layout) -> Result<Plan, FormatError> {
        Ok(Options::new(Policy::Lowest).cast(true).plan(&self.part.layout, dense)?)
    }
}

/// The bytes that [`compare`] tells a [`Progress`] of, where all is alike: those of all common parameters, on both
/// sides.
#[must_use]
pub fn comparable_bytes(first: &Checkpoint, second: &Checkpoint) -> Bytes {
    let of = |(kept, part): (&Kept, &Part)| {
        let other = second.parts.get(kept)?;
        let sides = [Side { checkpoint: first, part }, Side { checkpoint: second, part: other }];
        let commons = common(kept, sides).0;
        Some(commons.iter().map(|common| 2 * common.bytes()).sum::<u64>())
    };
    Bytes(first.parts.iter().filter_map(of).sum())
}

/// Compares what both checkpoints keep of every parameter. A parameter is found by its name or an alias. Where
/// several files of one side hold an element, the first is read, and the others are what it is.
///
/// # Errors
/// [`FormatError::Replicas`] where they are not; errors of planning and reading, and too little memory.
pub fn compare(
    first: &Checkpoint,
    second: &Checkpoint,
    options: &CompareOptions,
    progress: &dyn Progress,
) -> Result<Comparison, FormatError> {
    let begin = Instant::now();
    let crew = Crew::new(&first.root, options.memory, options.threads)?;
    let is_large = comparable_bytes(first, second).0 >= FINGERPRINT_BYTES_MIN;
    let mut result = Comparison { is_exact: options.exact || !is_large, ..Comparison::default() };
    for (kept, part) in &first.parts {
        let Some(other) = second.parts.get(kept) else {
            result.alone.push((kept.clone(), Held { first: true, second: false }));
            continue;
        };
        let sides = [Side { checkpoint: first, part }, Side { checkpoint: second, part: other }];
        let (mut commons, differences) = common(kept, sides);
        result.compared.push(kept.clone());
        result.parameters += commons.len();
        if options.replicas == Replicas::Compare {
            for side in sides {
                let Side { checkpoint, part } = side;
                result.bytes_read += compare_replicas(checkpoint, kept, part, &part.layout, crew)?;
            }
        }
        result.differences.extend(differences);
        if !result.is_exact {
            let (sums, bytes) = sums::differing(sides, &commons, crew, progress)?;
            result.bytes_read += bytes;
            let mut differs = sums.into_iter();
            commons.retain(|_| differs.next().unwrap_or(true));
        }
        let silent = crate::write::Silent;
        let progress = if result.is_exact { progress } else { &silent };
        let (found, bytes) = exact::differences(kept, sides, &commons, crew, progress)?;
        result.bytes_read += bytes;
        result.differences.extend(found);
    }
    let alone = second.parts.keys().filter(|kept| !first.parts.contains_key(*kept));
    result.alone.extend(alone.map(|kept| (kept.clone(), Held { first: false, second: true })));
    result.seconds = begin.elapsed().as_secs_f64();
    Ok(result)
}

/// What both have alike, and what differs before any byte is read.
fn common(kept: &Kept, sides: [Side<'_>; 2]) -> (Vec<Common>, Vec<Difference>) {
    let [first, second] = sides.map(|side| &side.part.layout);
    let (mut commons, mut differences) = (Vec::new(), Vec::new());
    let ours = first.parameters().map(|(_, parameter)| parameter);
    let theirs = second.parameters().map(|(_, parameter)| parameter);
    let others = theirs.filter(|parameter| !is_parameter(first, &parameter.name));
    for name in ours.chain(others).map(|parameter| &parameter.name) {
        let (kept, parameter) = (kept.clone(), name.clone());
        let found = (first.find(name), second.find(name));
        let (Some(one), Some(other)) = found else {
            let held = Held { first: found.0.is_some(), second: found.1.is_some() };
            differences.push(Difference::Missing { kept, parameter, held });
            continue;
        };
        let (one, other) = (first.parameter(one), second.parameter(other));
        let dtypes = Held {
            first: sides[0].checkpoint.dtype(&kept, one),
            second: sides[1].checkpoint.dtype(&kept, other),
        };
        if one.shape != other.shape {
            let shapes = Held { first: one.shape.clone(), second: other.shape.clone() };
            differences.push(Difference::Shape { kept, parameter, shapes });
        } else if dtypes.first != dtypes.second {
            differences.push(Difference::Type { kept, parameter, dtypes });
        } else {
            commons.push(Common { name: parameter, shape: one.shape.clone(), dtype: dtypes.first });
        }
    }
    (commons, differences)
}

/// Whether a name is a parameter's own, and no alias.
fn is_parameter(layout: &Layout, name: &str) -> bool {
    layout.find(name).is_some_and(|id| layout.parameter(id).name == name)
}

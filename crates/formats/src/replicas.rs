//! What several files hold must be the same in all of them.
//!
//! ```text
//!   box of w: candidates   rank 0 (file a)   rank 1 (file b)   rank 2 (file c)
//!   plan 0 reads                a
//!   plan 1 reads                                 b                                 compared with what plan 0 reads,
//!   plan 2 reads                                                   c               where it reads another file
//! ```
//!
//! The values are compared as they are stored, before any cast.

use std::path::PathBuf;

use reshard_layout::{Bytes, Layout, ParameterId, StorageId, volume};
use reshard_plan::{Copy, Options, Plan, Policy};
use reshard_transport::Assembly;

use crate::checkpoint::{Checkpoint, Part};
use crate::counted::Counted;
use crate::dense::{Window, coordinate_of, dense_layout, first_difference, windows};
use crate::error::FormatError;
use crate::kept::Kept;
use crate::write::Crew;

/// Two files that hold the same element with other bits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{kept} of {parameter} differs at {coordinate:?} between {} and {}, which both hold it",
    first.display(),
    second.display()
)]
pub struct ReplicaFault {
    /// Which tensor of the parameter.
    pub kept: Kept,
    /// The parameter, by the name that it was asked for.
    pub parameter: String,
    /// The first element that differs.
    pub coordinate: Vec<u64>,
    /// The file that would be read.
    pub first: PathBuf,
    /// The other one.
    pub second: PathBuf,
}

/// Compares all holders of what `wanted` names, and tells how many bytes were read for it.
///
/// # Errors
/// [`FormatError::Replicas`] for the first difference found; errors of planning and reading.
pub(crate) fn compare_replicas(
    source: &Checkpoint,
    kept: &Kept,
    part: &Part,
    wanted: &Layout,
    crew: Crew,
) -> Result<Bytes, FormatError> {
    let layout = &part.layout;
    let replicated = wanted.parameters().filter_map(|(_, parameter)| {
        // A name that the source lacks is found when the conversion is planned.
        let id = layout.find(&parameter.name)?;
        let dtype = layout.parameter(id).dtype;
        is_replicated(layout, id).then_some((parameter.name.as_str(), &parameter.shape, dtype))
    });
    let dense = dense_layout(&source.root, replicated)?;
    if dense.parameters().len() == 0 {
        return Ok(Bytes(0));
    }
    let chosen = reshard_plan::plan(layout, &dense, Policy::Lowest)?;
    let mut bytes_read = Bytes(0);
    for place in 1.. {
        let Some(other) = other_choice(layout, &dense, &chosen, place)? else { break };
        let pair = Pair { source, kept, part, chosen: &chosen, other: &other };
        bytes_read += pair.compare(crew)?;
    }
    Ok(bytes_read)
}

/// Whether more elements are held than there are.
fn is_replicated(layout: &Layout, id: ParameterId) -> bool {
    let held = layout.pieces_of(id).map(|piece| u128::from(piece.region.volume())).sum::<u128>();
    held > u128::from(volume(&layout.parameter(id).shape).unwrap_or(u64::MAX))
}

/// The copies that read the holder at `place` of those that hold a box, where that is not the chosen one. `None` if
/// no box has so many.
fn other_choice(
    layout: &Layout,
    dense: &Layout,
    chosen: &Plan,
    place: usize,
) -> Result<Option<Plan>, FormatError> {
    let mut is_deep = false;
    let choose = |request: &reshard_plan::Request<'_>| {
        let candidate = request.candidates.get(place);
        is_deep |= candidate.is_some();
        candidate.copied().unwrap_or(request.candidates[0])
    };
    let mut plan = Options::ask(choose).plan(layout, dense)?;
    if !is_deep {
        return Ok(None);
    }
    plan.copies.retain(|copy| chosen.copies.binary_search(copy).is_err());
    Ok(Some(plan))
}

/// Two plans of one target that read other files.
struct Pair<'a> {
    source: &'a Checkpoint,
    kept: &'a Kept,
    part: &'a Part,
    chosen: &'a Plan,
    other: &'a Plan,
}

impl Pair<'_> {
    /// Compares window by window and tells how many bytes were read.
    fn compare(&self, crew: Crew) -> Result<Bytes, FormatError> {
        let (chosen, other) = (Assembly::new(self.chosen)?, Assembly::new(self.other)?);
        let sources = self.source.reader(self.part);
        let sources = Counted::new(&sources);
        // Half of a worker's window for each side.
        let mut windows = windows(&self.other.target.storages, crew.window as u64 / 2);
        windows.retain(|window| other.reaches(window.storage, window.range.clone()));
        crew.each(windows.len(), |item, memory, scratch| {
            let Window { storage, range } = &windows[item];
            let length = (range.end - range.start) as usize;
            let (one, rest) = memory.split_at_mut(length);
            let two = &mut rest[..length];
            chosen.fill(*storage, range.clone(), &sources, one, scratch)?;
            two.copy_from_slice(one);
            other.fill(*storage, range.clone(), &sources, two, scratch)?;
            match first_difference(one, two) {
                None => Ok(()),
                Some(at) => Err(self.fault(*storage, range.start + at as u64)),
            }
        })?;
        Ok(sources.bytes())
    }

    fn fault(&self, storage: StorageId, byte: u64) -> FormatError {
        let parameter = &self.chosen.parameters[storage.index()];
        let coordinate = coordinate_of(&parameter.shape, parameter.dtype, byte);
        let fault = ReplicaFault {
            kept: self.kept.clone(),
            parameter: parameter.name.clone(),
            first: self.file_of(self.chosen, storage, &coordinate),
            second: self.file_of(self.other, storage, &coordinate),
            coordinate,
        };
        FormatError::Replicas { path: self.source.root.clone(), fault }
    }

    /// The file that a plan reads an element from.
    fn file_of(&self, plan: &Plan, storage: StorageId, coordinate: &[u64]) -> PathBuf {
        let holds = |copy: &&Copy| {
            let mut axes = coordinate.iter().zip(copy.origin.iter().zip(&copy.shape));
            copy.parameter.index() == storage.index()
                && axes.all(|(at, (origin, extent))| (*origin..origin + extent).contains(at))
        };
        let copy = plan.copies.iter().find(holds);
        let span = copy.map(|copy| plan.source.buffer(copy.source.buffer).storage.index());
        let file = span.and_then(|storage| self.part.spans.get(storage)).map(|span| span.file);
        file.map_or_else(|| self.source.root.clone(), |file| self.source.files.path(file).to_owned())
    }
}

//! A file to be written, checked: what lies where in it, in order, none over another.
//!
//! ```text
//!   | known | stretch: storage 4 of part 0 | known |  zeros  | stretch: storage 5 |
//! ```

use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

use reshard_layout::{Bytes, StorageId};

use super::fault::WriteFault;
use crate::checkpoint::Part;
use crate::error::FormatError;
use crate::output::{Known, TargetFile};
use crate::paths::stays_inside;

/// The bytes of a stretch, wherever they come from.
pub(crate) trait Content: Sync {
    /// Fills a window of a storage. What is not covered stays as it is.
    fn fill(
        &self,
        storage: StorageId,
        window: Range<u64>,
        into: &mut [u8],
        scratch: &mut [u8],
    ) -> Result<(), FormatError>;

    /// Whether every byte of the storage is written by `fill`.
    fn is_dense(&self, storage: StorageId) -> bool;
}

/// A storage in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Its bytes of the file.
    pub(crate) range: Range<u64>,
    /// Which content it is a storage of.
    pub(crate) content: usize,
    /// Which storage.
    pub(crate) storage: StorageId,
}

/// A file to be written.
///
/// Invariants: `known` and `stretches` are in order; no two of them overlap; they, the checksums and what these are
/// of lie in the file; no checksum lies in the data of one.
#[derive(Clone, Debug)]
pub(crate) struct Sheet<'a> {
    pub(crate) file: &'a TargetFile,
    pub(crate) known: Vec<&'a Known>,
    pub(crate) stretches: Vec<Stretch>,
}

/// Checks that paths lie inside a folder, and that none is named twice or would have to be a file and a folder.
pub(crate) fn check_paths<'a>(
    folder: &Path,
    paths: impl Iterator<Item = &'a Path> + Clone,
) -> Result<(), FormatError> {
    let fault = |fault| Err(FormatError::Write { path: folder.to_owned(), fault });
    let mut seen = HashSet::new();
    for path in paths.clone() {
        if !stays_inside(path) {
            return fault(WriteFault::PathClimbs { file: path.to_owned() });
        }
        if !seen.insert(path) {
            return fault(WriteFault::PathRepeated { file: path.to_owned() });
        }
    }
    for path in paths {
        if path.ancestors().skip(1).any(|above| seen.contains(above)) {
            return fault(WriteFault::PathRepeated { file: path.to_owned() });
        }
    }
    Ok(())
}

/// The files with what the parts' spans put into them.
pub(crate) fn sheets<'a>(
    root: &Path,
    files: &'a [TargetFile],
    parts: impl Iterator<Item = &'a Part>,
) -> Result<Vec<Sheet<'a>>, FormatError> {
    let mut stretches: Vec<Vec<Stretch>> = files.iter().map(|_| Vec::new()).collect();
    for (content, part) in parts.enumerate() {
        let storages = &part.layout.places().storages;
        for (index, storage) in storages.iter().enumerate() {
            let span = part.spans.get(index).filter(|span| span.file.index() < files.len());
            let found = span.map_or(Bytes(0), |span| span.length);
            let Some(span) = span.filter(|span| span.length == storage.length) else {
                let (storage, expected) = (storage.name.clone(), storage.length);
                let fault = WriteFault::SpanDiffers { storage, expected, found };
                return Err(FormatError::Write { path: root.to_owned(), fault });
            };
            let range = span.offset.0..span.offset.0.saturating_add(span.length.0);
            let storage = StorageId(u32::try_from(index).unwrap_or(u32::MAX));
            stretches[span.file.index()].push(Stretch { range, content, storage });
        }
    }
    let sheets = files.iter().zip(stretches).map(|(file, stretches)| Sheet::new(root, file, stretches));
    sheets.collect()
}

impl<'a> Sheet<'a> {
    /// Checks the invariants.
    pub(crate) fn new(
        root: &Path,
        file: &'a TargetFile,
        mut stretches: Vec<Stretch>,
    ) -> Result<Self, FormatError> {
        stretches.retain(|stretch| !stretch.range.is_empty());
        stretches.sort_by_key(|stretch| stretch.range.start);
        let mut known: Vec<&Known> = file.known.iter().filter(|known| !known.bytes.is_empty()).collect();
        known.sort_by_key(|known| known.offset);
        let sheet = Self { file, known, stretches };
        sheet.check(root)?;
        Ok(sheet)
    }

    fn check(&self, root: &Path) -> Result<(), FormatError> {
        let fault = |what, range: &Range<u64>| {
            let Range { start: begin, end } = *range;
            let (file, length) = (self.file.path.clone(), self.file.length);
            let fault = WriteFault::Misplaced { file, what, begin, end, length };
            Err(FormatError::Write { path: root.to_owned(), fault })
        };
        let stretches = self.stretches.iter().map(|stretch| (stretch.range.clone(), "storage"));
        let known = self.known.iter().map(|known| (range_of(known), "known part"));
        let mut ranges: Vec<(Range<u64>, &'static str)> = stretches.chain(known).collect();
        ranges.sort_by_key(|(range, _)| range.start);
        let mut at = 0;
        for (range, what) in &ranges {
            if range.start < at || range.end > self.file.length || range.end < range.start {
                return fault(what, range);
            }
            at = range.end;
        }
        let mut data: Vec<&Range<u64>> = self.file.checksums.iter().map(|checksum| &checksum.data).collect();
        data.sort_by_key(|range| (range.start, range.end));
        let mut at = 0;
        for range in &data {
            if range.start < at || range.end > self.file.length || range.end < range.start {
                return fault("data of a checksum", range);
            }
            at = range.end;
        }
        for &begin in self.file.checksums.iter().flat_map(|checksum| &checksum.at) {
            let place = begin..begin.saturating_add(4);
            let after = data.partition_point(|range| range.end <= place.start);
            let is_covered =
                data.get(after).is_some_and(|range| range.start < place.end && !range.is_empty());
            if place.end > self.file.length || is_covered {
                return fault("checksum", &place);
            }
        }
        Ok(())
    }
}

/// The bytes of the file that are known.
pub(crate) fn range_of(known: &Known) -> Range<u64> {
    known.offset..known.offset.saturating_add(known.bytes.len() as u64)
}

//! Byte by byte: both sides put together window by window, in logical order.
//!
//! ```text
//!   parameter w, dense   |  window 1  |  window 2  |       first  ▒▒▒▒▒▒▒▒▒▒▒▒
//!                                                          second ▒▒▒▒▒▒█▒▒▒▒▒   element 6: counted, the first kept
//! ```

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use reshard_layout::{Bytes, coordinate};
use reshard_transport::Assembly;

use super::{Common, Difference, Held, Side};
use crate::counted::Counted;
use crate::dense::{dense_layout, windows};
use crate::error::FormatError;
use crate::kept::Kept;
use crate::write::{Crew, Progress};

/// What differs in one parameter.
#[derive(Clone, Debug)]
struct Found {
    elements: u64,
    first_element: u64,
    bytes: Held<Vec<u8>>,
}

/// The parameters whose elements differ, and the bytes that were read.
pub(super) fn differences(
    kept: &Kept,
    [first, second]: [Side<'_>; 2],
    commons: &[Common],
    crew: Crew,
    progress: &dyn Progress,
) -> Result<(Vec<Difference>, Bytes), FormatError> {
    let parameters = commons.iter().map(|common| (common.name.as_str(), &common.shape, common.dtype));
    let dense = dense_layout(&first.checkpoint.root, parameters)?;
    let plans = [first.plan(&dense)?, second.plan(&dense)?];
    let assemblies = [Assembly::new(&plans[0])?, Assembly::new(&plans[1])?];
    let readers = [first.checkpoint.reader(first.part), second.checkpoint.reader(second.part)];
    let sources = [Counted::new(&readers[0]), Counted::new(&readers[1])];
    // Half of a worker's window for each side.
    let windows = windows(&dense.places().storages, crew.window as u64 / 2);
    let found: Mutex<BTreeMap<usize, Found>> = Mutex::new(BTreeMap::new());
    crew.each(windows.len(), |item, memory, scratch| {
        let window = &windows[item];
        let length = window.range.end - window.range.start;
        let (one, rest) = memory.split_at_mut(length as usize);
        let two = &mut rest[..length as usize];
        assemblies[0].fill(window.storage, window.range.clone(), &sources[0], one, scratch)?;
        assemblies[1].fill(window.storage, window.range.clone(), &sources[1], two, scratch)?;
        let size = commons[window.storage.index()].dtype.size();
        if let Some(new) = differing(one, two, window.range.start / size, size as usize) {
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.entry(window.storage.index()).and_modify(|known| known.join(&new)).or_insert(new);
        }
        progress.advance(Bytes(2 * length));
        Ok(())
    })?;
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let difference = |(index, found): (usize, Found)| Difference::Bits {
        kept: kept.clone(),
        parameter: commons[index].name.clone(),
        elements: found.elements,
        coordinate: coordinate(found.first_element, &commons[index].shape).to_vec(),
        bytes: found.bytes,
    };
    let bytes_read = sources[0].bytes() + sources[1].bytes();
    Ok((found.into_iter().map(difference).collect(), bytes_read))
}

impl Found {
    /// With what was found in another window of the same parameter.
    fn join(&mut self, other: &Self) {
        let elements = self.elements + other.elements;
        if other.first_element < self.first_element {
            *self = other.clone();
        }
        self.elements = elements;
    }
}

/// What differs in a window that begins at an element; elements of `size` bytes.
fn differing(one: &[u8], two: &[u8], begin: u64, size: usize) -> Option<Found> {
    // Compared as a whole first: far faster than element by element.
    if one == two {
        return None;
    }
    let pairs = one.chunks(size).zip(two.chunks(size)).enumerate();
    let mut differs = pairs.filter(|(_, (one, two))| one != two);
    let (at, (one, two)) = differs.next()?;
    Some(Found {
        elements: 1 + differs.count() as u64,
        first_element: begin + at as u64,
        bytes: Held { first: one.to_vec(), second: two.to_vec() },
    })
}

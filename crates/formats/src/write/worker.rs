//! Workers that write windows of files, one after another, each with memory of its own.
//!
//! ```text
//!   next item ──► window of a file: zeros where nothing lies, known bytes, stretches ──► one write at its place
//!   the first error stops all of them before their next window
//! ```

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use reshard_layout::{Bytes, StorageId};
use reshard_transport::Assembly;

use super::checksum::{Partial, combined, partials};
use super::fault::WriteFault;
use super::sheet::{Content, Sheet, range_of};
use super::{Filling, Progress};
use crate::counted::Counted;
use crate::error::FormatError;

/// A window and the working memory beside it: both fit in a second-level cache, and what is read is still there when it
/// is written.
const WINDOW_BYTES: usize = 256 << 10;
const WINDOW_BYTES_MIN: usize = 64 << 10;

/// The widest element: windows are cut at multiples of it in a stretch.
const ELEMENT_BYTES_MAX: u64 = 8;

/// How many workers, and how much memory each has for its window and beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crew {
    pub(crate) threads: usize,
    pub(crate) window: usize,
}

impl Crew {
    /// As many of `threads` workers as `memory` suffices for.
    ///
    /// # Errors
    /// [`WriteFault::MemoryTooSmall`] if it suffices for none.
    pub(crate) fn new(path: &Path, memory: Bytes, threads: NonZeroUsize) -> Result<Self, FormatError> {
        let least = 2 * WINDOW_BYTES_MIN;
        let memory_bytes = usize::try_from(memory.0).unwrap_or(usize::MAX);
        let threads = threads.get().min(memory_bytes / least);
        if threads == 0 {
            let fault = WriteFault::MemoryTooSmall { needed: Bytes(least as u64), found: memory };
            return Err(FormatError::Write { path: path.to_owned(), fault });
        }
        let share = (memory_bytes / threads / 2).min(WINDOW_BYTES);
        Ok(Self { threads, window: share / WINDOW_BYTES_MIN * WINDOW_BYTES_MIN })
    }

    /// Runs `work` on each of `count` items, in order, on all workers. Each has two pieces of memory as long as a
    /// window.
    ///
    /// # Errors
    /// The first error; the items after it are not begun.
    pub(crate) fn each(
        &self,
        count: usize,
        work: impl Fn(usize, &mut [u8], &mut [u8]) -> Result<(), FormatError> + Sync,
    ) -> Result<(), FormatError> {
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let first: Mutex<Option<FormatError>> = Mutex::new(None);
        let run = || {
            let (mut window, mut scratch) = (vec![0; self.window], vec![0; self.window]);
            while !failed.load(Ordering::Relaxed) {
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= count {
                    break;
                }
                if let Err(error) = work(item, &mut window, &mut scratch) {
                    failed.store(true, Ordering::Relaxed);
                    lock(&first).get_or_insert(error);
                }
            }
        };
        let threads = self.threads.min(count);
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Where the system gives no more threads, those that there are do all.
                if std::thread::Builder::new().spawn_scoped(scope, run).is_err() {
                    break;
                }
            }
            run();
        });
        first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// What a plan fills, with the bytes read counted.
pub(crate) struct PartContent<'a> {
    assembly: &'a Assembly<'a>,
    sources: Counted<'a>,
    dense: Vec<bool>,
}

impl<'a> PartContent<'a> {
    pub(crate) fn new(filling: &Filling<'a>) -> Self {
        let plan = filling.assembly.plan();
        let mut covered = vec![0u64; plan.target.storages.len()];
        for copy in &plan.copies {
            let buffer = plan.target.buffer(copy.target.buffer);
            covered[buffer.storage.index()] += copy.elements().bytes(buffer.dtype).0;
        }
        let storages = plan.target.storages.iter().zip(covered);
        let dense = storages.map(|(storage, covered)| storage.length.0 == covered).collect();
        let sources = Counted::new(filling.sources);
        Self { assembly: filling.assembly, sources, dense }
    }

    pub(crate) fn bytes_read(&self) -> Bytes {
        self.sources.bytes()
    }
}

impl Content for PartContent<'_> {
    fn fill(
        &self,
        storage: StorageId,
        window: Range<u64>,
        into: &mut [u8],
        scratch: &mut [u8],
    ) -> Result<(), FormatError> {
        Ok(self.assembly.fill(storage, window, &self.sources, into, scratch)?)
    }

    fn is_dense(&self, storage: StorageId) -> bool {
        self.dense[storage.index()]
    }
}

/// One window of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    sheet: usize,
    window: Range<u64>,
}

/// The windows of all files, in order. A file of no bytes has one of none.
fn items(sheets: &[Sheet<'_>], window_bytes: u64) -> Vec<Item> {
    let mut items = Vec::new();
    for (index, sheet) in sheets.iter().enumerate() {
        let mut at = 0;
        loop {
            let end = edge(sheet, (at + window_bytes).min(sheet.file.length));
            items.push(Item { sheet: index, window: at..end });
            at = end;
            if at == sheet.file.length {
                break;
            }
        }
    }
    items
}

/// An end of a window, moved down to where it cuts no element of a stretch.
fn edge(sheet: &Sheet<'_>, end: u64) -> u64 {
    let after = sheet.stretches.partition_point(|stretch| stretch.range.end <= end);
    match sheet.stretches.get(after) {
        Some(stretch) if stretch.range.start < end => end - (end - stretch.range.start) % ELEMENT_BYTES_MAX,
        _ => end,
    }
}

/// A file while it is written: open from its first window to its last.
struct Progressing {
    handle: Mutex<Option<Arc<File>>>,
    left: AtomicUsize,
    partials: Mutex<Vec<Partial>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes files into a folder and tells how many bytes they have.
///
/// # Errors
/// The first error; then some files are incomplete.
pub(crate) fn write(
    folder: &Path,
    sheets: &[Sheet<'_>],
    contents: &[&dyn Content],
    crew: Crew,
    sync: bool,
    progress: &dyn Progress,
) -> Result<Bytes, FormatError> {
    for sheet in sheets {
        let path = folder.join(&sheet.file.path);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).map_err(|cause| FormatError::io("make", parent, cause))?;
    }
    let items = items(sheets, crew.window as u64);
    let mut windows = vec![0; sheets.len()];
    items.iter().for_each(|item| windows[item.sheet] += 1);
    let files = windows.into_iter().map(|left| Progressing {
        handle: Mutex::new(None),
        left: AtomicUsize::new(left),
        partials: Mutex::new(Vec::new()),
    });
    let work = Work { folder, sheets, contents, files: files.collect(), sync };
    crew.each(items.len(), |item, window, scratch| {
        let Item { sheet, window: range } = &items[item];
        let into = &mut window[..(range.end - range.start) as usize];
        work.window(*sheet, range, into, scratch)?;
        progress.advance(Bytes(range.end - range.start));
        Ok(())
    })?;
    Ok(Bytes(sheets.iter().map(|sheet| sheet.file.length).sum()))
}

struct Work<'a> {
    folder: &'a Path,
    sheets: &'a [Sheet<'a>],
    contents: &'a [&'a dyn Content],
    files: Vec<Progressing>,
    sync: bool,
}

impl Work<'_> {
    fn window(
        &self,
        index: usize,
        window: &Range<u64>,
        into: &mut [u8],
        scratch: &mut [u8],
    ) -> Result<(), FormatError> {
        let (sheet, file) = (&self.sheets[index], &self.files[index]);
        let path = self.folder.join(&sheet.file.path);
        self.compose(sheet, window, into, scratch)?;
        let found = partials(&sheet.file.checksums, window, into);
        lock(&file.partials).extend(found);
        let handle = self.open(sheet, file, &path)?;
        handle.write_all_at(into, window.start).map_err(|cause| FormatError::io("write", &path, cause))?;
        if file.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.finish(sheet, file, &handle).map_err(|cause| FormatError::io("write", &path, cause))?;
        }
        Ok(())
    }

    /// The bytes of a window.
    fn compose(
        &self,
        sheet: &Sheet<'_>,
        window: &Range<u64>,
        into: &mut [u8],
        scratch: &mut [u8],
    ) -> Result<(), FormatError> {
        let mut zeroed = window.start;
        let mut zero = |into: &mut [u8], range: &Range<u64>, is_dense: bool| {
            let end = if is_dense { range.start } else { range.end };
            into[(zeroed - window.start) as usize..(end.max(zeroed) - window.start) as usize].fill(0);
            zeroed = range.end.max(zeroed);
        };
        let mut known = parts(&sheet.known, window, |known| range_of(known)).peekable();
        let mut stretches = parts(&sheet.stretches, window, |stretch| stretch.range.clone()).peekable();
        loop {
            let is_known = match (known.peek(), stretches.peek()) {
                (None, None) => break,
                (Some((_, known)), Some((_, stretch))) => known.start < stretch.start,
                (known, _) => known.is_some(),
            };
            if is_known && let Some((known, range)) = known.next() {
                zero(into, &range, true);
                let from = (range.start - known.offset) as usize;
                let bytes = &known.bytes[from..from + (range.end - range.start) as usize];
                part_of(into, window, &range).copy_from_slice(bytes);
            } else if let Some((stretch, range)) = stretches.next() {
                let content = self.contents[stretch.content];
                zero(into, &range, content.is_dense(stretch.storage));
                let inside = range.start - stretch.range.start..range.end - stretch.range.start;
                content.fill(stretch.storage, inside, part_of(into, window, &range), scratch)?;
            }
        }
        zero(into, &(window.end..window.end), true);
        Ok(())
    }

    fn open(&self, sheet: &Sheet<'_>, file: &Progressing, path: &Path) -> Result<Arc<File>, FormatError> {
        let mut handle = lock(&file.handle);
        if let Some(open) = &*handle {
            return Ok(Arc::clone(open));
        }
        let made = File::options().write(true).create_new(true).open(path);
        let made = made.map_err(|cause| FormatError::io("make", path, cause))?;
        made.set_len(sheet.file.length).map_err(|cause| FormatError::io("write", path, cause))?;
        Ok(Arc::clone(handle.insert(Arc::new(made))))
    }

    /// Puts the checksums in, brings the file to disk and closes it.
    fn finish(&self, sheet: &Sheet<'_>, file: &Progressing, handle: &File) -> io::Result<()> {
        let partials = std::mem::take(&mut *lock(&file.partials));
        for (at, bytes) in combined(&sheet.file.checksums, partials) {
            handle.write_all_at(&bytes, at)?;
        }
        if self.sync {
            handle.sync_all()?;
        }
        *lock(&file.handle) = None;
        Ok(())
    }
}

/// Those of a file's parts, which are in order, that reach into a window, and the bytes of the file where they do.
fn parts<'a, T>(
    all: &'a [T],
    window: &Range<u64>,
    range: impl Fn(&T) -> Range<u64> + Copy,
) -> impl Iterator<Item = (&'a T, Range<u64>)> {
    let from = all.partition_point(|part| range(part).end <= window.start);
    let Range { start, end } = *window;
    let inside = all[from..].iter().take_while(move |part| range(part).start < end);
    inside.map(move |part| {
        let found = range(part);
        (part, found.start.max(start)..found.end.min(end))
    })
}

fn part_of<'a>(into: &'a mut [u8], window: &Range<u64>, range: &Range<u64>) -> &'a mut [u8] {
    &mut into[(range.start - window.start) as usize..(range.end - window.start) as usize]
}

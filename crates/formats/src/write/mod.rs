//! Writes an output: a folder that is there whole or not at all, by workers of bounded memory.
//!
//! ```text
//!   files    |w0|w1|w2|w3|   |w4|w5|          windows of a file, in order
//!   workers    A  B  A  B      A  B           each: known bytes, stretches filled from their source, one write
//!   file done (its last window): checksums put in, to disk, closed
//! ```

mod checksum;
mod fault;
mod folder;
mod sheet;
mod system;
mod worker;

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Instant;

use reshard_layout::Bytes;
use reshard_transport::{Assembly, ReadAt};

use crate::checkpoint::Part;
use crate::error::FormatError;
use crate::files::FileId;
use crate::output::TargetFile;

pub use fault::WriteFault;
pub use folder::OutputFolder;
pub(crate) use sheet::{Content, Sheet, Stretch, check_paths, sheets};
pub(crate) use system::{check_apart, check_space};
pub(crate) use worker::{Crew, PartContent, write};

/// What writing may take, and how careful it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Memory of all workers together.
    pub memory: Bytes,
    /// How many workers there are at most; fewer where memory does not suffice.
    pub threads: NonZeroUsize,
    /// Whether files and folders reach the disk before the output is put in its place.
    pub sync: bool,
    /// Whether an output that is there is replaced.
    pub force: bool,
    /// What is done about elements that several files hold.
    pub replicas: Replicas,
}

impl Default for WriteOptions {
    /// 256 MiB, a worker a processor, to disk, nothing replaced, replicas compared.
    fn default() -> Self {
        Self {
            memory: Bytes(256 << 20),
            threads: std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            sync: true,
            force: false,
            replicas: Replicas::Compare,
        }
    }
}

/// What is done about elements that several files hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replicas {
    /// All are read before anything is written, and must have the same bits.
    #[default]
    Compare,
    /// The first holder's are taken.
    First,
}

/// Told how far long work is. Called from several threads.
pub trait Progress: Sync {
    /// So many bytes more are done.
    fn advance(&self, bytes: Bytes);
}

/// Nobody is told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn advance(&self, _bytes: Bytes) {}
}

/// What was read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Report {
    /// Bytes read from sources, with what was read in between and to compare replicas.
    pub bytes_read: Bytes,
    /// Bytes of the files written.
    pub bytes_written: Bytes,
    /// How many files.
    pub files: usize,
    /// How long it took.
    pub seconds: f64,
}

/// What fills the storages of a part: the copies of a plan whose target is the part's layout.
#[derive(Clone, Copy)]
pub struct Filling<'a> {
    /// The layout and where its storages lie in the files.
    pub part: &'a Part,
    /// The copies into that layout.
    pub assembly: &'a Assembly<'a>,
    /// What they are read from.
    pub sources: &'a dyn ReadAt,
}

/// Writes files of an output into a folder: those in `chosen`, each of which must not be there yet. This is how one
/// process of several writes its files of a checkpoint, from storages that it has; a whole output is written by
/// [`Conversion`](crate::Conversion). `options.force` and `options.replicas` say nothing here.
///
/// ```text
///   OutputFolder::create (one process) ─► write_files (each, its own) ─► all done ─► commit (one process)
/// ```
///
/// # Errors
/// [`WriteFault`] for files or spans that contradict each other, or too little memory; [`FormatError::Io`], after
/// which some of the files are incomplete.
pub fn write_files(
    folder: &Path,
    files: &[TargetFile],
    chosen: &[FileId],
    fillings: &[Filling<'_>],
    options: &WriteOptions,
    progress: &dyn Progress,
) -> Result<Report, FormatError> {
    let begin = Instant::now();
    check_paths(folder, files.iter().map(|file| file.path.as_path()))?;
    let contents: Vec<PartContent<'_>> = fillings.iter().map(PartContent::new).collect();
    let parts = fillings.iter().map(|filling| filling.part);
    let mut sheets = sheets(folder, files, parts)?;
    let chosen: HashSet<u32> = chosen.iter().map(|file| file.0).collect();
    let mut file = 0..;
    sheets.retain(|_| file.next().is_some_and(|file| chosen.contains(&file)));
    let crew = Crew::new(folder, options.memory, options.threads)?;
    let contents_dyn: Vec<&dyn Content> = contents.iter().map(|content| content as &dyn Content).collect();
    let bytes_written = write(folder, &sheets, &contents_dyn, crew, options.sync, progress)?;
    let bytes_read = contents.iter().map(PartContent::bytes_read).sum();
    let seconds = begin.elapsed().as_secs_f64();
    Ok(Report { bytes_read, bytes_written, files: sheets.len(), seconds })
}

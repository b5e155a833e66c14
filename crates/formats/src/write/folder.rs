//! An output folder that is there whole or not at all.
//!
//! ```text
//!   parent/OUT                     the old one, or nothing
//!   parent/.OUT.reshard-partial    what is being written          rename, or exchange of the two ──► OUT
//!   parent/.OUT.reshard-lock       held (flock) by who writes it; a dead process holds nothing
//! ```
//!
//! Whoever holds the lock owns the partial folder, and removes one that a killed process has left. After an exchange
//! the partial folder is the old output, which goes the same way.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags};

use super::fault::WriteFault;
use super::system;
use crate::error::FormatError;
use crate::paths::folder_of;

/// A folder that is written beside its place, and put there when it is complete. Dropped before that, it leaves
/// nothing.
#[derive(Debug)]
pub struct OutputFolder {
    target: PathBuf,
    parent: PathBuf,
    partial: PathBuf,
    /// Dropped, and with it unlocked, after the partial folder is removed.
    _lock: Lock,
    replaces: bool,
}

impl OutputFolder {
    /// Makes the folder that shall become `target`. Its parent must be there. What a killed process has left of an
    /// earlier attempt is removed.
    ///
    /// # Errors
    /// [`WriteFault::Exists`] without `force`; [`WriteFault::NotAFolder`]; [`WriteFault::Busy`] if another process
    /// writes it; with `force`, [`WriteFault::CannotExchange`] and [`WriteFault::MountPoint`]; [`FormatError::Io`].
    pub fn create(target: &Path, force: bool) -> Result<Self, FormatError> {
        let (parent, name) = place_of(target)?;
        let target = parent.join(&name);
        let lock = Lock::take(&parent.join(hidden(&name, "lock")), &target)?;
        let replaces = is_replaced(&target, &parent, force)?;
        let partial = parent.join(hidden(&name, "partial"));
        remove_all(&partial)?;
        let folder = Self { target, parent, partial, _lock: lock, replaces };
        folder.make(&folder.partial)?;
        if replaces {
            folder.probe_exchange()?;
        }
        Ok(folder)
    }

    /// Says whether [`create`](Self::create) would find what it needs, and makes nothing. Returns where the output
    /// would lie.
    ///
    /// # Errors
    /// [`WriteFault::Exists`] without `force`; [`WriteFault::NotAFolder`], [`WriteFault::MountPoint`];
    /// [`FormatError::Io`].
    pub(crate) fn check(target: &Path, force: bool) -> Result<PathBuf, FormatError> {
        let (parent, name) = place_of(target)?;
        is_replaced(&parent.join(name), &parent, force)?;
        Ok(parent)
    }

    /// Where to write. Any process may write here until [`commit`](Self::commit).
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// What it will become.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Puts the folder in its place in one step, and removes what was there. With `sync`, every file and folder in
    /// it reaches the disk first, and the step before this returns.
    ///
    /// # Errors
    /// [`FormatError::Io`]; [`WriteFault::Exists`] if something has come there meanwhile. Whatever the error, what is
    /// in its place is the old output or the new one, whole.
    pub fn commit(self, sync: bool) -> Result<(), FormatError> {
        if sync {
            sync_all(&self.partial)?;
        }
        let flags = if self.replaces { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        let done = rustix::fs::renameat_with(CWD, &self.partial, CWD, &self.target, flags);
        match done {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Err(fault(&self.target, WriteFault::Exists)),
            // A file system without flags: nothing was there when this began, and the lock is ours.
            Err(rustix::io::Errno::INVAL) if !self.replaces => {
                fs::rename(&self.partial, &self.target)
                    .map_err(|cause| FormatError::io("name", &self.target, cause))?;
            }
            Err(cause) => return Err(FormatError::io("replace", &self.target, cause.into())),
        }
        if sync {
            sync_path(&self.parent)?;
        }
        // Dropped: the partial folder is now the old output, or not there.
        Ok(())
    }

    fn make(&self, path: &Path) -> Result<(), FormatError> {
        fs::create_dir(path).map_err(|cause| FormatError::io("make", path, cause))
    }

    /// Tries an exchange on two empty folders, before anything is written.
    fn probe_exchange(&self) -> Result<(), FormatError> {
        let probes = [self.partial.join("exchange-1"), self.partial.join("exchange-2")];
        for probe in &probes {
            self.make(probe)?;
        }
        let done = rustix::fs::renameat_with(CWD, &probes[0], CWD, &probes[1], RenameFlags::EXCHANGE);
        for probe in &probes {
            fs::remove_dir(probe).map_err(|cause| FormatError::io("remove", probe, cause))?;
        }
        done.map_err(|_| {
            let file_system = system::file_system(&self.parent);
            fault(&self.target, WriteFault::CannotExchange { file_system })
        })
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next run.
        let _ = remove_all(&self.partial);
    }
}

fn fault(target: &Path, fault: WriteFault) -> FormatError {
    FormatError::Write { path: target.to_owned(), fault }
}

/// The parent of a path, which must be there, and its name in it.
fn place_of(target: &Path) -> Result<(PathBuf, OsString), FormatError> {
    let name = target.file_name().ok_or_else(|| fault(target, WriteFault::NoName))?;
    let parent = folder_of(target);
    let parent = fs::canonicalize(parent).map_err(|cause| FormatError::io("open", parent, cause))?;
    Ok((parent, name.to_owned()))
}

fn hidden(name: &OsStr, what: &str) -> OsString {
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(".reshard-");
    hidden.push(what);
    hidden
}

/// Whether something is there that may be replaced.
fn is_replaced(target: &Path, parent: &Path, force: bool) -> Result<bool, FormatError> {
    let found = match fs::symlink_metadata(target) {
        Ok(found) => found,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(cause) => return Err(FormatError::io("look at", target, cause)),
    };
    if !found.is_dir() {
        return Err(fault(target, WriteFault::NotAFolder));
    }
    if !force {
        return Err(fault(target, WriteFault::Exists));
    }
    let around = fs::metadata(parent).map_err(|cause| FormatError::io("look at", parent, cause))?;
    if around.dev() != found.dev() {
        return Err(fault(target, WriteFault::MountPoint));
    }
    Ok(true)
}

fn remove_all(path: &Path) -> Result<(), FormatError> {
    match fs::remove_dir_all(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => Err(FormatError::io("remove", path, cause)),
        _ => Ok(()),
    }
}

/// Every file and folder from the inside out.
fn sync_all(folder: &Path) -> Result<(), FormatError> {
    let list = |cause| FormatError::io("list", folder, cause);
    for entry in fs::read_dir(folder).map_err(list)? {
        let entry = entry.map_err(list)?;
        if entry.file_type().map_err(list)?.is_dir() {
            sync_all(&entry.path())?;
        } else {
            sync_path(&entry.path())?;
        }
    }
    sync_path(folder)
}

pub(super) fn sync_path(path: &Path) -> Result<(), FormatError> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(|cause| FormatError::io("write to disk", path, cause))
}

/// The lock file of one target, held.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

/// Attempts at a lock file that its last holder removes just then.
const LOCK_ATTEMPTS_MAX: usize = 100;

impl Lock {
    fn take(path: &Path, target: &Path) -> Result<Self, FormatError> {
        let io = |cause: io::Error| FormatError::io("lock", path, cause);
        for _ in 0..LOCK_ATTEMPTS_MAX {
            let file = File::options().create(true).truncate(false).write(true).open(path).map_err(io)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Err(fault(target, WriteFault::Busy)),
                Err(cause) => return Err(io(cause.into())),
            }
            // Its last holder may have removed the name after this file was opened: then it locks nothing.
            let held = file.metadata().map_err(io)?;
            match fs::metadata(path) {
                Ok(named) if (named.dev(), named.ino()) == (held.dev(), held.ino()) => {
                    return Ok(Self { path: path.to_owned(), _file: file });
                }
                Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(io(cause)),
                _ => {}
            }
        }
        Err(fault(target, WriteFault::Busy))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The name goes while the lock is held, so that nobody's lock is taken away; closing the file unlocks it.
        let _ = fs::remove_file(&self.path);
    }
}

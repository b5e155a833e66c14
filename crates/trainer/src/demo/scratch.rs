//! The folder that checkpoints pass through: the launcher makes it and removes it; where it was killed, the next one.
//!
//! ```text
//!   <parent>/reshard-demo-4711-5ac0.../   lock        held by the launcher and by every rank, while they live
//!                                         zero  universal
//!   the next launcher:  takes a lock that nobody holds ──► removes the folder
//! ```
//!
//! The system lets go of a lock when its holder is gone, whatever ended it.

use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::TrainerError;

/// How the names of these folders begin.
const PREFIX: &str = "reshard-demo-";
/// The file in each that its users hold.
const LOCK: &str = "lock";
/// How often a folder is made, if others take it away before it is locked.
const ATTEMPTS: usize = 8;

/// A folder of one demo, in use.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// Held until this is dropped.
    _lock: File,
    is_owner: bool,
}

impl Scratch {
    /// Makes a folder below `parent`, which only this user may enter, and removes those that killed demos of this
    /// user have left there. Dropped, it removes its own.
    ///
    /// # Errors
    /// [`TrainerError::Io`] if no folder can be made there, or locked.
    pub fn create(parent: &Path) -> Result<Self, TrainerError> {
        let scratch = Self::make(parent)
            .map_err(|cause| TrainerError::Io { operation: operation("make a folder in", parent), cause })?;
        scratch.remove_abandoned(parent);
        Ok(scratch)
    }

    /// Holds a folder that another process has made.
    ///
    /// # Errors
    /// [`TrainerError::Io`] if it is not there.
    pub fn join(path: &Path) -> Result<Self, TrainerError> {
        let lock = File::open(path.join(LOCK)).and_then(|lock| lock.lock_shared().map(|()| lock));
        let lock = lock.map_err(|cause| TrainerError::Io { operation: operation("use", path), cause })?;
        Ok(Self { path: path.to_owned(), _lock: lock, is_owner: false })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn make(parent: &Path) -> io::Result<Self> {
        let parent = fs::canonicalize(parent)?;
        let mut outcome = Err(io::Error::from(io::ErrorKind::NotFound));
        for _ in 0..ATTEMPTS {
            let name = format!("{PREFIX}{}-{:016x}", std::process::id(), RandomState::new().hash_one(0));
            let path = parent.join(name);
            DirBuilder::new().mode(0o700).create(&path)?;
            outcome = hold(&path.join(LOCK)).map(|lock| Self { path, _lock: lock, is_owner: true });
            match &outcome {
                // Someone took it for abandoned before it was locked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => break,
            }
        }
        outcome
    }

    /// Folders of this user that nobody holds. What cannot be looked at or removed is left alone.
    fn remove_abandoned(&self, parent: &Path) {
        let Ok(own) = fs::metadata(&self.path) else { return };
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
            let is_own = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == own.uid());
            if is_named && is_own && entry.file_name() != self.path.file_name().unwrap_or_default() {
                remove_if_abandoned(&entry.path());
            }
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.is_owner {
            // What cannot be removed now is abandoned: the next launcher tries again.
            let _removed = remove(&self.path);
        }
    }
}

/// Removes a folder, its lock last: a removal that is cut short leaves an abandoned folder.
fn remove(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else if entry.file_name() != LOCK {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_file(folder.join(LOCK))?;
    fs::remove_dir(folder)
}

/// Makes a lock and holds it, together with others that do. Not found, if it is gone before it is held.
fn hold(lock: &Path) -> io::Result<File> {
    let file = File::create_new(lock)?;
    file.lock_shared()?;
    let (held, there) = (file.metadata()?, fs::metadata(lock)?);
    if (held.dev(), held.ino()) == (there.dev(), there.ino()) {
        return Ok(file);
    }
    Err(io::ErrorKind::NotFound.into())
}

fn remove_if_abandoned(folder: &Path) {
    let lock = folder.join(LOCK);
    // One without a lock is about to get it, or its maker was killed before that: then it is empty.
    let Ok(found) = fs::symlink_metadata(&lock) else {
        let _removed = fs::remove_dir(folder);
        return;
    };
    if !found.is_file() {
        return;
    }
    if let Ok(file) = File::open(&lock)
        && file.try_lock().is_ok()
    {
        let _removed = remove(folder);
    }
}

fn operation(what: &str, path: &Path) -> String {
    format!("{what} {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(parent: &Path) -> Vec<String> {
        let entries = fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn it_is_gone_when_its_maker_is_done_and_not_when_a_rank_is() {
        let parent = tempfile::tempdir().unwrap();
        let scratch = Scratch::create(parent.path()).unwrap();
        fs::create_dir_all(scratch.path().join("zero/global_step1")).unwrap();
        drop(Scratch::join(scratch.path()).unwrap());
        assert!(scratch.path().join("zero/global_step1").exists());
        assert_eq!(fs::metadata(scratch.path()).unwrap().mode() & 0o777, 0o700);
        drop(scratch);
        assert!(names(parent.path()).is_empty());
    }

    #[test]
    fn what_killed_demos_left_is_removed_and_what_is_in_use_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let running = Scratch::create(parent.path()).unwrap();
        let rank = Scratch::join(running.path()).unwrap();
        let kept = running.path().file_name().unwrap().to_str().unwrap().to_owned();
        // Killed launchers let go of their locks and remove nothing; those of the second still has a rank.
        for name in
            ["reshard-demo-1-killed", "reshard-demo-2-unlocked", "reshard-demo-3-used", "reshard-other"]
        {
            fs::create_dir_all(parent.path().join(name).join("zero")).unwrap();
        }
        for name in ["reshard-demo-1-killed", "reshard-demo-3-used"] {
            File::create(parent.path().join(name).join(LOCK)).unwrap();
        }
        fs::create_dir(parent.path().join("reshard-demo-4-empty")).unwrap();
        fs::write(parent.path().join("reshard-demo-5-file"), "").unwrap();
        let used = Scratch::join(&parent.path().join("reshard-demo-3-used")).unwrap();
        let mut left = vec![kept.as_str(), "reshard-demo-2-unlocked", "reshard-demo-3-used"];
        left.extend(["reshard-demo-5-file", "reshard-other"]);
        left.sort_unstable();
        drop(Scratch::create(parent.path()).unwrap());
        assert_eq!(names(parent.path()), left);
        drop((running, rank, used));
        drop(Scratch::create(parent.path()).unwrap());
        assert_eq!(names(parent.path()), ["reshard-demo-2-unlocked", "reshard-demo-5-file", "reshard-other"]);
    }
}

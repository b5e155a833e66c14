//! What the system says about where an output goes.

use std::path::{Path, PathBuf};

use reshard_layout::Bytes;

use super::fault::WriteFault;
use crate::error::FormatError;
use crate::paths::folder_of;

/// Magic numbers of file systems, as `statfs(2)` lists them.
const FILE_SYSTEMS: [(i64, &str); 13] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x0102_1994, "tmpfs"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "fuse"),
    (0x794c_7630, "overlay"),
    (0x2fc1_2fc1, "zfs"),
    (0x0bd0_0bd0, "lustre"),
    (0x4d44, "vfat"),
];

/// The kind of file system that a path lies on: its name, or the number that it goes by.
pub(super) fn file_system(path: &Path) -> String {
    let Ok(found) = rustix::fs::statfs(path) else { return "unknown".to_owned() };
    let known = FILE_SYSTEMS.iter().find(|(known, _)| *known == found.f_type);
    known.map_or_else(|| format!("{:#x}", found.f_type), |(_, name)| (*name).to_owned())
}

/// Checks that `needed` bytes are free where `folder` lies.
///
/// # Errors
/// [`WriteFault::SpaceShort`]; [`FormatError::Io`].
pub(crate) fn check_space(folder: &Path, needed: Bytes) -> Result<(), FormatError> {
    let found = rustix::fs::statvfs(folder);
    let found = found.map_err(|cause| FormatError::io("look at", folder, cause.into()))?;
    let available = Bytes(found.f_bavail.saturating_mul(found.f_frsize));
    if needed <= available {
        return Ok(());
    }
    Err(FormatError::Write { path: folder.to_owned(), fault: WriteFault::SpaceShort { needed, available } })
}

/// Checks that neither of an output and an input lies in the other.
///
/// # Errors
/// [`WriteFault::InsideInput`], [`WriteFault::HoldsInput`]; [`FormatError::Io`] if the input is not there.
pub(crate) fn check_apart(output: &Path, input: &Path) -> Result<(), FormatError> {
    let input_place = std::fs::canonicalize(input).map_err(|cause| FormatError::io("open", input, cause))?;
    let output_place = resolved(output);
    let fault = |fault| Err(FormatError::Write { path: output.to_owned(), fault });
    if output_place.starts_with(&input_place) {
        return fault(WriteFault::InsideInput { input: input.to_owned() });
    }
    if input_place.starts_with(&output_place) {
        return fault(WriteFault::HoldsInput { input: input.to_owned() });
    }
    Ok(())
}

/// A path without links, of which the last part need not be there.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(found) = std::fs::canonicalize(path) {
        return found;
    }
    match (std::fs::canonicalize(folder_of(path)), path.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => path.to_owned(),
    }
}

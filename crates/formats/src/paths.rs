//! Paths: those that files name (an index, `.metadata`, a zip archive, an output), and the folder of a file.
//!
//! ```text
//!   a/b.safetensors   inside        /a   ../a   a/../b   ./a   a//b   a/   refused
//! ```

use std::ffi::OsStr;
use std::path::Path;

/// Whether a path goes down from the folder that it is joined to, and is spelled in the one way that there is for it.
pub(crate) fn stays_inside(path: impl AsRef<OsStr>) -> bool {
    let bytes = path.as_ref().as_encoded_bytes();
    let is_part = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
    bytes.split(|byte| *byte == b'/').all(is_part) && !bytes.contains(&0)
}

/// Whether a text is the name of one entry of a folder.
pub(crate) fn is_name(text: &str) -> bool {
    stays_inside(text) && !text.contains('/')
}

/// The folder that a file lies in: that of a bare name is the current one.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{folder_of, is_name, stays_inside};

    #[test]
    fn a_bare_name_lies_in_the_current_folder() {
        for (file, folder) in [("a/b", "a"), ("/b", "/"), ("b", "."), ("./b", "."), ("../b", "..")] {
            assert_eq!(folder_of(Path::new(file)), Path::new(folder), "{file}");
        }
    }

    #[test]
    fn a_path_goes_down_and_is_spelled_in_one_way() {
        for inside in ["a", "a/b", "...", "..a/b..", "a b", ".a", "\u{e4}/b"] {
            assert!(stays_inside(inside), "{inside:?}");
            assert_eq!(is_name(inside), !inside.contains('/'), "{inside:?}");
        }
        for refused in
            ["", "/", "/a", "a/", "a//b", ".", "./a", "a/.", "..", "../a", "a/..", "a/../b", "a\0b"]
        {
            assert!(!stays_inside(refused), "{refused:?}");
            assert!(!is_name(refused), "{refused:?}");
        }
    }
}

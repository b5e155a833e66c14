//! Conversions for tests: written by the streaming writer, read back element by element.

use std::path::{Path, PathBuf};

use reshard_formats::{Checkpoint, Conversion, Format, Output, Silent, WriteOptions, universal, zero};
use reshard_layout::DType;

use crate::rebuilt::Whole;
use crate::support::files_below;

/// A folder that goes when it is dropped, with the output of a source in it.
pub(crate) struct Written {
    folder: tempfile::TempDir,
}

impl Written {
    /// Writes an output of `source`.
    pub(crate) fn of(source: &Path, output: impl FnOnce(&Checkpoint) -> Output) -> Self {
        let source = opened(source);
        let output = output(&source);
        let folder = tempfile::tempdir().unwrap();
        let conversion = Conversion::new(source, output).unwrap();
        let options = WriteOptions { sync: false, ..WriteOptions::default() };
        conversion.run(&folder.path().join("out"), &options, &Silent).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    pub(crate) fn open(&self) -> Checkpoint {
        opened(&self.path())
    }
}

/// A ZeRO checkpoint, or a Universal one.
pub(crate) fn opened(path: &Path) -> Checkpoint {
    let is_universal = path.join("latest_universal").exists() || path.join("zero").is_dir();
    let checkpoint = if is_universal { universal::open(path).unwrap() } else { zero::open(path).unwrap() };
    assert_eq!(checkpoint.format, if is_universal { Format::Universal } else { Format::Zero });
    checkpoint
}

/// Files below a folder, by their paths in it.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let path = |file: PathBuf| file.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    files_below(folder, "").into_iter().map(path).collect()
}

/// A bf16 tensor as 32-bit floats, which hold the same numbers.
pub(crate) fn widened(whole: &Whole) -> Whole {
    if whole.dtype != DType::Bf16 {
        return whole.clone();
    }
    let wide = |two: &[u8]| [0, 0, two[0], two[1]];
    let bytes = whole.bytes.chunks_exact(2).flat_map(wide).collect();
    Whole { dtype: DType::F32, bytes, ..whole.clone() }
}

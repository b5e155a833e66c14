//! Files made by hand, and a tiny writer of planned files.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use reshard_formats::safetensors::{SafetensorsFault, open};
use reshard_formats::{Checkpoint, FormatError, Kept, Part, TargetFile};
use serde_json::Value;
use tempfile::TempDir;

/// A file of a header and of `data_length` bytes that count up.
pub(crate) fn file_of(header: &str, data_length: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..data_length).map(|at| (at % 251) as u8));
    bytes
}

/// A folder of the files given.
pub(crate) fn folder_of(files: &[(&str, &[u8])]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    folder
}

/// Opens one file of these bytes.
pub(crate) fn open_bytes(bytes: &[u8]) -> Result<Checkpoint, FormatError> {
    let folder = folder_of(&[("x.safetensors", bytes)]);
    open(&folder.path().join("x.safetensors"))
}

/// What is wrong with a file, folder or index.
pub(crate) fn fault_at(path: &Path) -> SafetensorsFault {
    fault_of(open(path))
}

pub(crate) fn fault_of(opened: Result<Checkpoint, FormatError>) -> SafetensorsFault {
    match opened {
        Err(FormatError::Safetensors { fault, .. }) => fault,
        other => panic!("a fault of the format was expected: {other:?}"),
    }
}

/// The text of an error of a file of this header.
pub(crate) fn refusal(header: &str, data_length: usize) -> String {
    fault_of(open_bytes(&file_of(header, data_length))).to_string()
}

/// The weights of a checkpoint.
pub(crate) fn weights(checkpoint: &Checkpoint) -> &Part {
    &checkpoint.parts[&Kept::Weights]
}

/// The bytes of a parameter that lies whole in one storage.
pub(crate) fn bytes_of(checkpoint: &Checkpoint, name: &str) -> Vec<u8> {
    let part = weights(checkpoint);
    let id = part.layout.find(name).unwrap_or_else(|| panic!("no parameter {name}"));
    let buffer = part.layout.instances(id)[0].buffer;
    let span = part.spans[part.layout.places().buffer(buffer).storage.index()];
    let mut bytes = vec![0; span.length.0 as usize];
    checkpoint.files.read_at(span.file, span.offset, &mut bytes).unwrap();
    bytes
}

/// The names of all parameters, in order.
pub(crate) fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    weights(checkpoint).layout.parameters().map(|(_, parameter)| parameter.name.as_str()).collect()
}

/// The bytes of planned files: what is known, and poison elsewhere.
pub(crate) fn poisoned(files: &[TargetFile]) -> Vec<(PathBuf, Vec<u8>)> {
    let of_file = |file: &TargetFile| {
        let mut bytes = vec![0xAA; file.length as usize];
        for known in &file.known {
            let at = known.offset as usize;
            bytes[at..at + known.bytes.len()].copy_from_slice(&known.bytes);
        }
        (file.path.clone(), bytes)
    };
    files.iter().map(of_file).collect()
}

/// The bytes of planned files: what is known, and for each storage what `contents` says. Poison elsewhere.
pub(crate) fn filled(
    files: &[TargetFile],
    part: &Part,
    contents: impl Fn(&str) -> Vec<u8>,
) -> Vec<(PathBuf, Vec<u8>)> {
    let mut filled = poisoned(files);
    for (storage, span) in part.layout.places().storages.iter().zip(&part.spans) {
        let at = span.offset.0 as usize;
        let data = contents(&storage.name);
        assert_eq!(data.len() as u64, span.length.0, "{}", storage.name);
        filled[span.file.index()].1[at..at + data.len()].copy_from_slice(&data);
    }
    filled
}

/// Writes filled files into a folder.
pub(crate) fn folder_with(files: &[(PathBuf, Vec<u8>)]) -> TempDir {
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(path, bytes)| (path.to_str().unwrap(), bytes.as_slice())).collect();
    folder_of(&files)
}

/// A file of the ground truth, or the copy in the repository that some have; says so where the truth is absent.
pub(crate) fn ground_truth(path: &str) -> Option<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = root.join("../../../shared/data").join(path);
    if let Ok(bytes) = std::fs::read(&shared) {
        return Some(bytes);
    }
    let copy = std::fs::read(root.join("tests/data").join(Path::new(path).file_name().unwrap())).ok();
    let what = if copy.is_some() { "checked against the copy in tests/data" } else { "NOT CHECKED" };
    let mut stderr = std::io::stderr();
    writeln!(stderr, "ground truth {} is absent: {what}", shared.display()).unwrap();
    copy
}

pub(crate) fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

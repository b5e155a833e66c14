//! The program as its users call it: whole outputs, exit codes, hints.

#![allow(clippy::unwrap_used)]

mod checkpoints;
#[cfg(feature = "demo")]
mod demo;
mod plan;
#[cfg(feature = "demo")]
mod readme;

use std::path::PathBuf;
use std::process::Output;

/// Runs the program.
fn reshard(arguments: &[&str]) -> Output {
    assert_cmd::Command::cargo_bin("reshard").unwrap().args(arguments).output().unwrap()
}

/// Exit code and stderr of a call that fails.
fn failure(arguments: &[&str]) -> (i32, String) {
    let output = reshard(arguments);
    assert!(output.stdout.is_empty(), "data on stdout of a failed call");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

/// A config that the repository carries.
fn config() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../parallel/tests/data/Qwen3-8B.json");
    path.canonicalize().unwrap().display().to_string()
}

/// A file in a folder that is removed with the returned guard.
fn file(name: &str, text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    let path = path.display().to_string();
    (folder, path)
}

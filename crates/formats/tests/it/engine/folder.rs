//! Output folders: what is there before and after, whatever happens in between.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use reshard_formats::{FormatError, OutputFolder, WriteFault};

use super::names;

fn fault(error: FormatError) -> WriteFault {
    match error {
        FormatError::Write { fault, .. } => fault,
        error => panic!("{error}"),
    }
}

#[test]
fn a_folder_comes_whole_or_not_at_all() {
    let around = tempfile::tempdir().unwrap();
    let target = around.path().join("out");
    let folder = OutputFolder::create(&target, false).unwrap();
    fs::write(folder.path().join("a"), b"1").unwrap();
    assert!(!target.exists());
    drop(folder);
    assert_eq!(names(around.path()), [""; 0]);

    let folder = OutputFolder::create(&target, false).unwrap();
    fs::create_dir(folder.path().join("deep")).unwrap();
    fs::write(folder.path().join("deep/a"), b"1").unwrap();
    folder.commit(true).unwrap();
    assert_eq!((names(around.path()), names(&target)), (vec!["out".into()], vec!["deep".into()]));
    assert_eq!(fs::read(target.join("deep/a")).unwrap(), b"1");

    assert_eq!(fault(OutputFolder::create(&target, false).unwrap_err()), WriteFault::Exists);
    let folder = OutputFolder::create(&target, true).unwrap();
    assert_eq!(names(folder.path()), [""; 0], "what was tried on the file system is gone");
    fs::write(folder.path().join("b"), b"2").unwrap();
    assert_eq!(names(&target), ["deep"]);
    drop(folder);
    assert_eq!((names(around.path()), names(&target)), (vec!["out".into()], vec!["deep".into()]));

    let folder = OutputFolder::create(&target, true).unwrap();
    fs::write(folder.path().join("b"), b"2").unwrap();
    folder.commit(false).unwrap();
    assert_eq!((names(around.path()), names(&target)), (vec!["out".into()], vec!["b".into()]));
}

#[test]
fn two_writers_do_not_meet() {
    let around = tempfile::tempdir().unwrap();
    let target = around.path().join("out");
    let first = OutputFolder::create(&target, false).unwrap();
    fs::write(first.path().join("a"), b"1").unwrap();
    for force in [false, true] {
        assert_eq!(fault(OutputFolder::create(&target, force).unwrap_err()), WriteFault::Busy);
    }
    // Another output in the same place is nobody's business.
    drop(OutputFolder::create(&around.path().join("other"), false).unwrap());
    assert_eq!(names(first.path()), ["a"]);
    first.commit(false).unwrap();
    assert_eq!(fault(OutputFolder::create(&target, false).unwrap_err()), WriteFault::Exists);
    assert_eq!(names(around.path()), ["out"]);
}

#[test]
fn what_a_dead_process_left_is_removed() {
    let around = tempfile::tempdir().unwrap();
    let target = around.path().join("out");
    fs::create_dir_all(around.path().join(".out.reshard-partial/deep")).unwrap();
    fs::write(around.path().join(".out.reshard-partial/deep/a"), b"1").unwrap();
    fs::write(around.path().join(".out.reshard-lock"), b"").unwrap();
    let folder = OutputFolder::create(&target, false).unwrap();
    assert_eq!(names(folder.path()), [""; 0]);
    drop(folder);
    assert_eq!(names(around.path()), [""; 0]);
}

#[test]
fn what_comes_meanwhile_is_not_replaced() {
    let around = tempfile::tempdir().unwrap();
    let target = around.path().join("out");
    for came in ["folder", "file"] {
        let folder = OutputFolder::create(&target, false).unwrap();
        fs::write(folder.path().join("a"), b"1").unwrap();
        if came == "folder" {
            fs::create_dir(&target).unwrap();
        } else {
            fs::write(&target, b"theirs").unwrap();
        }
        assert_eq!(fault(folder.commit(true).unwrap_err()), WriteFault::Exists);
        assert_eq!(names(around.path()), ["out"]);
        if came == "folder" {
            assert_eq!(names(&target), [""; 0]);
            fs::remove_dir(&target).unwrap();
        }
    }
    assert_eq!(fs::read(&target).unwrap(), b"theirs");
}

#[test]
fn what_is_no_folder_is_refused() {
    let around = tempfile::tempdir().unwrap();
    let there = around.path().join("there");
    fs::create_dir(&there).unwrap();
    fs::write(around.path().join("file"), b"1").unwrap();
    symlink(&there, around.path().join("link")).unwrap();
    symlink("nowhere", around.path().join("dangling")).unwrap();
    for name in ["file", "link", "dangling"] {
        let error = OutputFolder::create(&around.path().join(name), true).unwrap_err();
        assert_eq!(fault(error), WriteFault::NotAFolder, "{name}");
    }
    for path in [Path::new("/"), Path::new(".."), &there.join("..")] {
        let error = OutputFolder::create(path, true).unwrap_err();
        assert_eq!(fault(error), WriteFault::NoName, "{}", path.display());
    }
    let error = OutputFolder::create(&around.path().join("absent/out"), false).unwrap_err();
    assert!(matches!(&error, FormatError::Io { path, .. } if path.ends_with("absent")), "{error}");
    assert_eq!(names(around.path()), ["dangling", "file", "link", "there"]);
}

//! What tests of the command line share: the program, away from the user's cache and the network.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gyrus_testkit::repository;

/// The program with nothing of the user's environment that it acts by, and the same device everywhere.
pub(crate) fn gyrus() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gyrus"));
    command.env("GYRUS_OFFLINE", "1").env("GYRUS_CACHE", repository().join("target/test-cache"));
    command.env_remove("GYRUS_THREADS").env("GYRUS_DEVICE", "cpu");
    command
}

/// Runs it with this on stdin.
pub(crate) fn run(args: &[impl AsRef<OsStr>], input: &str) -> Output {
    let mut command = gyrus();
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that refuses its arguments may not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// What it prints where it must succeed.
pub(crate) fn stdout(args: &[impl AsRef<OsStr>], input: &str) -> String {
    let output = run(args, input);
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// What it says where it must fail with this exit code, and print nothing.
pub(crate) fn refused(args: &[impl AsRef<OsStr>], code: i32) -> String {
    let output = run(args, "");
    let shown: Vec<_> = args.iter().map(AsRef::as_ref).collect();
    assert_eq!(output.status.code(), Some(code), "{shown:?}: {}", said(&output));
    assert!(output.stdout.is_empty(), "{shown:?}");
    said(&output)
}

/// What is on stderr.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The file of the built-in model.
pub(crate) fn tales() -> PathBuf {
    repository().join("models/tales-7m/tales-7m-q8_0.gguf")
}

/// The names in a folder.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

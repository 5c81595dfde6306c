//! Files that a user names: written whole or not at all, and never in place of a device, pipe or link.
#![cfg(unix)]

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use common::{gyrus, names, run, said};
use gyrus_testkit::tempfile;

/// Every command that writes a file of the user's choice, as arguments and what to type.
fn writers(out: &Path) -> Vec<(Vec<String>, String)> {
    let out = out.to_str().unwrap();
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let shape = "dim=32,layers=1,heads=2,kv=1,ffn=32,vocab=32:q8_0";
    vec![
        (words(&format!("logits tales-7m --ids 1 -q --out {out}")), String::new()),
        (words(&format!("rope --head-dim 8 --svg {out}")), String::new()),
        (words(&format!("bench --synthetic {shape} --write {out}")), String::new()),
        (words("chat tales-7m -q"), format!("/save {out}\n")),
    ]
}

fn write(writer: &(Vec<String>, String)) -> Output {
    run(&writer.0, &writer.1)
}

#[test]
fn a_link_stays_and_its_target_is_replaced() {
    for n in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let (link, target) = (folder.path().join("link"), folder.path().join("sub/target"));
        fs::create_dir(folder.path().join("sub")).unwrap();
        symlink("sub/target", &link).unwrap();
        // First the link leads nowhere, then to a file.
        for _ in 0..2 {
            let writer = &writers(&link)[n];
            let output = write(writer);
            assert!(output.status.success(), "{:?}: {}", writer.0, said(&output));
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink(), "{:?}", writer.0);
            assert!(fs::metadata(&target).unwrap().len() > 0, "{:?}", writer.0);
            assert_eq!(names(folder.path()), ["link", "sub"]);
            assert_eq!(names(&folder.path().join("sub")), ["target"]);
        }
    }
}

#[test]
fn a_pipe_is_written_to_and_stays() {
    for n in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // Opened both ways, the test's end keeps the pipe from ever waiting for a reader or a writer.
        let mut ends = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        let writer = &writers(&pipe)[n];
        let mut command = gyrus();
        command.args(&writer.0).stdin(std::process::Stdio::piped());
        let mut child = command.stdout(std::process::Stdio::null()).spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(writer.1.as_bytes());
        assert!(child.wait().unwrap().success(), "{:?}", writer.0);
        assert!(
            fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo(),
            "{:?} replaced the pipe",
            writer.0
        );
        // All of it fits into a pipe.
        let mut written = [0; 1 << 16];
        assert!(ends.read(&mut written).unwrap() > 0, "{:?}", writer.0);
        assert_eq!(names(folder.path()), ["pipe"]);
    }
}

#[test]
fn nothing_else_in_the_folder_is_touched() {
    for n in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let (out, part) = (folder.path().join("out"), folder.path().join("out.part"));
        fs::write(&part, "somebody's").unwrap();
        let writer = &writers(&out)[n];
        assert!(write(writer).status.success(), "{:?}", writer.0);
        assert_eq!(fs::read(&part).unwrap(), b"somebody's", "{:?}", writer.0);
        assert_eq!(names(folder.path()), ["out", "out.part"]);
    }
}

#[test]
fn permissions_of_a_replaced_file_are_kept() {
    for n in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        fs::write(&out, "before").unwrap();
        fs::set_permissions(&out, PermissionsExt::from_mode(0o640)).unwrap();
        let writer = &writers(&out)[n];
        assert!(write(writer).status.success(), "{:?}", writer.0);
        assert_ne!(fs::read(&out).unwrap(), b"before");
        assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o7777, 0o640, "{:?}", writer.0);
    }
}

#[test]
fn a_folder_is_refused_by_its_name() {
    for n in 0..4 {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        fs::create_dir(&out).unwrap();
        let writer = &writers(&out)[n];
        let output = write(writer);
        assert_eq!(output.status.code(), Some(1), "{:?}", writer.0);
        let expected = format!("{}: is a folder", out.display());
        assert!(said(&output).contains(&expected), "{:?}: {}", writer.0, said(&output));
        assert_eq!(names(folder.path()), ["out"]);
    }
}

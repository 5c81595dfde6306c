//! `gyrus cache` on a folder of its own.

mod common;

use std::path::Path;
use std::process::Output;

use common::{gyrus, said};
use gyrus_testkit::tempfile;
use serde_json::Value;

fn cache(folder: &Path, args: &[&str]) -> Output {
    gyrus().arg("cache").args(args).env("GYRUS_CACHE", folder).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A model, a part of one, pipelines, a tuning, a self-test, a history and a file that is not Gyrus's.
fn filled() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, bytes) in [
        ("models/hf/owner/repo/model.gguf", 2048),
        ("models/hf/owner/repo/other.gguf.0a1b.part", 100),
        ("pipelines/vulkan_1_0.bin", 300),
        ("pipelines/gpu_0.tuning", 40),
        ("pipelines/gpu_0.selftest", 55),
        ("history.txt", 5),
        ("notes.txt", 1),
    ] {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, vec![b'x'; bytes]).unwrap();
    }
    folder
}

#[test]
fn files_are_listed_with_sizes_and_paths() {
    let folder = filled();
    let table = text(&cache(folder.path(), &[])).replace(folder.path().to_str().unwrap(), "CACHE");
    insta::assert_snapshot!(table);
    let json: Value = serde_json::from_str(&text(&cache(folder.path(), &["--json"]))).unwrap();
    assert_eq!((&json["folder"], &json["bytes"]), (&folder.path().to_str().unwrap().into(), &2548.into()));
    let file = &json["files"][1];
    assert_eq!(
        (&file["kind"], &file["state"], &file["bytes"]),
        (&"model".into(), &"incomplete".into(), &100.into())
    );
    assert!(file["path"].as_str().unwrap().ends_with("other.gguf.0a1b.part"));
    let empty = tempfile::tempdir().unwrap();
    assert!(text(&cache(&empty.path().join("none"), &[])).starts_with("  total 0 B: empty\n"));
    assert!(!empty.path().join("none").exists(), "listing creates nothing");
}

#[test]
fn kinds_are_removed_and_the_rest_stays() {
    let folder = filled();
    let exists = |path: &str| folder.path().join(path).exists();
    let output = text(&cache(folder.path(), &["prune", "--tunings", "--yes"]));
    assert!(output.ends_with("gpu_0.tuning\n1 file, 40 B freed\n"), "{output}");
    assert!(!exists("pipelines/gpu_0.tuning") && exists("pipelines/vulkan_1_0.bin"));
    let output = text(&cache(folder.path(), &["prune", "--self-tests", "--yes"]));
    assert!(output.ends_with("gpu_0.selftest\n1 file, 55 B freed\n"), "{output}");
    assert!(!exists("pipelines/gpu_0.selftest") && exists("pipelines/vulkan_1_0.bin"));
    let output = text(&cache(folder.path(), &["prune", "--models", "--yes", "--json"]));
    let json: Value = serde_json::from_str(&output).unwrap();
    assert_eq!((&json["bytes"], json["files"].as_array().unwrap().len()), (&2148.into(), 2));
    assert!(!exists("models") && exists("pipelines") && exists("history.txt"));
    assert!(text(&cache(folder.path(), &["prune", "--all", "-y"])).ends_with("2 files, 305 B freed\n"));
    assert_eq!(common::names(folder.path()), ["notes.txt"]);
    assert_eq!(text(&cache(folder.path(), &["prune", "--all", "-y"])), "0 files, 0 B freed\n");
}

#[test]
fn nothing_is_removed_without_a_choice_and_consent() {
    let folder = filled();
    for (args, reason) in [
        (&["prune", "--yes"][..], "error: nothing selected: give --models"),
        (&["prune", "--all"], "error: cannot ask for confirmation without a terminal; --yes"),
        (&["prune", "--everything"], "error: unexpected argument"),
    ] {
        let output = cache(folder.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(said(&output).starts_with(reason), "{}", said(&output));
    }
    assert_eq!(common::names(folder.path()), ["history.txt", "models", "notes.txt", "pipelines"]);
}

#[test]
fn a_model_that_is_being_downloaded_is_an_error_and_the_others_go() {
    let folder = filled();
    let lock = std::fs::File::create(folder.path().join("models/hf/owner/repo/model.gguf.lock")).unwrap();
    lock.lock().unwrap();
    let output = cache(folder.path(), &["prune", "--all", "--yes"]);
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(said.contains("model.gguf: another process is downloading it\n"), "{said}");
    assert!(said.ends_with("error: 1 file could not be removed\n"), "{said}");
    assert_eq!(common::names(folder.path()), ["models", "notes.txt"]);
    assert_eq!(common::names(&folder.path().join("models/hf/owner/repo")), ["model.gguf", "model.gguf.lock"]);
}

#[cfg(unix)]
#[test]
fn folders_outside_the_cache_stay() {
    let (folder, outside) = (filled(), filled());
    std::fs::remove_dir_all(folder.path().join("models")).unwrap();
    std::os::unix::fs::symlink(outside.path().join("models"), folder.path().join("models")).unwrap();
    let output = cache(folder.path(), &["prune", "--all", "--yes"]);
    let note = said(&output);
    assert!(text(&output).ends_with("4 files, 400 B freed\n"));
    assert!(note.contains("models: a link to a folder, which is not followed"), "{note}");
    assert!(outside.path().join("models/hf/owner/repo/model.gguf").exists());
}

//! The folders and files of small random embedders and rerankers.

use std::path::{Path, PathBuf};

use gyrus_testkit::tempfile;

pub(crate) fn fixture(name: &str) -> PathBuf {
    gyrus_testkit::repository().join("tests/data/encoders").join(name)
}

/// A copy of a fixture in another folder.
pub(crate) fn copied(name: &str) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let to = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => copy(&entry.path(), &to),
                false => drop(std::fs::copy(entry.path(), to).unwrap()),
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture(name), folder.path());
    folder
}

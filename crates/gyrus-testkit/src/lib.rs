//! What tests share: where data lies, how a reference program is run, and random numbers that repeat.
//!
//! Tests must say what they could not do. Data, models, GPUs and reference programs may be absent on a developer's
//! machine; then a test calls [`skip`] with what it lacks and returns. Where that is required, absence is a failure.

#![deny(unsafe_code)]

// Allocators are unsafe by their trait.
#[allow(unsafe_code)]
mod counting;
pub mod npy;
mod oracle;
mod rng;
mod skip;
#[allow(unsafe_code)]
mod traced;

use std::path::{Path, PathBuf};

pub use counting::Counting;
pub use oracle::{oracle, python};
pub use rng::Rng;
pub use skip::{Need, skip};
pub use tempfile;
pub use traced::{Origin, Traced, crate_of};

/// The repository's root.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().and_then(Path::parent).expect("crates/NAME lies two deep")
}

/// The path of a test file or folder, from `GYRUS_TEST_DATA` or else `tests/data`.
///
/// `None` means that it is not there and the caller should return; the reason has been printed.
pub fn data(name: &str) -> Option<PathBuf> {
    let root = data_root();
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    skip(Need::Data, &format!("no {name} under {}", root.display()));
    None
}

/// The folder of test data, for tests that take every file in it. What the repository itself holds is a part of it.
pub fn all_data() -> PathBuf {
    if std::env::var_os("GYRUS_TEST_DATA").is_none() {
        skip(Need::Data, "all data but what the repository holds");
    }
    data_root()
}

fn data_root() -> PathBuf {
    match std::env::var_os("GYRUS_TEST_DATA") {
        // Tests run in their crate's folder; a relative path means the repository's.
        Some(path) => repository().join(path),
        None => repository().join("tests/data"),
    }
}

/// The path of a model too large to be test data, from the folder `GYRUS_MODELS`.
///
/// `None` means that it is not there and the caller should return; the reason has been printed. It is a
/// failure with `GYRUS_REQUIRE_MODELS=1`.
pub fn model(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("GYRUS_MODELS").map(|folder| repository().join(folder).join(name));
    match path.filter(|path| path.exists()) {
        Some(path) => Some(path),
        None => {
            skip(Need::Model, &format!("{name} is not in the folder that GYRUS_MODELS names"));
            None
        }
    }
}

/// How many cases a random test runs: `GYRUS_CASES`, else `default`.
pub fn cases(default: usize) -> usize {
    match std::env::var("GYRUS_CASES") {
        Ok(text) => text.parse().expect("GYRUS_CASES is a number"),
        Err(_) => default,
    }
}

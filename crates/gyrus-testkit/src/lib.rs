//! Shared test support: paths of test data, reference programs, a seeded random generator, counting allocators.
//!
//! Data, models, GPUs and reference programs may be missing on a developer's machine. A test that lacks one calls
//! [`skip`] with the reason and returns. With `GYRUS_REQUIRE_…=1` in the environment it fails instead.

#![deny(unsafe_code)]

// `GlobalAlloc` is an unsafe trait.
#[allow(unsafe_code)]
mod counting;
mod difference;
pub mod npy;
mod oracle;
mod rng;
mod skip;
#[allow(unsafe_code)]
mod traced;

use std::path::{Path, PathBuf};

pub use counting::Counting;
pub use difference::{distance, largest};
pub use oracle::{oracle, python};
pub use rng::Rng;
pub use skip::{Need, skip};
pub use tempfile;
pub use traced::{Origin, Traced, crate_of};

/// The root of the repository.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .and_then(Path::parent)
        .expect("the crate is in crates/NAME")
}

/// A small random model of each architecture: folders of `tiny` in the test data.
pub const TINY_MODELS: [&str; 20] = [
    "ernie4_5",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4moe",
    "gpt_oss",
    "granite",
    "llama",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "smollm3",
];

/// The path of a test file or folder, from `GYRUS_TEST_DATA` if that has it, or else from `tests/data`.
///
/// `None` if it does not exist; the reason has been printed and the test should return.
pub fn data(name: &str) -> Option<PathBuf> {
    let root = data_root();
    let found = [&root, &repository().join("tests/data")]
        .map(|root| root.join(name))
        .into_iter()
        .find(|p| p.exists());
    if found.is_none() {
        skip(Need::Data, &format!("no {name} under {}", root.display()));
    }
    found
}

/// The folder of test data, for tests that use every file in it. Without `GYRUS_TEST_DATA` it is `tests/data`, a
/// part of all data.
pub fn all_data() -> PathBuf {
    if std::env::var_os("GYRUS_TEST_DATA").is_none() {
        skip(Need::Data, "GYRUS_TEST_DATA is not set, only the data in the repository is tested");
    }
    data_root()
}

fn data_root() -> PathBuf {
    match std::env::var_os("GYRUS_TEST_DATA") {
        // Tests run in the folder of their crate; a relative path is relative to the repository.
        Some(path) => repository().join(path),
        None => repository().join("tests/data"),
    }
}

/// The path of a model too large to be test data, from the folder `GYRUS_MODELS`.
///
/// `None` if it does not exist; the reason has been printed and the test should return. With
/// `GYRUS_REQUIRE_MODELS=1` a missing model is a failure.
pub fn model(name: &str) -> Option<PathBuf> {
    model_or_skip(name, Need::Model)
}

/// As [`model`], of a model that nobody can be required to have.
pub fn further_model(name: &str) -> Option<PathBuf> {
    model_or_skip(name, Need::Extra)
}

fn model_or_skip(name: &str, need: Need) -> Option<PathBuf> {
    // Tests run in the folder of their crate; a relative path is relative to the repository.
    let path = std::env::var_os("GYRUS_MODELS").map(|folder| repository().join(folder).join(name));
    let found = path.filter(|path| path.exists());
    if found.is_none() {
        skip(need, &format!("{name} is not in the folder that GYRUS_MODELS names"));
    }
    found
}

/// The number of cases of a randomised test: `GYRUS_CASES`, or `default`.
pub fn cases(default: usize) -> usize {
    match std::env::var("GYRUS_CASES") {
        Ok(text) => text.parse().expect("GYRUS_CASES is a number"),
        Err(_) => default,
    }
}

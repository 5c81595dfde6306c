//! Reports of skipped tests.

use std::fs::OpenOptions;
use std::io::Write;

/// A resource that a test needs and that may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Test data. Required with `GYRUS_REQUIRE_DATA=1`.
    Data,
    /// SmolLM2 135M. Required with `GYRUS_REQUIRE_MODELS=1`.
    Model,
    /// A GPU, real or in software. Required with `GYRUS_REQUIRE_GPU=1`.
    Gpu,
    /// A reference program. Required with `GYRUS_REQUIRE_ORACLE=1`.
    Oracle,
    /// A resource that cannot be required: a GPU feature, a permission, a further model.
    Extra,
}

impl Need {
    /// The name in the report.
    fn word(self) -> &'static str {
        match self {
            Need::Data => "data",
            Need::Model => "model",
            Need::Gpu => "gpu",
            Need::Oracle => "oracle",
            Need::Extra => "extra",
        }
    }

    /// The environment variable that makes a missing resource a failure.
    fn required_by(self) -> Option<&'static str> {
        match self {
            Need::Data => Some("GYRUS_REQUIRE_DATA"),
            Need::Model => Some("GYRUS_REQUIRE_MODELS"),
            Need::Gpu => Some("GYRUS_REQUIRE_GPU"),
            Need::Oracle => Some("GYRUS_REQUIRE_ORACLE"),
            Need::Extra => None,
        }
    }
}

/// Reports that the calling test, or a part of it, is skipped, and appends it to the file that `GYRUS_SKIPPED` names.
///
/// # Panics
/// If the environment requires the resource.
pub fn skip(need: Need, reason: &str) {
    if let Some(variable) = need.required_by() {
        assert!(std::env::var(variable).as_deref() != Ok("1"), "{reason}, but {variable}=1 requires it");
    }
    eprintln!("skipped: {reason}");
    if let Some(file) = std::env::var_os("GYRUS_SKIPPED") {
        let line = line(need, &binary(), std::thread::current().name().unwrap_or("?"), reason);
        // One write per line, so lines of concurrent processes do not mix.
        let opened = OpenOptions::new()
            .create(true)
            .append(true)
            .open(crate::repository().join(file))
            .and_then(|mut file| file.write_all(line.as_bytes()));
        opened.unwrap_or_else(|error| panic!("cannot write the file that GYRUS_SKIPPED names: {error}"));
    }
}

/// `need<TAB>binary<TAB>test<TAB>reason`. Reports count distinct tests, so a test may occur several times.
fn line(need: Need, binary: &str, test: &str, reason: &str) -> String {
    let reason = reason.replace(['\n', '\t'], " ");
    format!("{}\t{binary}\t{test}\t{reason}\n", need.word())
}

/// The name of the running test binary, without the hash that cargo adds.
fn binary() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    stem.rsplit_once('-').map_or(stem.clone(), |(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_reported_on_one_line() {
        assert_eq!(line(Need::Gpu, "gpu", "a::b", "no\nGPU"), "gpu\tgpu\ta::b\tno GPU\n");
        assert_eq!(binary(), "gyrus_testkit");
    }
}

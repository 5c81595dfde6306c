//! The result of the self-test on disk.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::cache_file::replace;
use crate::error::GpuError;

/// The first line of a file.
const HEADER: &str = "gyrus int8 self-test 1";

/// No valid file is longer.
const LONGEST: u64 = 1024;

/// What the self-test found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// All products have the bits of the mat-vec.
    Passed,
    /// The first product that has not.
    Failed(String),
}

/// The recorded outcome for this key; if there is none, that of `test`, which is recorded.
///
/// The key stands for the adapter, its driver and the kernels. A file of another key, or a damaged one, is replaced. An error
/// is no outcome and is not recorded. If the file cannot be written, the next start tests again.
pub(super) fn recorded(
    path: Option<&Path>,
    key: u64,
    test: impl FnOnce() -> Result<Outcome, GpuError>,
) -> Result<Outcome, GpuError> {
    if let Some(outcome) = path.and_then(|path| read(path, key)) {
        return Ok(outcome);
    }
    let outcome = test()?;
    if let Some(path) = path {
        let _ = replace(path, text(key, &outcome).as_bytes());
    }
    Ok(outcome)
}

fn text(key: u64, outcome: &Outcome) -> String {
    let outcome = match outcome {
        Outcome::Passed => "passed".to_owned(),
        Outcome::Failed(product) => format!("failed {product}"),
    };
    format!("{HEADER}\nkey {key:016x}\n{outcome}\n")
}

/// The outcome in a file, if it is valid and has this key.
fn read(path: &Path, key: u64) -> Option<Outcome> {
    let mut found = String::new();
    File::open(path).ok()?.take(LONGEST).read_to_string(&mut found).ok()?;
    let outcome = match found.lines().nth(2)?.split_once(' ') {
        None => Outcome::Passed,
        Some((_, product)) => Outcome::Failed(product.to_owned()),
    };
    // It is valid if it is what would be written.
    (text(key, &outcome) == found).then_some(outcome)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;

    fn failed() -> Outcome {
        Outcome::Failed("Q4_0 256 × 2048, 9 rows".to_owned())
    }

    /// The outcome, and whether the test ran.
    fn outcome(path: Option<&Path>, key: u64, of_test: &Outcome) -> (Outcome, bool) {
        let ran = Cell::new(false);
        let test = || {
            ran.set(true);
            Ok(of_test.clone())
        };
        (recorded(path, key, test).unwrap(), ran.get())
    }

    #[test]
    fn outcomes_are_recorded_once_per_key() {
        let folder = gyrus_testkit::tempfile::tempdir().unwrap();
        let path = folder.path().join("new/gpu.selftest");
        let path = Some(path.as_path());
        assert_eq!(outcome(path, 1, &Outcome::Passed), (Outcome::Passed, true));
        assert_eq!(outcome(path, 1, &failed()), (Outcome::Passed, false));
        // Other kernels or another driver.
        assert_eq!(outcome(path, 2, &failed()), (failed(), true));
        assert_eq!(outcome(path, 2, &Outcome::Passed), (failed(), false), "a failure is kept");
        assert_eq!(outcome(path, 1, &Outcome::Passed), (Outcome::Passed, true), "one file, one key");
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1);
    }

    #[test]
    fn damaged_and_foreign_files_are_replaced() {
        let folder = gyrus_testkit::tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu.selftest");
        for of_test in [Outcome::Passed, failed()] {
            let whole = text(7, &of_test).into_bytes();
            let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|cut| whole[..cut].to_vec()).collect();
            // Any byte of the header and the key.
            damaged.extend((0..HEADER.len() + 22).map(|at| {
                let mut bytes = whole.clone();
                bytes[at] ^= 16;
                bytes
            }));
            damaged.push([&whole[..], b"more\n"].concat());
            damaged.push(vec![b'x'; 1 << 20]);
            damaged.push(vec![0xff; 40]);
            for bytes in damaged {
                fs::write(&path, &bytes).unwrap();
                let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(99)]).into_owned();
                assert_eq!(outcome(Some(&path), 7, &of_test), (of_test.clone(), true), "{shown}");
                assert_eq!(fs::read(&path).unwrap(), whole);
            }
        }
    }

    #[test]
    fn without_a_file_every_start_tests_and_errors_are_not_recorded() {
        for _ in 0..2 {
            assert_eq!(outcome(None, 1, &Outcome::Passed), (Outcome::Passed, true));
        }
        let folder = gyrus_testkit::tempfile::tempdir().unwrap();
        let path = folder.path().join("gpu.selftest");
        let lost = || Err(GpuError::Lost { reason: "unplugged".to_owned() });
        assert!(recorded(Some(&path), 1, lost).is_err());
        assert!(!path.exists());
        // A folder that cannot be created.
        fs::write(&path, "").unwrap();
        let below = path.join("gpu.selftest");
        for _ in 0..2 {
            assert_eq!(outcome(Some(&below), 1, &failed()), (failed(), true));
        }
    }
}

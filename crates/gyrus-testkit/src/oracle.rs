use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// The Python interpreter of `GYRUS_ORACLE_PYTHON`, which has the reference programs.
///
/// `None` means that there is none and the caller should return; the reason has been printed. `name` is
/// what needs it.
pub fn python(name: &str) -> Option<PathBuf> {
    match std::env::var_os("GYRUS_ORACLE_PYTHON") {
        // Tests run in their crate's folder; a relative path means the repository's.
        Some(path) => Some(crate::repository().join(path)),
        None => {
            let reason = format!("GYRUS_ORACLE_PYTHON is not set, {name} needs it");
            crate::skip(crate::Need::Oracle, &reason);
            None
        }
    }
}

/// Runs `scripts/oracle/NAME` with the Python interpreter of `GYRUS_ORACLE_PYTHON` and returns what it
/// printed.
///
/// `None` means that there is no such interpreter and the caller should return; the reason has been
/// printed. A script that fails is a failed test.
pub fn oracle(name: &str, args: &[impl AsRef<OsStr>]) -> Option<String> {
    let python = python(name)?;
    let script = crate::repository().join("scripts/oracle").join(name);
    let output = Command::new(python)
        .arg(script)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("cannot start the oracle's Python: {e}"));
    assert!(
        output.status.success(),
        "{name} failed with {}:\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Some(String::from_utf8(output.stdout).expect("oracles print UTF-8"))
}

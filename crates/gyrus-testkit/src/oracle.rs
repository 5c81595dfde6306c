use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// The Python interpreter of `GYRUS_ORACLE_PYTHON`, which has the reference libraries installed.
///
/// `None` if it is not set; the reason has been printed and the test should return. `name` is the script that
/// needs it.
pub fn python(name: &str) -> Option<PathBuf> {
    match std::env::var_os("GYRUS_ORACLE_PYTHON") {
        // Tests run in the folder of their crate; a relative path is relative to the repository.
        Some(path) => Some(crate::repository().join(path)),
        None => {
            let reason = format!("GYRUS_ORACLE_PYTHON is not set, {name} needs it");
            crate::skip(crate::Need::Oracle, &reason);
            None
        }
    }
}

/// Runs `scripts/oracle/NAME` with the Python interpreter of `GYRUS_ORACLE_PYTHON` and returns its output.
///
/// `None` if there is no such interpreter; the reason has been printed and the test should return.
///
/// # Panics
/// If the script fails.
pub fn oracle(name: &str, args: &[impl AsRef<OsStr>]) -> Option<String> {
    let python = python(name)?;
    let script = crate::repository().join("scripts/oracle").join(name);
    let output = Command::new(python)
        .arg(script)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("cannot start the interpreter that GYRUS_ORACLE_PYTHON names: {e}"));
    assert!(
        output.status.success(),
        "{name} failed with {}:\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Some(String::from_utf8(output.stdout).expect("oracle scripts print UTF-8"))
}

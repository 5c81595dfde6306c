use std::ffi::OsStr;
use std::process::Command;

/// Runs `scripts/oracle/NAME` with the Python interpreter of `GYRUS_ORACLE_PYTHON` and returns what it
/// printed.
///
/// `None` means that there is no such interpreter and the caller should return; the reason has been
/// printed. A script that fails is a failed test.
pub fn oracle(name: &str, args: &[impl AsRef<OsStr>]) -> Option<String> {
    let Some(python) = std::env::var_os("GYRUS_ORACLE_PYTHON") else {
        crate::absent(&format!("GYRUS_ORACLE_PYTHON is not set, {name} needs it"), "GYRUS_REQUIRE_ORACLE");
        return None;
    };
    let script = crate::repository().join("scripts/oracle").join(name);
    let output = Command::new(crate::repository().join(python))
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

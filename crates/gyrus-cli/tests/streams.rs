//! Output that cannot be written: no panic, and an exit code that says so.
#![cfg(target_os = "linux")]

mod common;

use std::fs::OpenOptions;
use std::process::{Command, Stdio};

use common::{gyrus, said};

/// Writing to it fails as on a full disk.
fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

const COMMANDS: [(&[&str], i32); 9] = [
    (&["run", "tales-7m", "Once", "-n", "2"], 0),
    (&["run", "Once upon a time", "-n", "2"], 0),
    (&["run", "missing.gguf"], 1),
    (&["chat", "tales-7m", "-n", "1"], 0),
    (&["bench", "tales-7m", "-p", "2", "-n", "0", "-r", "1"], 0),
    (&["pull", "tales-7m"], 0),
    (&["run", "--no-such-flag"], 2),
    (&["--help"], 0),
    (&["inspect"], 2),
];

#[test]
fn what_cannot_be_said_is_no_reason_to_fail() {
    for (args, code) in COMMANDS {
        let status = gyrus().args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(full()).status();
        assert_eq!(status.unwrap().code(), Some(code), "{args:?}");
        // Nor is a stream that is closed.
        let script = format!("exec '{}' \"$@\" 2>&-", env!("CARGO_BIN_EXE_gyrus"));
        let mut shell = Command::new("sh");
        for (name, value) in gyrus().get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let status = shell.args(["-c", &script, "sh"]).args(args).stdin(Stdio::null()).stdout(Stdio::null());
        assert_eq!(status.status().unwrap().code(), Some(code), "{args:?}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    for args in [
        &["run", "tales-7m", "Once", "-n", "2", "-q"][..],
        &["run", "tales-7m", "Once", "-n", "2", "-q", "--output", "json"],
        &["inspect", "tales-7m"],
        &["models"],
        &["models", "--json"],
        &["doctor"],
        &["rope", "--head-dim", "8"],
        &["tokenize", "tales-7m"],
        &["detokenize", "tales-7m"],
        &["completions", "bash"],
        &["bench", "tales-7m", "-p", "2", "-n", "0", "-r", "1", "-q"],
        &["pull", "tales-7m"],
        &["--help"],
        &["--version"],
        &["run", "--help"],
    ] {
        let mut child =
            gyrus().args(args).stdin(Stdio::piped()).stdout(full()).stderr(Stdio::piped()).spawn().unwrap();
        use std::io::Write;
        let _ = child.stdin.take().unwrap().write_all(b"1 2 3");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", said(&output));
        assert!(said(&output).contains("error: "), "{args:?}: {}", said(&output));
        assert!(said(&output).to_lowercase().contains("no space left"), "{args:?}: {}", said(&output));
    }
}

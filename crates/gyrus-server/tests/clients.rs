//! Real clients, pinned in `scripts/clients`, against a server with the test model. `scripts/test` installs them.

mod common;

use std::process::Command;

use common::{config, start};
use gyrus_testkit::{Need, repository, skip};

/// Runs a script of a client in Python, with the interpreter that has the clients.
fn python(script: &str) {
    let Some(interpreter) = std::env::var_os("GYRUS_CLIENTS_PYTHON") else {
        return skip(Need::Oracle, &format!("GYRUS_CLIENTS_PYTHON is not set, {script} needs it"));
    };
    run(Command::new(repository().join(interpreter)).arg(repository().join("scripts/clients").join(script)));
}

/// Runs a script of a client in JavaScript, in the folder that has the client's modules: Node looks for them beside it.
fn node(script: &str) {
    let Some(folder) = std::env::var_os("GYRUS_CLIENTS_NODE") else {
        return skip(Need::Oracle, &format!("GYRUS_CLIENTS_NODE is not set, {script} needs it"));
    };
    let copy = repository().join(folder).join(script);
    std::fs::copy(repository().join("scripts/clients").join(script), &copy).unwrap();
    run(Command::new("node").arg(copy));
}

/// Runs a client against a server, and expects `ok` at the end.
fn run(client: &mut Command) {
    let Some(server) = start(config()) else { return };
    // A proxy of the environment is not for this machine.
    client.arg(format!("http://{}", server.address)).env("NO_PROXY", "*").env("no_proxy", "*");
    let output = client.output().unwrap();
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success() && out.trim_end().ends_with("ok"), "{client:?}:\n{out}\n{err}");
}

#[test]
fn openai_for_python() {
    python("openai_python.py");
}

#[test]
fn anthropic_for_python() {
    python("anthropic_python.py");
}

#[test]
fn ollama_for_python() {
    python("ollama_python.py");
}

#[test]
fn litellm_for_python() {
    python("litellm_python.py");
}

#[test]
fn langchain_for_python() {
    python("langchain_python.py");
}

#[test]
fn openai_for_javascript() {
    node("openai_node.mjs");
}

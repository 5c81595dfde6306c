//! The pages in a real browser (Debian's `chromium`), which `tests/page/page.mjs` drives with Node. Nothing is installed for it.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::client::{get, post_as, receive, send};
use common::{config, start};
use gyrus_server::Config;
use gyrus_testkit::{Need, skip};
use serde_json::json;

/// A program, if it is there.
fn program(names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = |name: &&str| {
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file())
    };
    names.iter().find_map(found)
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page")
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{command:?}:\n{out}\n{err}");
    out
}

#[test]
fn the_pages_work_in_a_browser() {
    let Some(node) = program(&["node"]) else { return skip(Need::Oracle, "there is no Node") };
    let Some(browser) = program(&["chromium", "chromium-browser", "google-chrome"]) else {
        return skip(Need::Oracle, "there is no Chromium");
    };
    let Some(server) = start(config()) else { return };
    let mut command = Command::new(node);
    command.arg(scripts().join("page.mjs")).arg(format!("http://{}", server.address)).arg(browser);
    command.arg(gyrus_testkit::repository().join("tests/data/audio/speech.wav"));
    let out = run(&mut command);
    assert!(out.trim_end().ends_with("ok"), "{out}");
}

#[test]
fn markdown_is_parsed_alike_whole_and_growing() {
    let Some(node) = program(&["node"]) else { return skip(Need::Oracle, "there is no Node") };
    run(Command::new(node).arg("--test").arg(scripts().join("markdown.test.mjs")));
}

/// The pages hold no secret, so a browser can load them and then ask for the key.
#[test]
fn pages_load_without_a_key_and_forbid_what_they_do_not_need() {
    let key = "sk-0123456789abcdef";
    let Some(server) = start(Config { api_key: Some(key.to_owned()), ..config() }) else { return };
    for path in ["/", "/status", "/page/chat.js", "/page/base.css", "/page/icon.svg"] {
        let reply = get(server.address, path);
        assert_eq!(reply.status, 200, "{path}");
        let policy = reply.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("x-frame-options"), Some("DENY"));
    }
    assert!(get(server.address, "/").header("content-type").unwrap().starts_with("text/html"));
    assert!(
        get(server.address, "/page/chat.js").header("content-type").unwrap().starts_with("text/javascript")
    );
    for path in [
        "/page/",
        "/page/index.html",
        "/page/..%2fCargo.toml",
        "/page/%2e%2e/Cargo.toml",
        "/page/chat.js/x",
        "/pages",
    ] {
        assert!(matches!(get(server.address, path).status, 401 | 404), "{path}");
    }
    assert_eq!(get(server.address, "/v1/models").status, 401);
    assert_eq!(get(server.address, "/v1/metrics").status, 401);
    assert_eq!(receive(send(server.address, "POST", "/", &[], b"{}")).status, 405);
    // The page's own requests have its origin.
    let origin = format!("http://{}", server.address);
    let headers = [("origin", origin.as_str()), ("authorization", "Bearer sk-0123456789abcdef")];
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 });
    assert_eq!(post_as(server.address, "/v1/chat/completions", &headers, &body).status, 200);
}

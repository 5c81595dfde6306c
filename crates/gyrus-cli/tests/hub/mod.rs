//! A hub on this machine, and a cache to pull into.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use gyrus_testkit::Rng;
use gyrus_testkit::tempfile::{TempDir, tempdir};
use sha2::Digest as _;

use crate::server::{Answer, Request, Server};

pub(crate) const NAME: &str = "hf:owner/repo/model.gguf";
pub(crate) const HUB_PATH: &str = "/owner/repo/resolve/main/model.gguf";
pub(crate) const STORE_PATH: &str = "/store/0123?signature=x";

pub(crate) fn content() -> Vec<u8> {
    Rng::new(7).bytes(1 << 20)
}

pub(crate) fn sha256(content: &[u8]) -> String {
    sha2::Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An empty cache.
pub(crate) struct Cache(pub(crate) TempDir);

impl Cache {
    pub(crate) fn new() -> Cache {
        Cache(tempdir().unwrap())
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.0.path().join("cache")
    }

    pub(crate) fn command(&self, endpoint: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gyrus"));
        command.args(args).env("GYRUS_CACHE", self.root()).env("HF_ENDPOINT", endpoint);
        command.env("GYRUS_DEVICE", "cpu");
        for name in [
            "HF_TOKEN",
            "GYRUS_OFFLINE",
            "SSL_CERT_FILE",
            "http_proxy",
            "HTTP_PROXY",
            "ALL_PROXY",
            "all_proxy",
        ] {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn gyrus(&self, server: &Server, args: &[&str]) -> Output {
        self.command(&server.url, args).output().unwrap()
    }

    /// Pulls the model, which must work, and returns its content.
    pub(crate) fn pull(&self, server: &Server) -> Vec<u8> {
        let output = self.gyrus(server, &["pull", NAME]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let path = self.root().join("models/hf/owner/repo/model.gguf");
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}\n", path.display()));
        assert_eq!(
            self.files(),
            ["models/hf/owner/repo/model.gguf", "models/hf/owner/repo/model.gguf.origin.json"]
        );
        fs::read(path).unwrap()
    }

    /// Pulls the model, which must fail, and returns the one line that says why.
    pub(crate) fn failure(&self, server: &Server) -> String {
        let output = self.gyrus(server, &["pull", NAME]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(output.stdout.is_empty());
        let errors: Vec<String> =
            said(&output).lines().filter(|line| line.starts_with("error: ")).map(str::to_owned).collect();
        assert_eq!(errors.len(), 1, "{}", said(&output));
        errors[0].replace(&server.url, "URL")
    }

    /// All files below the cache's folder, by their paths inside it.
    pub(crate) fn files(&self) -> Vec<String> {
        fn walk(folder: &Path, root: &Path, files: &mut Vec<String>) {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    walk(&path, root, files);
                } else {
                    files.push(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
                }
            }
        }
        let mut files = Vec::new();
        walk(&self.root(), &self.root(), &mut files);
        files.sort();
        files
    }

    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.files(), Vec::<String>::new());
        assert!(!self.root().exists(), "empty folders are left");
    }
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A hub as the real one: it describes the file and redirects to a store, which knows ranges.
pub(crate) fn hub(
    content: Vec<u8>,
    store: impl Fn(&Request, Answer, usize) -> Answer + Send + Sync + 'static,
) -> Server {
    let (tag, size) = (format!("\"{}\"", sha256(&content)), content.len().to_string());
    Server::start(move |request, before| {
        if request.path == HUB_PATH {
            let headers = [("x-linked-etag", &*tag), ("x-linked-size", &size), ("location", STORE_PATH)];
            return Answer::new(302, &headers, b"moved, for now");
        }
        assert_eq!(request.path, STORE_PATH);
        store(request, ranged(request, &content), before)
    })
}

/// The content from where the request asks for it.
pub(crate) fn ranged(request: &Request, content: &[u8]) -> Answer {
    let Some(from) = request.range_from() else {
        return Answer::new(200, &[("accept-ranges", "bytes")], content);
    };
    let range = format!("bytes {from}-{}/{}", content.len() - 1, content.len());
    Answer::new(206, &[("content-range", &range)], &content[from..])
}

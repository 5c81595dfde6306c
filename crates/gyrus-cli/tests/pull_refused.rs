//! What `gyrus pull` refuses, and how it says so, with a server on this machine for the hub.

#![cfg(feature = "download")]

mod hub;
mod server;

use std::fs;
use std::time::{Duration, Instant};

use gyrus_testkit::Rng;

use hub::{Cache, HUB_PATH, NAME, content, hub, ranged, said, sha256};
use server::{Answer, Server};

#[test]
fn a_wrong_checksum_is_refused() {
    let (cache, content) = (Cache::new(), content());
    let mut other = content.clone();
    other[99] ^= 1;
    let sent = other.clone();
    let server = hub(content.clone(), move |request, _, _| ranged(request, &sent));
    assert_eq!(
        cache.failure(&server),
        format!(
            "error: cannot pull {NAME}: wrong checksum: expected SHA-256 {}, found {}; the file was removed",
            sha256(&content),
            sha256(&other)
        )
    );
    cache.assert_empty();
}

#[test]
fn a_wrong_length_is_refused() {
    for sent in [1000, 2 << 20] {
        let cache = Cache::new();
        let server = hub(content(), move |_, _, _| Answer::new(200, &[], &vec![0; sent]));
        let expected = format!(
            "error: cannot pull {NAME}: wrong size: the hub says that it has 1048576 bytes, the server sends {sent}"
        );
        assert_eq!(cache.failure(&server), expected);
        cache.assert_empty();
    }
    // Without a length of its own the server cannot send more than the hub says.
    let cache = Cache::new();
    let server = hub(content(), |_, _, _| Answer::exactly(200, &[], &vec![0; 2 << 20]));
    assert!(cache.failure(&server).ends_with("more than the expected 1048576 bytes came"));
    cache.assert_empty();
    // A range other than the one asked for is not pasted in.
    let cache = Cache::new();
    let server = hub(content(), |request, answer, _| match request.range_from() {
        None => answer.cut(100_000),
        Some(_) => Answer::new(206, &[("content-range", "bytes 5-9/1048576")], b"wrong"),
    });
    assert!(
        cache
            .failure(&server)
            .ends_with("asked for the bytes from 100000 on, the server sent those from 5 on")
    );
}

#[test]
fn refusals_are_explained() {
    for (status, token, reason) in [
        (404, None, "the hub has no such file (404); URL/owner/repo/tree/main lists what there is"),
        (
            401,
            None,
            "the hub refuses access (401): URL/owner/repo does not exist, or is private; set HF_TOKEN to a token that may read it",
        ),
        (
            401,
            Some("hf_secret"),
            "the hub refuses access (401): URL/owner/repo does not exist, or is private; the token in HF_TOKEN may not read it",
        ),
        (
            403,
            Some("hf_secret"),
            "the hub refuses access (403): URL/owner/repo asks for its terms to be accepted first; the token in HF_TOKEN may not read it",
        ),
        (500, None, "the hub answers 500"),
        (204, None, "the hub answers 204"),
    ] {
        let cache = Cache::new();
        let server =
            Server::start(move |_, _| Answer::new(status, &[("x-error-message", "because of this")], b""));
        let mut command = cache.command(&server.url, &["pull", NAME]);
        if let Some(token) = token {
            command.env("HF_TOKEN", token);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let line = said(&output).replace(&server.url, "URL");
        assert!(line.starts_with(&format!("error: cannot pull {NAME}: {reason}")), "{line}");
        assert!(line.ends_with("; it says: because of this\n") && !line.contains("secret"), "{line}");
        cache.assert_empty();
    }
}

/// What has no known length could fill the disk, whatever its checksum.
#[test]
fn a_file_of_unknown_length_is_refused() {
    let content = content();
    let tag = format!("\"{}\"", sha256(&content));
    let chunks = [b"100000\r\n", &content[..], b"\r\n0\r\n\r\n"].concat();
    for (headers, body) in [(&[][..], &content), (&[("transfer-encoding", "chunked")], &chunks)] {
        for tagged in [false, true] {
            let cache = Cache::new();
            let (answer, tag) = (Answer::exactly(200, headers, body), tag.clone());
            let server = Server::start(move |request, _| match &*request.method {
                "HEAD" if tagged => Answer::exactly(200, &[("etag", &tag)], b""),
                "HEAD" => Answer::new(405, &[], b""),
                _ => answer.clone(),
            });
            let line = cache.failure(&server);
            assert!(line.ends_with("neither the hub nor the server says how long the file is"), "{line}");
            cache.assert_empty();
        }
    }
}

#[test]
fn redirects_are_followed_and_the_token_stays_with_the_hub() {
    let (cache, content) = (Cache::new(), content());
    let sent = content.clone();
    let store = Server::start(move |request, _| ranged(request, &sent));
    let (away, tag) = (format!("{}/blob", store.url), sha256(&content));
    let server = Server::start(move |request, _| {
        if request.path == HUB_PATH {
            // The repository has another name now.
            return Answer::new(307, &[("location", "/new/name/resolve/main/model.gguf")], b"");
        }
        let headers = [("x-linked-etag", &*tag), ("x-linked-size", "1048576"), ("location", &away)];
        Answer::new(302, &headers, b"")
    });
    let output = cache.command(&server.url, &["pull", NAME]).env("HF_TOKEN", "hf_secret").output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(server.requests().len(), 4);
    assert!(server.requests().iter().all(|r| r.header("authorization") == Some("Bearer hf_secret")));
    assert_eq!(store.requests().len(), 1);
    assert!(store.requests().iter().all(|r| r.header("authorization").is_none()));

    let cache = Cache::new();
    let circle = Server::start(|_, _| Answer::new(302, &[("location", HUB_PATH)], b""));
    assert!(cache.failure(&circle).ends_with("more than 10 redirects"));
    for location in ["file:///etc/passwd", "ftp://x/y"] {
        let server = Server::start(move |_, _| Answer::new(302, &[("location", location)], b""));
        assert!(cache.failure(&server).ends_with("which is no secure address"));
    }
    cache.assert_empty();
}

#[test]
fn a_server_that_speaks_no_http_is_an_error() {
    let junk = Rng::new(5).bytes(5000);
    for bytes in
        [&b""[..], b"\r\n\r\n", b"220 ftp ready\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n", &junk]
    {
        let (cache, bytes) = (Cache::new(), bytes.to_vec());
        let server = Server::start(move |_, _| Answer::raw(&bytes));
        let line = cache.failure(&server);
        assert!(line.starts_with(&format!("error: cannot pull {NAME}: ")), "{line}");
        cache.assert_empty();
    }
    // A head that never ends is not read for ever.
    let cache = Cache::new();
    let head = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'y'; 4 << 20]].concat();
    let server = Server::start(move |_, _| Answer::raw(&head));
    cache.failure(&server);
    cache.assert_empty();
}

#[test]
fn without_a_network_the_reason_is_given() {
    let cache = Cache::new();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let started = Instant::now();
    let output = cache.command(&format!("http://127.0.0.1:{port}"), &["pull", NAME]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = said(&output);
    assert!(
        line.starts_with(&format!("error: cannot pull {NAME}: cannot reach http://127.0.0.1:{port}: ")),
        "{line}"
    );
    assert!(started.elapsed() < Duration::from_secs(5));

    let server = hub(content(), |_, answer, _| answer);
    let output = cache.command(&server.url, &["pull", NAME]).env("GYRUS_OFFLINE", "1").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output), format!("error: {NAME} is not in the cache, and GYRUS_OFFLINE is set\n"));
    assert!(server.requests().is_empty());

    for endpoint in ["nonsense", "ftp://127.0.0.1", "http://"] {
        let output = cache.command(endpoint, &["pull", NAME]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains("HF_ENDPOINT: "), "{}", said(&output));
    }
    cache.assert_empty();
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let cache = Cache::new();
    fs::write(cache.root(), "a file").unwrap();
    let server = hub(content(), |_, answer, _| answer);
    for name in [NAME, "smollm2-135m", "tales-7m"] {
        let output = cache.gyrus(&server, &["pull", name]);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(said(&output).lines().count(), 1);
        assert!(said(&output).contains(cache.root().to_str().unwrap()), "{}", said(&output));
    }
    assert!(server.requests().is_empty());
    assert_eq!(fs::read(cache.root()).unwrap(), b"a file");
}

#[test]
fn names_that_are_none_are_refused() {
    let cache = Cache::new();
    let server = hub(content(), |_, answer, _| answer);
    for name in [
        "",
        "smollm",
        "hf:",
        "hf:a",
        "hf:a/",
        "hf:a/b/",
        "hf:a/b/../c",
        "hf:../../etc/passwd",
        "./model.gguf",
        "hf:a/b/c\u{1b}[31m",
    ] {
        let output = cache.gyrus(&server, &["pull", name]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert_eq!(said(&output).lines().count(), 1, "{name}");
        assert!(!said(&output).contains('\u{1b}'));
    }
    for args in [&["pull"][..], &["pull", "a", "b"], &["pull", "a", "--force", "--verify"], &["models", "x"]]
    {
        assert_eq!(cache.gyrus(&server, args).status.code(), Some(2), "{args:?}");
    }
    assert!(server.requests().is_empty());
    cache.assert_empty();
}

//! Hostile clients: right statuses, bounded memory, and others unharmed.

mod common;

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::client::{get, post, post_as, receive, receive_head, send};
use common::{config, start};
use gyrus_server::Config;
use serde_json::json;

/// The key of the server that has one.
const KEY: &str = "sk-right-0123456789";
/// Bytes of memory by which an attack may leave the server larger: those that the allocator keeps.
const KEPT: u64 = 64 << 20;

fn works(address: SocketAddr) {
    let bearer = format!("Bearer {KEY}");
    let body = json!({ "prompt": "Once", "max_tokens": 3 });
    let reply = post_as(address, "/v1/completions", &[("authorization", bearer.as_str())], &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// Bytes of memory that this process has in use.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

/// Sets a flag when it is dropped, also by a panic.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Attacks a server, which serves others before it, meanwhile and after it, and does not grow. One attack runs at a time,
/// since the memory is that of the process.
fn attacked(config: Config, attack: impl FnOnce(SocketAddr)) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(server) = start(config) else { return };
    works(server.address);
    let before = resident();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        // A request begins with the attack, and others follow it until the attack has ended.
        scope.spawn(|| {
            loop {
                works(server.address);
                if is_over.load(Ordering::Acquire) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        attack(server.address);
    });
    works(server.address);
    if let (Some(before), Some(after)) = (before, resident()) {
        assert!(after < before + KEPT, "{before} to {after} bytes");
    }
}

/// Connects with limits of time, after which reads and writes fail as those of a server that holds the connection.
fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// What comes until the server closes the connection, which it must: a limit of time is a failure.
#[track_caller]
fn until_closed(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        let is_open = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!is_open, "the connection is still open: {error}");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn bodies_that_are_too_large_are_not_read() {
    attacked(config(), |address| {
        let head = |length: &str| {
            format!("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n")
        };
        // One that is only announced is refused before it comes.
        let mut stream = connect(address);
        stream.write_all(head("Content-Length: 104857600").as_bytes()).unwrap();
        assert_eq!(receive_head(&mut BufReader::new(stream)).0, 413);
        for length in ["Content-Length: 104857600", "Transfer-Encoding: chunked"] {
            let mut stream = connect(address);
            stream.write_all(head(length).as_bytes()).unwrap();
            // Read at once: a reset, since the server leaves bytes unread, may swallow an answer that waits.
            let mut reader = stream.try_clone().unwrap();
            let answer = std::thread::spawn(move || {
                let mut start = [0; 12];
                reader.read_exact(&mut start).map(|()| String::from_utf8_lossy(&start).into_owned())
            });
            // 100 MB of JSON, in pieces, until the server has enough.
            let piece = [b"100000\r\n".to_vec(), vec![b'['; 1 << 20], b"\r\n".to_vec()].concat();
            let piece = if length.starts_with("Transfer") { &piece[..] } else { &piece[8..piece.len() - 2] };
            let sent = (0..100).take_while(|_| stream.write_all(piece).is_ok()).count();
            // The limit is 8 MiB; buffers of both sides hold some more.
            assert!(sent < 40, "{length}: {sent} MiB were taken");
            match answer.join().unwrap() {
                Ok(start) => assert_eq!(start, "HTTP/1.1 413", "{length}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{length}: {error}"),
            }
        }
    });
}

#[test]
fn malformed_bodies_are_refused_with_a_reason() {
    attacked(config(), |address| {
        let deep = "[".repeat(100_000);
        let nested = format!("{{\"messages\": {deep}");
        let wide = format!("{{\"messages\": [{}]}}", vec!["0"; 200_000].join(","));
        let keys: Vec<String> = (0..50_000).map(|n| format!("\"k{n}\": 0")).collect();
        let many = format!("{{{}}}", keys.join(","));
        for body in [
            deep.as_bytes(),
            nested.as_bytes(),
            wide.as_bytes(),
            many.as_bytes(),
            b"\xff\xfe\x00",
            b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xff\"}]}",
            b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}",
            b"{\"temperature\": 1e999, \"messages\": []}",
            b"",
            b"null",
            b"{\"messages\"",
        ] {
            for path in [
                "/v1/chat/completions",
                "/v1/completions",
                "/v1/responses",
                "/v1/messages",
                "/api/chat",
                "/api/generate",
                "/completion",
                "/infill",
                "/tokenize",
                "/apply-template",
            ] {
                let reply = receive(send(address, "POST", path, &[], body));
                assert_eq!(reply.status, 400, "{path}: {}", reply.text());
                assert!(reply.json().get("error").is_some());
                assert!(reply.body.len() < 2000, "{path}: {}", reply.body.len());
            }
        }
    });
}

#[test]
fn prompts_that_are_too_long_are_refused_at_once() {
    attacked(config(), |address| {
        let body = json!({ "prompt": "word ".repeat(200_000), "max_tokens": 1 });
        let started = Instant::now();
        let reply = post(address, "/v1/completions", &body);
        assert_eq!(
            (reply.status, reply.json()["error"]["code"].as_str()),
            (400, Some("context_length_exceeded"))
        );
        assert!(started.elapsed() < Duration::from_secs(30));
        let ids = post(address, "/v1/completions", &json!({ "prompt": [4_000_000_000u32] }));
        assert_eq!(ids.status, 400, "{}", ids.text());
    });
}

#[test]
fn slow_headers_and_bodies_are_cut_off() {
    let time = Duration::from_secs(2);
    attacked(Config { header_timeout: time, body_timeout: time, connections: 16, ..config() }, |address| {
        let started = Instant::now();
        // Nearly as many as there may be, each with a header that never ends. They are closed without an answer.
        let slow: Vec<TcpStream> = (0..14)
            .map(|_| {
                let mut stream = connect(address);
                stream.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: loc").unwrap();
                stream
            })
            .collect();
        // All of them are open while others are served.
        works(address);
        assert!(started.elapsed() < time, "{:?}", started.elapsed());
        for stream in slow {
            let text = until_closed(stream);
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
        }
        let took = started.elapsed();
        assert!(took >= time && took < Duration::from_secs(15), "{took:?}");
        let mut stream = connect(address);
        stream
            .write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
            .unwrap();
        assert_eq!(receive_head(&mut BufReader::new(stream)).0, 408);
    });
}

#[test]
fn floods_of_headers_are_refused() {
    attacked(config(), |address| {
        let head = |headers: &str| format!("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
        let many = |count: usize| (0..count).map(|n| format!("x-{n}: 1\r\n")).collect::<String>();
        let ask = |headers: &str| {
            let mut stream = connect(address);
            // A server that has enough may close before it has all of it.
            let _ = stream.write_all(head(headers).as_bytes());
            stream
        };
        assert_eq!(receive_head(&mut BufReader::new(ask(&many(90)))).0, 200);
        // As much as the server reads at once, so that nothing swallows its answer.
        assert_eq!(receive_head(&mut BufReader::new(ask(&many(120)))).0, 431);
        for headers in [many(2000), format!("x-large: {}\r\n", "a".repeat(1 << 20))] {
            let text = until_closed(ask(&headers));
            assert!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
        }
    });
}

#[test]
fn paths_and_methods_that_do_not_exist_are_told_so() {
    attacked(config(), |address| {
        for (path, part) in [
            ("/v1/nothing", "error"),
            ("/../../etc/passwd", "error"),
            ("/%2e%2e/etc/passwd", "error"),
            ("/api/nothing", "error"),
            ("/v1/models/..%2f..%2fetc%2fpasswd", "model_not_found"),
        ] {
            let reply = get(address, path);
            assert_eq!(reply.status, 404, "{path}");
            assert!(reply.text().contains(part), "{path}: {}", reply.text());
        }
        let wrong = get(address, "/v1/chat/completions");
        assert_eq!(wrong.status, 405);
        assert!(wrong.text().contains("takes POST"), "{}", wrong.text());
    });
}

#[test]
fn wrong_keys_at_speed_harm_nobody() {
    attacked(Config { api_key: Some(KEY.to_owned()), ..config() }, |address| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..100 {
                        let wrong = format!("Bearer sk-wrong-{n}");
                        let headers = [("authorization", wrong.as_str())];
                        let reply = receive(send(address, "POST", "/v1/completions", &headers, b"{}"));
                        assert_eq!(reply.status, 401);
                    }
                });
            }
            (0..5).for_each(|_| works(address));
        });
    });
}

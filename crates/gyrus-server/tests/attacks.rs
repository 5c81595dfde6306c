//! Hostile clients: right statuses, bounded memory, and others unharmed.

mod common;

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::client::{get, post, receive, receive_head, send};
use common::{config, start};
use gyrus_server::Config;
use serde_json::json;

fn works(address: SocketAddr) {
    let reply = post(address, "/v1/completions", &json!({ "prompt": "Once", "max_tokens": 3 }));
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// Bytes of memory that this process has in use.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

#[test]
fn bodies_that_are_too_large_are_not_read() {
    let Some(server) = start(config()) else { return };
    works(server.address);
    let before = resident();
    for head in ["Content-Length: 104857600\r\n", "Transfer-Encoding: chunked\r\n"] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{head}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        // 100 MB of JSON, in pieces, until the server has enough.
        let piece = [b"100000\r\n".to_vec(), vec![b'['; 1 << 20], b"\r\n".to_vec()].concat();
        let is_chunked = head.starts_with("Transfer");
        for _ in 0..100 {
            let piece = if is_chunked { &piece[..] } else { &piece[8..piece.len() - 2] };
            if stream.write_all(piece).is_err() {
                break;
            }
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        // A reset may swallow the answer; nothing else may be answered.
        let text = String::from_utf8_lossy(&answer);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 413"), "{text}");
    }
    let announced = send(server.address, "POST", "/v1/chat/completions", &[], &[]);
    drop(announced);
    if let (Some(before), Some(after)) = (before, resident()) {
        assert!(after < before + (64 << 20), "{before} to {after} bytes");
    }
    works(server.address);
}

#[test]
fn malformed_bodies_are_refused_with_a_reason() {
    let Some(server) = start(config()) else { return };
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
            let reply = receive(send(server.address, "POST", path, &[], body));
            assert_eq!(reply.status, 400, "{path}: {}", reply.text());
            assert!(reply.json().get("error").is_some());
            assert!(reply.body.len() < 2000, "{path}: {}", reply.body.len());
        }
    }
    works(server.address);
}

#[test]
fn prompts_that_are_too_long_are_refused_at_once() {
    let Some(server) = start(config()) else { return };
    works(server.address);
    let body = json!({ "prompt": "word ".repeat(200_000), "max_tokens": 1 });
    let started = Instant::now();
    let reply = post(server.address, "/v1/completions", &body);
    assert_eq!(
        (reply.status, reply.json()["error"]["code"].as_str()),
        (400, Some("context_length_exceeded"))
    );
    assert!(started.elapsed() < Duration::from_secs(30));
    let ids = post(server.address, "/v1/completions", &json!({ "prompt": [4_000_000_000u32] }));
    assert_eq!(ids.status, 400, "{}", ids.text());
    works(server.address);
}

#[test]
fn slow_headers_and_bodies_are_cut_off() {
    let time = Duration::from_millis(400);
    let Some(server) =
        start(Config { header_timeout: time, body_timeout: time, connections: 16, ..config() })
    else {
        return;
    };
    works(server.address);
    // As many as there may be, each with a header that never ends.
    let mut slow: Vec<TcpStream> = (0..16).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    for stream in &mut slow {
        stream.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: loc").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    let started = Instant::now();
    for mut stream in slow {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 408"), "{text}");
    }
    assert!(started.elapsed() < Duration::from_secs(15));
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
        .write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        .unwrap();
    assert_eq!(receive_head(&mut BufReader::new(stream)).0, 408);
    works(server.address);
}

#[test]
fn floods_of_headers_are_refused() {
    let Some(server) = start(config()) else { return };
    let many: String = (0..2000).map(|n| format!("x-{n}: 1\r\n")).collect();
    let large = format!("x-large: {}\r\n", "a".repeat(1 << 20));
    for headers in [many, large] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = stream
            .write_all(format!("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
    }
    works(server.address);
}

#[test]
fn paths_and_methods_that_do_not_exist_are_told_so() {
    let Some(server) = start(config()) else { return };
    for (path, part) in [
        ("/v1/nothing", "error"),
        ("/../../etc/passwd", "error"),
        ("/%2e%2e/etc/passwd", "error"),
        ("/api/nothing", "error"),
        ("/v1/models/..%2f..%2fetc%2fpasswd", "model_not_found"),
    ] {
        let reply = get(server.address, path);
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.text().contains(part), "{path}: {}", reply.text());
    }
    let wrong = get(server.address, "/v1/chat/completions");
    assert_eq!(wrong.status, 405);
    assert!(wrong.text().contains("takes POST"), "{}", wrong.text());
}

#[test]
fn wrong_keys_at_speed_harm_nobody() {
    let key = Some("sk-right-0123456789".to_owned());
    let Some(server) = start(Config { api_key: key, ..config() }) else { return };
    let right = [("authorization", "Bearer sk-right-0123456789")];
    let body = json!({ "prompt": "Once", "max_tokens": 3 }).to_string();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..100 {
                    let wrong = format!("Bearer sk-wrong-{n}");
                    let headers = [("authorization", wrong.as_str())];
                    assert_eq!(
                        receive(send(server.address, "POST", "/v1/completions", &headers, b"{}")).status,
                        401
                    );
                }
            });
        }
        for _ in 0..5 {
            let reply = receive(send(server.address, "POST", "/v1/completions", &right, body.as_bytes()));
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    });
}

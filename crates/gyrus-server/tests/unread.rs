//! Streams that nobody reads. A binary of its own: it measures the memory of its process.

mod common;

use std::io::Read;
use std::time::{Duration, Instant};

use common::client::{is_idle, metrics, post, send, wait_for};
use common::{config, resident, start};
use gyrus_server::Config;
use serde_json::json;

/// Streams that nobody reads hold as much as buffers of sockets do, and nobody waits for them: others are served while they
/// are open, and they lose their slots.
#[test]
fn clients_that_never_read_lose_their_slots_and_harm_nobody() {
    let patience = Duration::from_secs(2);
    let Some(server) = start(Config { write_timeout: patience, parallel: 8, queue: 8, ..config() }) else {
        return;
    };
    let small = json!({ "prompt": "a", "max_tokens": 3 });
    assert_eq!(post(server.address, "/v1/completions", &small).status, 200);
    // Alternatives of many tokens: more than the buffers of both sides hold. Places are left for others.
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 450, "ignore_eos": true,
        "stream": true, "logprobs": true, "top_logprobs": 20, "n": 6 });
    let before = resident();
    let started = Instant::now();
    let stream = send(server.address, "POST", "/v1/chat/completions", &[], body.to_string().as_bytes());
    wait_for(server.address, |now| now["in_flight"] == 6);
    // It is still open when others have been answered.
    let mut served = 0;
    while started.elapsed() < patience / 2 {
        assert_eq!(post(server.address, "/v1/completions", &small).status, 200);
        served += 1;
        if let (Some(before), Some(now)) = (before, resident()) {
            assert!(now < before + (32 << 20), "{before} to {now} bytes");
        }
    }
    assert!(served > 0);
    wait_for(server.address, is_idle);
    // What was sent ends where the buffers were full: the server gave up the rest.
    let mut sent = Vec::new();
    let _ = (&stream).read_to_end(&mut sent);
    assert!(!sent.ends_with(b"0\r\n\r\n"), "{} bytes were all of it: nothing was full", sent.len());
    assert_eq!(metrics(server.address)["disconnected"], 1);
    assert_eq!(post(server.address, "/v1/completions", &small).status, 200);
}

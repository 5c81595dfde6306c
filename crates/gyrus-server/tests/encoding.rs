//! Encoding and decoding beside other requests: places, threads, time limits, limits of keys.

mod common;

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::client::{metrics, post, post_as, receive, receive_head, send, wait_for};
use common::{TestSource, config, start, start_with};
use gyrus_server::Config;
use gyrus_testkit::tempfile;
use serde_json::{Value, json};

/// A text of 4 MB, whose tokens take a thread for long.
fn text() -> String {
    "Once upon a time there was a little fox. ".repeat(100_000)
}

/// The routes that encode or decode, with a body for each.
fn bodies(text: &str) -> [(&'static str, Value); 5] {
    let messages = json!([{ "role": "user", "content": text }]);
    [
        ("/tokenize", json!({ "content": text })),
        ("/v1/tokenize", json!({ "text": text })),
        ("/detokenize", json!({ "tokens": vec![300; text.len() / 4] })),
        ("/apply-template", json!({ "messages": messages })),
        ("/v1/messages/count_tokens", json!({ "messages": messages })),
    ]
}

fn begin(address: SocketAddr, path: &str, body: &Value) -> TcpStream {
    send(address, "POST", path, &[], body.to_string().as_bytes())
}

/// A template that uses up all that templates may, for messages that say so.
const SLOW: &str = "{% if messages[-1].content == 'slow' %}{% for i in range(9999) %}{% for j in range(9999) %}\
    {% set k = i %}{% endfor %}{% endfor %}{% endif %}{{ messages[-1].content }}";

/// More prompts than there are threads are counted for long. They wait for a few of the threads, so that generations begin.
#[test]
fn counting_leaves_threads_to_generations() {
    let folder = tempfile::tempdir().unwrap();
    let Some(source) = TestSource::with_template(SLOW, folder.path()) else { return };
    let server = start_with(Config { connections: 150, ..config() }, source);
    let small = json!({ "prompt": "a", "max_tokens": 1 });
    assert_eq!(post(server.address, "/v1/completions", &small).status, 200);
    let body = json!({ "messages": [{ "role": "user", "content": "slow" }] });
    let count = || begin(server.address, "/v1/messages/count_tokens", &body);
    let clients: Vec<TcpStream> = (0..96).map(|_| count()).collect();
    wait_for(server.address, |now| now["in_flight"].as_u64() >= Some(88));
    assert_eq!(post(server.address, "/v1/completions", &small).status, 200);
    let left = metrics(server.address)["in_flight"].as_u64().unwrap();
    // On the same threads it would come after those that wait: 64 of them had to have ended.
    assert!(left >= 64, "the generation waited until all but {left} of 96 prompts had been counted");
    // Those that wait end with their clients.
    let started = Instant::now();
    drop(clients);
    wait_for(server.address, |now| now["in_flight"] == 0);
    assert!(started.elapsed() < Duration::from_secs(20));
    assert_eq!(receive(count()).status, 400, "the template has its limits");
}

#[test]
fn encoding_takes_places_and_ends_in_time() {
    let Some(server) = start(Config { request_timeout: Duration::from_millis(10), ..config() }) else {
        return;
    };
    // The first request may spend its time on loading.
    while post(server.address, "/tokenize", &json!({ "content": "a" })).status != 200 {}
    let long = text().repeat(2);
    for (path, body) in bodies(&long).iter().filter(|(path, _)| *path != "/detokenize") {
        let started = Instant::now();
        let reply = receive(begin(server.address, path, body));
        assert_eq!(reply.status, 408, "{path}: {:.200}", reply.text());
        assert!(started.elapsed() < Duration::from_secs(30), "{path}: {:?}", started.elapsed());
        // The work that nobody waits for keeps its place until it has ended.
        wait_for(server.address, |now| now["in_flight"] == 0);
    }
}

#[test]
fn encoding_is_refused_beside_a_full_queue_and_a_full_key() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.toml");
    let file = "[[key]]\nname = 'one'\nkey = 'sk-one-0123456789'\nconcurrent = 1\n[[key]]\nname = 'two'\nkey = 'sk-two-0123456789'\n";
    std::fs::write(&keys, file).unwrap();
    let config = Config { keys: Some(keys), parallel: 1, queue: 1, ..config() };
    let Some(server) = start(config) else { return };
    let one = [("authorization", "Bearer sk-one-0123456789")];
    let two = [("authorization", "Bearer sk-two-0123456789")];
    let long = json!({ "prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true }).to_string();
    let stream = |key| {
        let mut reader =
            std::io::BufReader::new(send(server.address, "POST", "/v1/completions", key, long.as_bytes()));
        assert_eq!(receive_head(&mut reader).0, 200);
        reader
    };
    for (path, body) in bodies("a cat on the mat") {
        let free = post_as(server.address, path, &two, &body);
        assert_eq!(free.status, 200, "{path}: {}", free.text());
    }
    let first = stream(&one);
    for (path, body) in bodies("a cat on the mat") {
        let refused = post_as(server.address, path, &one, &body);
        assert_eq!(refused.status, 429, "{path}: {}", refused.text());
        assert!(refused.text().contains("\\\"one\\\""), "{path}: {}", refused.text());
    }
    let second = send(server.address, "POST", "/v1/completions", &two, long.as_bytes());
    let now = || receive(send(server.address, "GET", "/v1/metrics", &two, b"")).json();
    let started = Instant::now();
    while now()["in_flight"] != 2 {
        assert!(started.elapsed() < Duration::from_secs(30), "{}", now());
    }
    for (path, body) in bodies("a cat on the mat") {
        let refused = post_as(server.address, path, &two, &body);
        assert_eq!(refused.status, 429, "{path}: {}", refused.text());
        assert!(refused.text().contains("run or wait already"), "{path}: {}", refused.text());
    }
    drop((first, second));
}

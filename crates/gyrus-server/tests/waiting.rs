//! Requests that wait: for a model, for their prompt to be read, for their time to be over.

mod common;

use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use common::client::{get, is_idle, metrics, post, receive, send, wait_for};
use common::{TestSource, config, start, start_with};
use gyrus_server::Config;
use serde_json::{Value, json};

/// A body whose answer takes long.
fn long(stream: bool) -> Value {
    json!({ "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": true, "stream": stream })
}

#[test]
fn a_request_has_a_time_limit() {
    let Some(server) = start(config()) else { return };
    post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    let mut body = long(false);
    body["timeout"] = 0.005.into();
    let reply = post(server.address, "/v1/completions", &body);
    assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (408, Some("timeout_error")));
    let mut body = long(true);
    body["timeout"] = 0.005.into();
    let text = post(server.address, "/v1/completions", &body).text().to_owned();
    assert!(text.contains("time limit"), "{text}");
}

/// Prompts that take many steps to read. Their clients go away, and nothing of them is left long before they could be read.
#[test]
fn clients_that_go_away_while_their_prompts_are_read_free_their_slots() {
    let Some(source) = TestSource::tales() else { return };
    let options = gyrus::Options { chunk: 16, threads: Some(1), ..source.options.clone() };
    let server = start_with(config(), TestSource { options, ..source });
    post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    // Other ids each time, so that nothing is cached.
    let ask = |round: u32, number: u32| {
        let first = 8 * round + number;
        let ids: Vec<u32> = (0..500).map(|n| 300 + (first * 37 + n * (first + 7)) % 3000).collect();
        let body = json!({ "prompt": ids, "max_tokens": 1 });
        send(server.address, "POST", "/v1/completions", &[], body.to_string().as_bytes())
    };
    let started = Instant::now();
    let all: Vec<TcpStream> = (0..8).map(|number| ask(0, number)).collect();
    all.into_iter().for_each(|stream| assert_eq!(receive(stream).status, 200));
    let whole = started.elapsed();
    let mut fastest = Duration::MAX;
    for round in 1..=5 {
        let read = metrics(server.address)["total_prompt_tokens"].as_u64();
        let all: Vec<TcpStream> = (0..8).map(|number| ask(round, number)).collect();
        let asked = Instant::now();
        while metrics(server.address)["models"]["tales"]["kv_blocks_used"] == 0 {
            assert!(asked.elapsed() < Duration::from_secs(30));
        }
        let started = Instant::now();
        all.iter().for_each(|stream| stream.shutdown(Shutdown::Both).unwrap());
        wait_for(server.address, is_idle);
        // A prompt that is read is counted: if all were, the round shows nothing.
        let is_cut =
            metrics(server.address)["total_prompt_tokens"].as_u64() < read.map(|read| read + 8 * 500);
        fastest = if is_cut { fastest.min(started.elapsed()) } else { fastest };
    }
    assert!(fastest < whole / 8, "slots were free after {fastest:?}; the prompts take {whole:?}");
    assert!(metrics(server.address)["disconnected"].as_u64().unwrap() > 0);
}

/// A source whose models take long to load.
fn slow() -> Option<TestSource> {
    Some(TestSource { load_time: Duration::from_secs(6), ..TestSource::tales()? })
}

#[test]
fn the_time_limit_covers_waiting_for_a_model() {
    let Some(source) = slow() else { return };
    let server = start_with(Config { request_timeout: Duration::from_secs(2), ..config() }, source);
    let started = Instant::now();
    for (path, mut body) in [
        ("/v1/completions", long(false)),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": "a" }], "stream": true })),
    ] {
        body["timeout"] = 0.3.into();
        let reply = post(server.address, path, &body);
        assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (408, Some("timeout_error")));
    }
    let reply = post(server.address, "/tokenize", &json!({ "content": "a" }));
    assert_eq!(reply.status, 408, "{}", reply.text());
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}: before the model is loaded",
        started.elapsed()
    );
    wait_for(server.address, |now| now["in_flight"] == 0);
    // The load goes on for whoever comes next.
    let started = Instant::now();
    while get(server.address, "/v1/models/tales").json()["status"] != "ready" {
        assert!(started.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(20));
    }
    let reply = post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn the_end_of_a_drain_reaches_requests_that_wait_for_a_model() {
    let Some(source) = slow() else { return };
    let mut server = start_with(Config { drain: Duration::from_millis(100), ..config() }, source);
    let bodies = [("/v1/completions", long(true)), ("/tokenize", json!({ "content": "a" }))];
    let waiting =
        bodies.map(|(path, body)| send(server.address, "POST", path, &[], body.to_string().as_bytes()));
    wait_for(server.address, |now| now["in_flight"] == 2);
    server.stop();
    for stream in waiting {
        let reply = receive(stream);
        assert_eq!(reply.status, 503, "{}", reply.text());
        assert!(reply.text().contains("shutting down"), "{}", reply.text());
    }
}

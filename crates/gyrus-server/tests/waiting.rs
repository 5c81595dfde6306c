//! Requests that wait: for a model, for their prompt to be read, for their time to be over.

mod common;

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::client::{get, is_idle, metrics, post, receive, send, wait_for};
use common::{TestSource, config, start, start_preloading, start_with};
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

/// The status of `/health/ready`, and what it says.
fn readiness(address: SocketAddr) -> (u16, String) {
    let reply = get(address, "/health/ready");
    (reply.status, reply.json()["status"].as_str().unwrap().to_owned())
}

/// Waits until `/health/ready` says something other than this.
fn after(address: SocketAddr, status: &str) -> (u16, String) {
    let started = Instant::now();
    loop {
        let found = readiness(address);
        if found.1 != status {
            return found;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{found:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_is_ready_once_its_first_model_is_loaded() {
    let Some(source) = TestSource::tales() else { return };
    let source = TestSource { load_time: Duration::from_millis(700), ..source };
    let server = start_preloading(config(), source, &["tales"]);
    // At the first look, since a balancer may look at once.
    assert_eq!(readiness(server.address), (503, "loading model".to_owned()));
    assert_eq!(get(server.address, "/health/live").status, 200);
    assert_eq!(after(server.address, "loading model"), (200, "ok".to_owned()));
    assert_eq!(get(server.address, "/v1/models/tales").json()["status"], "ready");
    // Models that come and go do not make it unready, also if none is loaded meanwhile.
    post(server.address, "/v1/models/unload", &json!({ "model": "tales" }));
    assert_eq!(readiness(server.address).0, 200);
    let body = json!({ "model": "second", "prompt": "a", "max_tokens": 1 }).to_string();
    let waiting = send(server.address, "POST", "/v1/completions", &[], body.as_bytes());
    let started = Instant::now();
    while get(server.address, "/v1/models/second").json()["status"] != "loading" {
        assert!(started.elapsed() < Duration::from_secs(30));
    }
    assert_eq!(readiness(server.address).0, 200);
    assert_eq!(receive(waiting).status, 200);
}

#[test]
fn a_server_whose_first_model_cannot_be_loaded_is_not_ready() {
    let Some(source) = TestSource::tales() else { return };
    let server = start_preloading(config(), source, &["broken"]);
    let failed = (503, "the model could not be loaded".to_owned());
    assert_eq!(after(server.address, "loading model"), failed);
    let other = json!({ "model": "tales", "prompt": "a", "max_tokens": 1 });
    assert_eq!(post(server.address, "/v1/completions", &other).status, 200);
    assert_eq!(readiness(server.address), failed, "another model is no replacement");
    assert_eq!(get(server.address, "/health").status, 503);
    assert_eq!(get(server.address, "/health/live").status, 200);
}

#[test]
fn a_server_that_drains_says_so() {
    let Some(mut server) = start(config()) else { return };
    // A request whose body is not complete keeps the server from ending.
    let body = json!({ "prompt": "a", "max_tokens": 1 }).to_string();
    let mut running = TcpStream::connect(server.address).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n",
        server.address,
        body.len()
    );
    running.write_all(head.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    server.stop();
    // A connection without a request is closed when the drain begins.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(after(server.address, "ok"), (503, "shutting down".to_owned()));
    let reply = get(server.address, "/health");
    assert_eq!((reply.status, reply.header("connection")), (503, Some("close")));
    assert_eq!(get(server.address, "/health/live").status, 200);
    let refused = post(server.address, "/v1/completions", &json!({ "prompt": "a" }));
    assert_eq!((refused.status, refused.header("connection")), (503, Some("close")), "{}", refused.text());
    assert!(refused.header("retry-after").is_some());
    // A connection that asks nothing does not hold it up.
    let idle = TcpStream::connect(server.address).unwrap();
    assert!(server.is_running());
    running.write_all(body.as_bytes()).unwrap();
    assert_eq!(receive(running).status, 200, "what ran is answered");
    let started = Instant::now();
    server.wait();
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    drop(idle);
}

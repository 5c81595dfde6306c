//! Limits, keys, disconnects, shutdown.

mod common;

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::client::{
    get, is_idle, metrics, post, post_as, receive, receive_chunk, receive_head, send, wait_for,
};
use common::{TestSource, config, start, start_with};
use gyrus::Options;
use gyrus_server::{Config, KeepAlive};
use gyrus_testkit::tempfile;
use serde_json::{Value, json};

/// A body whose answer takes long.
fn long(stream: bool) -> Value {
    json!({ "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": true, "stream": stream })
}

#[test]
fn a_full_queue_refuses_before_any_work() {
    let Some(server) = start(Config { parallel: 2, queue: 1, ..config() }) else { return };
    post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    let running: Vec<TcpStream> = (0..3)
        .map(|_| send(server.address, "POST", "/v1/completions", &[], long(true).to_string().as_bytes()))
        .collect();
    wait_for(server.address, |now| now["in_flight"] == 3);
    let refused = post(server.address, "/v1/completions", &long(false));
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(refused.json()["error"]["code"], "queue_full");
    // A body that is never sent is not waited for.
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
        .write_all(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
        .unwrap();
    assert_eq!(receive_head(&mut BufReader::new(stream)).0, 429);
    for stream in running {
        let reply = receive(stream);
        assert_eq!((reply.status, reply.chunks().is_empty()), (200, false));
    }
    wait_for(server.address, is_idle);
    let many = post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1, "n": 4 }));
    // More choices than there ever are places: to try again would not help.
    assert_eq!((many.status, many.json()["error"]["param"].as_str()), (400, Some("n")), "{}", many.text());
    assert!(many.text().contains("4 sequences") && many.text().contains("at most 3"), "{}", many.text());
    let many = json!({ "prompt": ["a", "b"], "max_tokens": 1, "n": 2 });
    let many = post(server.address, "/v1/completions", &many);
    assert_eq!(
        (many.status, many.json()["error"]["param"].as_str()),
        (400, Some("prompt")),
        "{}",
        many.text()
    );
    assert_eq!(
        post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1, "n": 3 })).status,
        200
    );
}

#[test]
fn clients_that_go_away_free_their_slots() {
    let Some(server) = start(Config { parallel: 2, queue: 30, ..config() }) else { return };
    post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    let mut connections: Vec<TcpStream> = Vec::new();
    for at in 0..20 {
        connections.push(send(
            server.address,
            "POST",
            "/v1/completions",
            &[],
            long(at % 2 == 0).to_string().as_bytes(),
        ));
    }
    wait_for(server.address, |now| now["in_flight"] == 20);
    for connection in connections {
        connection.shutdown(Shutdown::Both).unwrap();
    }
    wait_for(server.address, is_idle);
    assert!(metrics(server.address)["disconnected"].as_u64().unwrap() > 10);
    let reply = post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    assert_eq!(reply.status, 200);
}

/// A request whose prompts are several is one of its key, and enters the queue as a whole.
#[test]
fn several_prompts_are_one_request_of_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.toml");
    std::fs::write(&keys, "[[key]]\nname = 'one'\nkey = 'sk-one-0123456789'\nconcurrent = 1\n").unwrap();
    let Some(server) = start(Config { keys: Some(keys), parallel: 4, queue: 4, ..config() }) else { return };
    let key = [("authorization", "Bearer sk-one-0123456789")];
    let ask = |body: Value| post_as(server.address, "/v1/completions", &key, &body);
    let reply = ask(json!({ "prompt": ["a", "b", "c", "d", "e"], "max_tokens": 2 }));
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["choices"].as_array().unwrap().len(), 5);
    // With another request there is no place for all of it, and no part of it begins.
    let mut body = long(false);
    body["prompt"] = json!(["a", "b", "c", "d"]);
    let all = send(server.address, "POST", "/v1/completions", &key, body.to_string().as_bytes());
    let now = || receive(send(server.address, "GET", "/v1/metrics", &key, b"")).json();
    let started = Instant::now();
    while now()["in_flight"] != 4 {
        assert!(started.elapsed() < Duration::from_secs(30), "{}", now());
    }
    let requests = now()["models"]["tales"]["total_requests"].clone();
    let refused = ask(json!({ "prompt": ["a", "b", "c", "d", "e"], "max_tokens": 1 }));
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (429, Some("queue_full")));
    let refused = ask(json!({ "prompt": ["a", "b"], "max_tokens": 1 }));
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (429, Some("rate_limit_exceeded"))
    );
    assert_eq!(now()["models"]["tales"]["total_requests"], requests);
    assert_eq!(receive(all).status, 200);
}

#[test]
fn keys_are_needed_and_limited() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.toml");
    let text = "
        [[key]]
        name = 'one'
        key = 'sk-one-0123456789'
        requests_per_minute = 4
        models = ['tales']
        [[key]]
        name = 'two'
        key = 'sk-two-0123456789'
        concurrent = 1
    ";
    std::fs::write(&keys, text).unwrap();
    let Some(server) = start(Config { keys: Some(keys), ..config() }) else { return };
    let body = json!({ "model": "tales", "prompt": "a", "max_tokens": 1 });
    let as_key =
        |header: &str, value: &str| post_as(server.address, "/v1/completions", &[(header, value)], &body);
    for (header, value) in [
        ("authorization", "Bearer sk-one-012345678"),
        ("authorization", "Basic sk-one-0123456789"),
        ("x-api-key", ""),
        ("x-other", "sk-one-0123456789"),
    ] {
        let reply = as_key(header, value);
        assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")));
        assert!(!reply.text().contains("0123456"), "a key is not repeated");
    }
    assert_eq!(get(server.address, "/v1/models").status, 401);
    assert_eq!(get(server.address, "/health").status, 200, "health needs no key");
    assert_eq!(as_key("authorization", "Bearer sk-one-0123456789").status, 200);
    assert_eq!(as_key("x-api-key", "sk-one-0123456789").status, 200);
    let other = json!({ "model": "second", "prompt": "a", "max_tokens": 1 });
    let key = [("authorization", "Bearer sk-one-0123456789")];
    assert_eq!(post_as(server.address, "/v1/completions", &key, &other).status, 404);
    let listed = receive(send(server.address, "GET", "/v1/models", &key, b"")).json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    assert_eq!(as_key("x-api-key", "sk-one-0123456789").status, 200);
    let refused = as_key("x-api-key", "sk-one-0123456789");
    assert_eq!(
        (refused.status, refused.json()["error"]["code"].as_str()),
        (429, Some("rate_limit_exceeded"))
    );
    assert!(refused.header("retry-after").is_some());
    // One request at a time.
    let two = [("authorization", "Bearer sk-two-0123456789")];
    let running = send(server.address, "POST", "/v1/completions", &two, long(true).to_string().as_bytes());
    let mut reader = BufReader::new(running);
    assert_eq!(receive_head(&mut reader).0, 200);
    assert_eq!(post_as(server.address, "/v1/completions", &two, &body).status, 429);
    drop(reader);
    let started = Instant::now();
    while post_as(server.address, "/v1/completions", &two, &body).status != 200 {
        assert!(started.elapsed() < Duration::from_secs(20));
    }
}

/// The scheduler admits higher priorities first, so a key that may have any would let others wait for ever.
#[test]
fn keys_limit_priorities() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.toml");
    let text = "
        [[key]]
        name = 'plain'
        key = 'sk-plain-0123456789'
        [[key]]
        name = 'first'
        key = 'sk-first-0123456789'
        priority = 5
    ";
    std::fs::write(&keys, text).unwrap();
    let ask = |address: SocketAddr, key: &str, priority: i32| {
        let body = json!({ "prompt": "a", "max_tokens": 1, "priority": priority });
        let bearer = format!("Bearer sk-{key}-0123456789");
        post_as(address, "/v1/completions", &[("authorization", bearer.as_str())], &body)
    };
    let Some(server) = start(Config { keys: Some(keys), ..config() }) else { return };
    for (key, priority, status) in [
        ("plain", 0, 200),
        ("plain", -3, 200),
        ("plain", 1, 403),
        ("plain", 1000, 403),
        ("first", 5, 200),
        ("first", 6, 403),
    ] {
        let reply = ask(server.address, key, priority);
        assert_eq!(reply.status, status, "{key} {priority}: {}", reply.text());
        if status == 403 {
            assert_eq!(reply.json()["error"]["param"], "priority", "{}", reply.text());
            assert!(reply.text().contains("may have priorities up to"), "{}", reply.text());
        }
    }
    let Some(open) = start(config()) else { return };
    assert_eq!(ask(open.address, "no", 1000).status, 200, "without keys there is no limit");
}

#[test]
fn origins_and_hosts_are_checked() {
    let cors = vec!["https://chat.example".to_owned()];
    let Some(server) = start(Config { cors, ..config() }) else { return };
    let get_as = |headers: &[(&str, &str)]| receive(send(server.address, "GET", "/v1/models", headers, b""));
    let allowed = get_as(&[("origin", "https://chat.example")]);
    assert_eq!(
        (allowed.status, allowed.header("access-control-allow-origin")),
        (200, Some("https://chat.example"))
    );
    let own = format!("http://{}", server.address);
    assert_eq!(get_as(&[("origin", own.as_str())]).status, 200);
    for origin in ["https://evil.example", "null", "https://chat.example.evil"] {
        let refused = get_as(&[("origin", origin)]);
        assert_eq!((refused.status, refused.header("access-control-allow-origin")), (403, None), "{origin}");
    }
    // A page that points its own name to this machine.
    assert_eq!(get_as(&[("host", "evil.example:8080")]).status, 403);
    assert_eq!(get_as(&[("host", "localhost:8080")]).status, 200);
    let preflight = [
        ("origin", "https://chat.example"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization, content-type"),
    ];
    let reply = receive(send(server.address, "OPTIONS", "/v1/chat/completions", &preflight, b""));
    assert_eq!(reply.status, 204);
    assert_eq!(reply.header("access-control-allow-headers"), Some("authorization, content-type"));
}

/// A server that others can reach and that has no keys can be reached by the same pages.
#[test]
fn hosts_are_checked_wherever_there_are_no_keys() {
    let open = Config { listen: "0.0.0.0:0".parse().unwrap(), insecure: true, ..config() };
    let hosts = vec!["chat.example".to_owned()];
    let Some(server) = start(Config { hosts, ..open.clone() }) else { return };
    let status = |address: SocketAddr, host: &str| {
        let headers = [("host", host), ("authorization", "Bearer sk-0123456789abcdef")];
        receive(send(address, "GET", "/v1/models", &headers, b"")).status
    };
    assert_eq!(status(server.address, "evil.example:8080"), 403);
    for host in ["localhost", "192.168.1.7:8080", "[::1]:8080", "chat.example", "Chat.Example:443"] {
        assert_eq!(status(server.address, host), 200, "{host}");
    }
    let key = Some("sk-0123456789abcdef".to_owned());
    let Some(server) = start(Config { api_key: key, ..open }) else { return };
    assert_eq!(status(server.address, "any.example"), 200, "a key is enough");
}

/// An image of another site's page is loaded without an origin.
#[test]
fn pages_of_other_sites_load_no_model() {
    let cors = vec!["https://chat.example".to_owned()];
    let Some(server) = start(Config { cors, ..config() }) else { return };
    let status =
        |headers: &[(&str, &str)]| receive(send(server.address, "GET", "/props", headers, b"")).status;
    for site in ["cross-site", "same-site"] {
        assert_eq!(status(&[("sec-fetch-site", site), ("sec-fetch-mode", "no-cors")]), 403);
    }
    assert_eq!(get(server.address, "/v1/models/tales").json()["status"], "unloaded");
    assert_eq!(status(&[("sec-fetch-site", "cross-site"), ("origin", "https://chat.example")]), 200);
    assert_eq!(status(&[("sec-fetch-site", "none")]), 200);
    assert_eq!(status(&[]), 200);
}

#[test]
fn running_requests_end_before_the_server_does() {
    let Some(mut server) = start(config()) else { return };
    post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    let mut streams: Vec<TcpStream> = Vec::new();
    for at in 0..6 {
        streams.push(send(
            server.address,
            "POST",
            "/v1/completions",
            &[],
            long(at % 2 == 0).to_string().as_bytes(),
        ));
    }
    wait_for(server.address, |now| now["in_flight"] == 6);
    let idle = send_kept(server.address);
    server.stop();
    for (at, stream) in streams.into_iter().enumerate() {
        let reply = receive(stream);
        assert_eq!(reply.status, 200);
        let reason = match at % 2 {
            0 => reply.chunks().last().unwrap()["choices"][0]["finish_reason"].clone(),
            _ => reply.json()["choices"][0]["finish_reason"].clone(),
        };
        assert_eq!(reason, "length", "no answer is lost");
    }
    server.wait();
    drop(idle);
}

/// A connection that stays open after a request.
fn send_kept(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut some = [0; 64];
    assert!(stream.read(&mut some).unwrap() > 0);
    stream
}

#[test]
fn what_runs_beyond_the_deadline_is_told_so() {
    let drain = Duration::from_millis(100);
    let Some(mut server) = start(Config { drain, parallel: 1, ..config() }) else { return };
    post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    let mut body = long(true);
    body["n"] = 8.into();
    let stream = send(server.address, "POST", "/v1/completions", &[], body.to_string().as_bytes());
    let mut reader = BufReader::new(stream);
    assert_eq!(receive_head(&mut reader).0, 200);
    server.stop();
    let mut all = Vec::new();
    while let Some(chunk) = receive_chunk(&mut reader) {
        all.extend(chunk);
    }
    let text = String::from_utf8(all).unwrap();
    assert!(text.contains("shutting down") && text.ends_with("data: [DONE]\n\n"), "{text}");
    let started = Instant::now();
    server.wait();
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn models_come_and_go() {
    let Some(server) = start(Config { keep_alive: KeepAlive::For(Duration::from_millis(300)), ..config() })
    else {
        return;
    };
    let state = |name: &str| get(server.address, &format!("/v1/models/{name}")).json()["status"].clone();
    let loaded = post(server.address, "/v1/models/load", &json!({ "model": "tales" }));
    assert_eq!((loaded.status, loaded.json()["context"].as_u64()), (200, Some(512)));
    assert_eq!(state("tales"), "ready");
    let started = Instant::now();
    while state("tales") != "unloaded" {
        assert!(started.elapsed() < Duration::from_secs(20), "an idle model goes");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Ollama's field keeps it, and a request is not cut by an unload.
    let body = json!({ "model": "tales", "prompt": "Once", "raw": true, "keep_alive": -1,
        "options": { "num_predict": 100 }, "stream": false });
    let running = send(server.address, "POST", "/api/generate", &[], body.to_string().as_bytes());
    wait_for(server.address, |now| now["in_flight"] == 1);
    let unloaded = post(server.address, "/v1/models/unload", &json!({ "model": "tales" }));
    assert_eq!(unloaded.json()["status"], "unloaded");
    let reply = receive(running).json();
    assert_eq!(
        (&reply["done"], reply["response"].as_str().is_some_and(|text| text.len() > 20)),
        (&json!(true), true)
    );
    assert_eq!(post(server.address, "/v1/models/unload", &json!({ "model": "nothing" })).status, 404);
}

#[test]
fn models_share_a_budget() {
    let Some(source) = TestSource::tales() else { return };
    let model = source.model();
    let one = model.weight_bytes() + model.context().cache_bytes;
    let server = start_with(Config { memory: Some(one + one / 2), ..config() }, source);
    let state = |name: &str| get(server.address, &format!("/v1/models/{name}")).json()["status"].clone();
    let ask = |model: &str| {
        post(server.address, "/v1/completions", &json!({ "model": model, "prompt": "a", "max_tokens": 1 }))
    };
    assert_eq!(ask("tales").status, 200);
    assert_eq!(ask("second").status, 200);
    assert_eq!((state("tales"), state("second")), (json!("unloaded"), json!("ready")));
    // A model in use stays.
    let mut body = long(true);
    body["model"] = "second".into();
    let stream = send(server.address, "POST", "/v1/completions", &[], body.to_string().as_bytes());
    wait_for(server.address, |now| now["in_flight"] == 1);
    let refused = ask("tales");
    assert_eq!((refused.status, refused.header("retry-after").is_some()), (503, true), "{}", refused.text());
    assert_eq!(receive(stream).status, 200);
    assert_eq!(ask("tales").status, 200);
}

/// The default KV cache takes what the budget leaves, whatever the machine has.
#[test]
fn a_budget_limits_the_default_cache() {
    let Some(mut source) = TestSource::tales() else { return };
    let weights = source.model().weight_bytes();
    // Far more tokens than fit the budget.
    source.options = Options { context: None, sessions: 128, ..source.options };
    let full = source.model().context().cache_bytes;
    let budget = weights + full / 4;
    let server = start_with(Config { memory: Some(budget), ..config() }, source);
    let body = json!({ "model": "tales", "prompt": "a", "max_tokens": 1 });
    let reply = post(server.address, "/v1/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

/// A model whose cache grows with the memory leaves idle ones loaded, if there is enough beside them.
#[test]
fn idle_models_stay_beside_one_that_is_loaded() {
    let Some(mut source) = TestSource::tales() else { return };
    source.options = Options { context: None, sessions: 128, ..source.options };
    let model = source.model();
    let budget = model.weight_bytes() + model.context().cache_bytes / 2 + 4 * common::MEMORY;
    let loads = Arc::clone(&source.loads);
    let server = start_with(Config { memory: Some(budget), ..config() }, source);
    for name in ["tales", "second", "tales", "second"] {
        let body = json!({ "model": name, "prompt": "a", "max_tokens": 1 });
        let reply = post(server.address, "/v1/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert_eq!(loads.load(Ordering::SeqCst), 2);
}

#[test]
fn health_metrics_and_ids_are_told() {
    let Some(server) = start(config()) else { return };
    for path in ["/health", "/health/live", "/health/ready"] {
        assert_eq!(get(server.address, path).json()["status"], "ok", "{path}");
    }
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = [("x-request-id", "mine-1"), ("traceparent", trace)];
    let reply = receive(send(server.address, "GET", "/v1/models", &headers, b""));
    assert_eq!((reply.header("x-request-id"), reply.header("traceparent")), (Some("mine-1"), Some(trace)));
    post(
        server.address,
        "/v1/completions",
        &json!({ "prompt": "Once upon", "max_tokens": 5, "ignore_eos": true }),
    );
    let text = get(server.address, "/metrics");
    assert!(text.header("content-type").unwrap().starts_with("text/plain"));
    for line in [
        "gyrus_generated_tokens_total{model=\"tales\"} 5",
        "gyrus_requests_total{model=\"tales\"} 1",
        "gyrus_http_responses_total{route=\"/v1/completions\",status=\"200\"} 1",
        "gyrus_first_token_seconds_count 1",
    ] {
        assert!(text.text().lines().any(|found| found == line), "{line}\n{}", text.text());
    }
    assert_eq!(metrics(server.address)["total_completion_tokens"], 5);
}

//! Embeddings, ranks and transcripts beside other requests: turns, time limits, clients that go away, limits of keys.

mod common;

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use common::client::{get, metrics, post, post_as, receive, send, wait_for};
use common::{config, start};
use gyrus_server::Config;
use gyrus_testkit::tempfile;
use serde_json::{Value, json};

/// A body whose vectors take much longer than a test.
fn long() -> String {
    json!({ "model": "bert", "input": vec!["cat ".repeat(120); 4000] }).to_string()
}

fn begin(address: SocketAddr, body: &str) -> TcpStream {
    send(address, "POST", "/v1/embeddings", &[], body.as_bytes())
}

/// More requests than the server has threads for CPU work wait for one model. Others are answered meanwhile, and clients that
/// go away end their work.
#[test]
fn requests_that_wait_for_a_model_hold_no_thread() {
    let Some(server) = start(Config { connections: 100, ..config() }) else { return };
    post(server.address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    let body = long();
    let waiting: Vec<TcpStream> = (0..40).map(|_| begin(server.address, &body)).collect();
    wait_for(server.address, |now| now["in_flight"] == 40);
    let started = Instant::now();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(get(server.address, "/v1/models").status, 200);
    let reply = post(server.address, "/v1/completions", &json!({ "prompt": "Once", "max_tokens": 3 }));
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    for stream in &waiting {
        stream.shutdown(Shutdown::Both).unwrap();
    }
    wait_for(server.address, |now| now["in_flight"] == 0);
    let now = metrics(server.address);
    assert_eq!(now["disconnected"], 40, "{now}");
    let read = now["models"]["bert"]["total_prompt_tokens"].as_u64().unwrap();
    assert!((1..40 * 4000 * 122).contains(&read), "what was computed is counted, and no more: {read}");
    let reply = post(server.address, "/v1/embeddings", &json!({ "model": "bert", "input": "a cat" }));
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn work_has_the_time_limit_of_requests() {
    let Some(server) = start(Config { request_timeout: Duration::from_millis(500), ..config() }) else {
        return;
    };
    let ranked = json!({ "model": "ranker", "query": "a cat", "documents": vec!["cat ".repeat(100); 4000] });
    for (path, body) in [("/v1/embeddings", long()), ("/v1/rerank", ranked.to_string())] {
        // The first request may spend its time on loading.
        for _ in 0..2 {
            let started = Instant::now();
            let reply = receive(send(server.address, "POST", path, &[], body.as_bytes()));
            assert_eq!((reply.status, reply.json()["error"]["type"].as_str()), (408, Some("timeout_error")));
            assert!(started.elapsed() < Duration::from_secs(20));
        }
        wait_for(server.address, |now| now["in_flight"] == 0);
    }
}

#[test]
fn work_beyond_the_drain_is_ended() {
    let Some(mut server) = start(Config { drain: Duration::from_millis(200), ..config() }) else { return };
    let stream = begin(server.address, &long());
    wait_for(server.address, |now| now["in_flight"] == 1);
    server.stop();
    let reply = receive(stream);
    assert_eq!(reply.status, 503, "{}", reply.text());
    let started = Instant::now();
    server.wait();
    assert!(started.elapsed() < Duration::from_secs(10));
}

/// A file of keys: one with a limit of tokens, one for a single model, and one for all.
fn keys(folder: &std::path::Path) -> Config {
    let path = folder.join("keys.toml");
    let text = "
        [[key]]
        name = 'limited'
        key = 'sk-limited-0123456789'
        tokens_per_minute = 5
        [[key]]
        name = 'restricted'
        key = 'sk-restricted-0123456789'
        models = ['bert']
        [[key]]
        name = 'all'
        key = 'sk-all-0123456789'
    ";
    std::fs::write(&path, text).unwrap();
    Config { keys: Some(path), ..config() }
}

#[test]
fn tokens_of_work_count_for_keys_and_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = start(keys(folder.path())) else { return };
    let all = [("authorization", "Bearer sk-all-0123456789")];
    let documents = ["the old bridge", "snow in winter"];
    for (path, body) in [
        ("/v1/embeddings", json!({ "model": "bert", "input": ["a cat on the mat", "the old bridge"] })),
        ("/v1/rerank", json!({ "model": "ranker", "query": "a ship", "documents": documents })),
    ] {
        let reply = post_as(server.address, path, &all, &body);
        assert_eq!(reply.status, 200, "{}", reply.text());
        let counted = receive(send(server.address, "GET", "/v1/metrics", &all, b"")).json();
        let counts = &counted["models"][body["model"].as_str().unwrap()];
        assert_eq!(counts["total_requests"], 1, "{counts}");
        assert!(counts["total_prompt_tokens"].as_u64().unwrap() > 10, "{counts}");
    }
    let limited = [("authorization", "Bearer sk-limited-0123456789")];
    let body = json!({ "model": "bert", "input": "a cat on the mat" });
    assert_eq!(post_as(server.address, "/v1/embeddings", &limited, &body).status, 200);
    let refused = post_as(server.address, "/v1/embeddings", &limited, &body);
    assert_eq!(refused.status, 429, "{}", refused.text());
}

#[test]
fn keys_are_told_of_their_own_models_only() {
    let folder = tempfile::tempdir().unwrap();
    let Some(server) = start(keys(folder.path())) else { return };
    let all = [("authorization", "Bearer sk-all-0123456789")];
    let restricted = [("authorization", "Bearer sk-restricted-0123456789")];
    for body in [
        json!({ "model": "tales", "prompt": "a", "max_tokens": 1 }),
        json!({ "model": "second", "prompt": "a", "max_tokens": 1 }),
    ] {
        assert_eq!(post_as(server.address, "/v1/completions", &all, &body).status, 200);
    }
    let body = json!({ "model": "bert", "input": "x" });
    assert_eq!(post_as(server.address, "/v1/embeddings", &restricted, &body).status, 200);
    for path in ["/api/ps", "/slots", "/v1/metrics", "/metrics"] {
        let [of_all, own] = [&all, &restricted]
            .map(|key| receive(send(server.address, "GET", path, key, b"")).text().to_owned());
        assert!(of_all.contains("\"tales\"") && of_all.contains("\"second\""), "{path}: {of_all}");
        assert!(!own.contains("\"tales\"") && !own.contains("\"second\""), "{path}: {own}");
        assert!(path == "/slots" || own.contains("bert"), "{path}: {own}");
    }
    let body = json!({ "model": "secon", "prompt": "a" });
    let near = |key| post_as(server.address, "/v1/completions", key, &body).text().to_owned();
    assert!(near(&all).contains("second") && !near(&restricted).contains("second"));
}

/// The first model is another key's. A key has a default of its own, and is not told which other models there are.
#[test]
fn the_default_model_is_one_that_the_key_may_use() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = keys(folder.path());
    let text = std::fs::read_to_string(config.keys.as_ref().unwrap())
        .unwrap()
        .replace("['bert']", "['alias', 'second']");
    std::fs::write(config.keys.as_ref().unwrap(), text).unwrap();
    config.aliases.insert("alias".to_owned(), "bert".to_owned());
    let Some(server) = start(config) else { return };
    let key = [("authorization", "Bearer sk-restricted-0123456789")];
    let ask = |path: &str, body: Value| post_as(server.address, path, &key, &body);
    let embedded = ask("/v1/embeddings", json!({ "model": "alias", "input": "x" }));
    assert_eq!((embedded.status, &embedded.json()["model"]), (200, &json!("bert")), "{}", embedded.text());
    // The first of the list that it may use is the default.
    let completed = ask("/v1/completions", json!({ "prompt": "a", "max_tokens": 1 }));
    assert_eq!(
        (completed.status, &completed.json()["model"]),
        (200, &json!("second")),
        "{}",
        completed.text()
    );
    let message = |name: &str| {
        let reply = ask("/v1/completions", json!({ "model": name, "prompt": "a", "max_tokens": 1 }));
        assert_eq!(reply.status, 404, "{}", reply.text());
        reply.text().replace(name, "NAME")
    };
    assert_eq!(message("tales"), message("tolls"));
    for (method, path) in [("GET", "/v1/models/tales"), ("POST", "/api/show")] {
        let body = if method == "POST" { "{\"model\": \"tales\"}" } else { "" };
        assert_eq!(receive(send(server.address, method, path, &key, body.as_bytes())).status, 404, "{path}");
    }
}

/// Where clients do not manage models, no field of a request unloads or keeps one.
#[test]
fn requests_do_not_manage_models_where_clients_may_not() {
    let Some(server) = start(Config { manage: false, ..config() }) else { return };
    let completion = json!({ "model": "tales", "prompt": "a", "max_tokens": 1, "keep_alive": 0 });
    assert_eq!(post(server.address, "/v1/completions", &completion).status, 200);
    let embed = json!({ "model": "bert", "input": "x", "keep_alive": 0 });
    assert_eq!(post(server.address, "/api/embed", &embed).status, 200);
    std::thread::sleep(Duration::from_millis(1500));
    for name in ["tales", "bert"] {
        assert_eq!(get(server.address, &format!("/v1/models/{name}")).json()["status"], "ready", "{name}");
    }
}

#[test]
fn models_are_described_by_what_they_do() {
    let Some(server) = start(config()) else { return };
    for name in ["tales", "bert", "ranker"] {
        assert_eq!(post(server.address, "/v1/models/load", &json!({ "model": name })).status, 200);
    }
    let show = |name: &str| {
        post(server.address, "/api/show", &json!({ "model": name })).json()["capabilities"].clone()
    };
    assert_eq!(show("bert"), json!(["embedding"]));
    assert_eq!(show("ranker"), json!([]));
    assert_eq!(show("tales")[0], "completion");
}

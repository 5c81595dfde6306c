//! What Ollama's own client sends, byte for byte.

mod common;

use std::io::BufReader;

use common::client::{get, receive, receive_head, send};
use common::{config, start};

/// The bodies of Ollama's own client, which is written in Go, for `ollama show`, `pull`, `run`, `stop` and `list`.
#[test]
fn bodies_of_ollamas_own_client_are_taken() {
    let Some(server) = start(config()) else { return };
    let ask = |path: &str, body: &str| {
        let headers = [("content-type", "application/json"), ("accept", "application/x-ndjson")];
        let reply = receive(send(server.address, "POST", path, &headers, body.as_bytes()));
        assert_eq!(reply.status, 200, "{path} {body}: {}", reply.text());
        reply
    };
    let heartbeat = send(server.address, "HEAD", "/", &[], b"");
    assert_eq!(receive_head(&mut BufReader::new(heartbeat)).0, 200);
    for names in [r#""model":"","name":"second""#, r#""model":"second","name":"""#] {
        let body = format!(r#"{{"system":"","template":"","verbose":false,"options":null,{names}}}"#);
        let show = ask("/api/show", &body).json();
        assert!(show["model_info"]["general.architecture"].is_string(), "{show}");
        assert!(show["modified_at"].as_str().is_some_and(|time| time.ends_with('Z')), "{show}");
    }
    let body = r#"{"model":"","insecure":false,"username":"","password":"","name":"remote"}"#;
    let pulled = ask("/api/pull", body).lines();
    let digest = pulled[1]["digest"].as_str().unwrap();
    assert_eq!((digest.len(), digest.starts_with("sha256:")), (71, true), "{digest}");
    let body = r#"{"model":"remote","username":"me","password":"","name":""}"#;
    let refused = receive(send(server.address, "POST", "/api/pull", &[], body.as_bytes()));
    assert_eq!((refused.status, refused.text().contains("username")), (400, true), "{}", refused.text());
    let body = r#"{"model":"second","prompt":"","suffix":"","system":"","template":"","keep_alive":"5m0s","options":null,"_debug_render_only":false}"#;
    assert_eq!(ask("/api/generate", body).lines()[0]["done_reason"], "load");
    let body = r#"{"model":"second","messages":[{"role":"user","content":"Who?"}],"format":"","keep_alive":"1h30m0s","options":{"num_predict":2},"_debug_render_only":false}"#;
    assert_eq!(ask("/api/chat", body).lines().last().unwrap()["done"], true);
    let ps = get(server.address, "/api/ps").json();
    let one = &ps["models"][0];
    for name in ["name", "model", "digest", "expires_at"] {
        assert!(one[name].as_str().is_some_and(|text| text.len() >= 5), "{name}: {one}");
    }
    for name in ["size", "size_vram", "context_length"] {
        assert!(one[name].is_u64(), "{name}: {one}");
    }
    assert_eq!(one["digest"].as_str().map(str::len), Some(64));
    let body = r#"{"model":"second","prompt":"","suffix":"","system":"","template":"","keep_alive":"0s","options":null}"#;
    assert_eq!(ask("/api/generate", body).lines()[0]["done_reason"], "unload");
    let body = r#"{"model":"bert","input":"a","options":null}"#;
    assert!(ask("/api/embed", body).json()["embeddings"][0].is_array());
}

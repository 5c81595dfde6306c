//! Memory of bodies: what their JSON becomes counts as they do. Alone in its process, whose memory it measures.

mod common;

use std::io::BufReader;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::client::{get, post, receive, receive_head, send};
use common::{config, resident, start};
use serde_json::json;

/// A body of 3.4 MB whose values take 122 MB, and whose answer takes long.
fn wide(max_tokens: usize, n: usize) -> String {
    let zeros = vec!["0"; 1_700_000].join(",");
    format!(
        "{{\"prompt\": \"Once\", \"max_tokens\": {max_tokens}, \"n\": {n}, \"ignore_eos\": true, \"metadata\": [{zeros}]}}"
    )
}

fn ask(address: SocketAddr, body: &str) -> u16 {
    receive(send(address, "POST", "/v1/completions", &[], body.as_bytes())).status
}

/// What a stream keeps of its request counts until it ends; what its events repeat is small.
fn streams_hold_the_room_of_their_bodies(address: SocketAddr) {
    let zeros = vec!["0"; 1_700_000].join(",");
    let body = format!(
        "{{\"prompt\": \"Once\", \"max_tokens\": 400, \"n\": 16, \"ignore_eos\": true, \"stream\": true, \"user\": [{zeros}]}}"
    );
    let ask = |body: &str| send(address, "POST", "/v1/completions", &[], body.as_bytes());
    let streams: Vec<_> = (0..2)
        .map(|_| {
            let mut reader = BufReader::new(ask(&body));
            assert_eq!(receive_head(&mut reader).0, 200);
            reader
        })
        .collect();
    let refused = receive(ask(&body));
    assert_eq!(refused.status, 503, "{}", refused.text());
    drop(streams);
    let started = Instant::now();
    while get(address, "/v1/metrics").json()["in_flight"] != 0 {
        assert!(started.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
    let repeated = format!("{{\"input\": \"Once\", \"stream\": true, \"metadata\": {{\"a\": [{zeros}]}}}}");
    let refused = receive(send(address, "POST", "/v1/responses", &[], repeated.as_bytes()));
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("metadata.a")));
}

#[test]
fn values_of_many_bodies_have_a_limit_together() {
    let Some(server) = start(config()) else { return };
    let address = server.address;
    assert_eq!(post(address, "/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 })).status, 200);
    // Two of them fit for as long as their requests run; the third does not.
    let body = wide(400, 16);
    let running: Vec<_> =
        (0..2).map(|_| send(address, "POST", "/v1/completions", &[], body.as_bytes())).collect();
    let started = Instant::now();
    while get(address, "/v1/metrics").json()["in_flight"] != 32 {
        assert!(started.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
    let refused = receive(send(address, "POST", "/v1/completions", &[], body.as_bytes()));
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains("bodies of other requests") && refused.header("retry-after").is_some());
    let small = post(address, "/v1/completions", &json!({ "prompt": "Once", "max_tokens": 3 }));
    assert_eq!(small.status, 200, "others are unharmed: {}", small.text());
    for stream in running {
        assert_eq!(receive(stream).status, 200);
    }
    streams_hold_the_room_of_their_bodies(address);
    // Many at once are parsed in bounded memory, and each is answered.
    let before = resident();
    let (peak, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let short = wide(1, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                peak.fetch_max(resident().unwrap_or(0), Ordering::AcqRel);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let clients: Vec<_> = (0..12).map(|_| scope.spawn(|| ask(address, &short))).collect();
        let statuses: Vec<u16> = clients.into_iter().filter_map(|client| client.join().ok()).collect();
        is_over.store(true, Ordering::Release);
        assert_eq!(statuses.len(), 12);
        assert!(statuses.iter().all(|status| [200, 503].contains(status)), "{statuses:?}");
        assert!(statuses.contains(&200), "{statuses:?}");
    });
    if let Some(before) = before {
        let peak = peak.load(Ordering::Acquire);
        assert!(peak < before + (640 << 20), "{before} to {peak} bytes");
    }
    // One that would take all of it alone.
    let alone = vec!["0"; 4_000_000].join(",");
    let reply = receive(send(address, "POST", "/v1/chat/completions", &[], format!("[{alone}]").as_bytes()));
    assert_eq!(reply.status, 413, "{}", reply.text());
    assert!(reply.text().contains("values of the body"), "{}", reply.text());
    assert_eq!(ask(address, &short), 200);
}

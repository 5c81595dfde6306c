//! Many clients at once, some of whom leave, while models come and go: nothing is lost, nothing is mixed.

mod common;

use std::io::{BufReader, Read};
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::client::{get, post, receive, receive_head, send};
use common::{Running, TestSource, config, start_with};
use gyrus::{Event, Request, Sampler};
use gyrus_server::Config;
use gyrus_testkit::cases;
use serde_json::{Value, json};

const SEEDS: u64 = 16;
const CLIENTS: usize = 12;

fn expected(model: &gyrus::Model, seed: u64) -> String {
    let sampler =
        Sampler { temperature: 0.9, top_k: 40, top_p: 0.95, min_p: 0.05, seed, ..Sampler::default() };
    let request = Request::text(format!("Once upon a time {seed}")).max_tokens(24).sampler(sampler);
    let mut answer = model.answer(request).unwrap();
    let mut text = String::new();
    while let Some(event) = answer.next().unwrap() {
        if let Event::Text { text: piece, .. } = event {
            text.push_str(piece);
        }
    }
    text
}

/// The time in which threads start, and the allocator's arenas become as large as they will be.
const WARM_UP: Duration = Duration::from_secs(240);

/// The most by which resident memory may grow over the rest of a soak.
const MOST_GROWTH: f64 = 1.03;

/// `GYRUS_CASES=10000` is the long form. `GYRUS_SOAK_SECONDS` repeats it for so long, and holds the resident memory of the last
/// tenth of the time to that of the first tenth after a warm-up: the median of all rounds, each after its models were unloaded.
#[test]
fn every_finished_answer_is_the_librarys() {
    let Some(source) = TestSource::tales() else { return };
    let model = source.model();
    let texts: Vec<String> = (0..SEEDS).map(|seed| expected(&model, seed)).collect();
    drop(model);
    let server = start_with(Config { parallel: 4, queue: 5, ..config() }, source);
    requests(&server, &texts, cases(240));
    let Some(soak) = std::env::var("GYRUS_SOAK_SECONDS").ok().map(|seconds| seconds.parse().unwrap()) else {
        return;
    };
    let (started, soak) = (Instant::now(), Duration::from_secs(soak));
    let mut resident: Vec<(Duration, u64)> = Vec::new();
    while started.elapsed() < soak {
        requests(&server, &texts, cases(240));
        // How much of a cache was touched depends on when its model was loaded.
        for model in ["tales", "second"] {
            let unloaded = post(server.address, "/v1/models/unload", &json!({ "model": model }));
            assert_eq!(unloaded.status, 200, "{}", unloaded.text());
        }
        let (at, bytes) = (started.elapsed(), resident_bytes());
        resident.push((at, bytes));
        println!("{:.0} s, round {}: {bytes} bytes resident", at.as_secs_f64(), resident.len());
    }
    let median = |from: Duration, to: Duration| {
        let mut within: Vec<u64> =
            resident.iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, bytes)| *bytes).collect();
        within.sort_unstable();
        *within.get(within.len() / 2).expect("a round takes less than a tenth of the soak")
    };
    let warm = WARM_UP.min(soak / 2);
    let (first, last) = (median(warm, warm + soak / 10), median(soak * 9 / 10, Duration::MAX));
    println!("{} requests, {first} bytes resident at first, {last} at last", resident.len() * cases(240));
    assert!(last as f64 <= MOST_GROWTH * first as f64, "from {first} to {last} bytes resident");
}

/// The memory of this process that is resident.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a soak runs on Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
}

/// Sends so many requests, and waits until everything has returned to the start.
fn requests(server: &Running, texts: &[String], all: usize) {
    let (next, finished, full, cut) =
        (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let client = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= all {
                return;
            }
            let seed = number as u64 * 7 % SEEDS;
            let model = if number % 5 == 0 { "second" } else { "tales" };
            let stream = number % 2 == 0;
            let body = json!({ "model": model, "prompt": format!("Once upon a time {seed}"), "max_tokens": 24,
                "temperature": 0.9, "seed": seed, "stream": stream });
            if number % 40 == 39 {
                let unloaded = post(server.address, "/v1/models/unload", &json!({ "model": model }));
                assert_eq!(unloaded.status, 200, "{}", unloaded.text());
            }
            let ask = || send(server.address, "POST", "/v1/completions", &[], body.to_string().as_bytes());
            if number % 3 == 0 {
                // Leaves: at once, or in the middle of its answer.
                let connection = ask();
                if stream {
                    let mut reader = BufReader::new(connection);
                    receive_head(&mut reader);
                    let _ = reader.read(&mut [0; 300]);
                    let _ = reader.get_ref().shutdown(Shutdown::Both);
                } else {
                    let _ = connection.shutdown(Shutdown::Both);
                }
                cut.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let mut reply = receive(ask());
            while reply.status == 429 {
                full.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
                reply = receive(ask());
            }
            assert_eq!(reply.status, 200, "{}", reply.text());
            let text: String = match stream {
                true => {
                    let chunks = reply.chunks();
                    chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect()
                }
                false => reply.json()["choices"][0]["text"].as_str().unwrap().to_owned(),
            };
            assert_eq!(text, texts[seed as usize], "request {number}, seed {seed}");
            finished.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(client);
        }
    });
    let [finished, full, cut] = [&finished, &full, &cut].map(|count| count.load(Ordering::Relaxed));
    assert!(finished + cut == all && full > 0, "{finished} finished, {cut} cut off, {full} refused");
    // Everything returns to the start.
    let started = Instant::now();
    loop {
        let now = get(server.address, "/v1/metrics").json();
        let idle = |model: &Value| {
            ["running", "waiting", "kv_blocks_used"]
                .iter()
                .all(|name| model.get(name).is_none_or(|n| *n == 0))
        };
        if now["in_flight"] == 0 && now["models"].as_object().unwrap().values().all(idle) {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{now}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! Many clients at once, some of whom leave, while models come and go: nothing is lost, nothing is mixed.

mod common;

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::client::{is_idle, post, receive, receive_head, send, wait_for};
use common::{Running, TestSource, config, resident, start_with};
use gyrus::{Event, Request, Sampler};
use gyrus_server::Config;
use gyrus_testkit::{Counting, cases};
use serde_json::json;

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

fn texts(source: &TestSource) -> Vec<String> {
    let model = source.model();
    (0..SEEDS).map(|seed| expected(&model, seed)).collect()
}

fn start_server(source: TestSource) -> Running {
    start_with(Config { parallel: 4, queue: 5, ..config() }, source)
}

/// Held by the test that runs: each of them takes the whole machine.
static RUNS: Mutex<()> = Mutex::new(());

/// `GYRUS_CASES=10000` is the long form.
#[test]
fn every_finished_answer_is_the_librarys() {
    let _alone = RUNS.lock();
    let Some(source) = TestSource::tales() else { return };
    let texts = texts(&source);
    requests(start_server(source).address, &texts, cases(240));
}

/// A server has as much memory in use after many requests as after a few.
///
/// `GYRUS_SOAK_SECONDS` goes on for so long, and holds resident memory too.
#[test]
fn requests_leave_no_memory_behind() {
    let _alone = RUNS.lock();
    let Some(source) = TestSource::tales() else { return };
    let texts = texts(&source);
    let mut server = Process::start();
    let mut least = || (0..ROUNDS).map(|_| round(&mut server, &texts).live).min().unwrap();
    // Threads start, and tables are filled.
    least();
    let (first, last) = (least(), least());
    assert!(last <= first + SLACK, "from {first} to {last} bytes in use after {} requests", ROUNDS * ROUND);
    if let Ok(seconds) = std::env::var("GYRUS_SOAK_SECONDS") {
        soak(&mut server, &texts, Duration::from_secs(seconds.parse().unwrap()));
    }
}

/// Requests of a round, after which memory is measured.
const ROUND: usize = 120;

/// Rounds of which the least is taken: connections may be closing when memory is measured.
const ROUNDS: usize = 5;

/// Bytes by which the memory in use may differ: another thread may have started, or a table may have grown.
const SLACK: u64 = 16 << 10;

/// The time in which the allocator's caches of threads are filled.
const WARM_UP: Duration = Duration::from_secs(240);

/// How long requests are sent before the server rests.
const LOAD: Duration = Duration::from_secs(48);

/// In this time an idle server ends its threads, and returns free memory to the system.
const REST: Duration = Duration::from_secs(12);

/// The most by which resident memory may grow over the rest of a soak.
const MOST_GROWTH: f64 = 1.03;

/// Sends requests, and returns the memory after the models were unloaded: how much of a cache was touched depends on when its
/// model was loaded.
fn round(server: &mut Process, texts: &[String]) -> Memory {
    requests(server.address, texts, ROUND);
    for model in ["tales", "second"] {
        let unloaded = post(server.address, "/v1/models/unload", &json!({ "model": model }));
        assert_eq!(unloaded.status, 200, "{}", unloaded.text());
    }
    server.memory()
}

/// Holds the memory at the last tenth of all rests to that at the first tenth after the warm-up: the median of at least three.
fn soak(server: &mut Process, texts: &[String], time: Duration) {
    let (started, mut sent) = (Instant::now(), 0);
    let mut rested: Vec<Memory> = Vec::new();
    while started.elapsed() < time {
        let begun = Instant::now();
        let mut busy: Vec<u64> = Vec::new();
        while begun.elapsed() < LOAD {
            busy.push(round(server, texts).resident);
        }
        sent += busy.len() * ROUND;
        std::thread::sleep(REST);
        let (at, Memory { live, resident }) = (started.elapsed(), server.memory());
        println!(
            "{:.0} s, {sent} requests: {} bytes resident between rounds; {resident} resident and {live} in use at rest",
            at.as_secs_f64(),
            median(busy)
        );
        if at > WARM_UP.min(time / 4) {
            rested.push(Memory { live, resident });
        }
    }
    let span = rested.len().div_ceil(10).max(3);
    assert!(rested.len() >= 2 * span, "a soak of at least ten minutes has enough rests");
    let (first, last) = (&rested[..span], &rested[rested.len() - span..]);
    let [first_live, last_live] =
        [first, last].map(|rests| median(rests.iter().map(|rest| rest.live).collect()));
    let [first, last] = [first, last].map(|rests| median(rests.iter().map(|rest| rest.resident).collect()));
    println!(
        "{first} bytes resident at first, {last} at last; {first_live} in use at first, {last_live} at last"
    );
    assert!(last_live <= first_live + SLACK, "from {first_live} to {last_live} bytes in use");
    assert!(last as f64 <= MOST_GROWTH * first as f64, "from {first} to {last} bytes resident");
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

#[global_allocator]
static HEAP: Counting = Counting::new();

/// Bytes of memory of a server.
#[derive(Debug, Clone, Copy)]
struct Memory {
    /// Allocated and not freed.
    live: u64,
    /// 0 where it is not known.
    resident: u64,
}

/// A server in a process of its own: this binary again, with [`server_of_a_process`] as its only test. So the memory of the
/// clients is not measured.
struct Process {
    address: SocketAddr,
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

/// Set for the process of a server.
const SERVES: &str = "GYRUS_SOAK_SERVES";

/// What precedes an answer of the process, since the test harness prints too.
const ANSWER: &str = "answer of the server: ";

/// Prints the address of a server, and then its memory for each line of the input. It ends with the input.
#[test]
fn server_of_a_process() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    let server = start_server(TestSource::tales().unwrap());
    println!("{ANSWER}{}", server.address);
    for _ in std::io::stdin().lines() {
        println!("{ANSWER}{} {}", HEAP.live(), resident().unwrap_or(0));
    }
}

impl Process {
    fn start() -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "server_of_a_process", "--nocapture"])
            .env(SERVES, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = answer(&mut output).parse().unwrap();
        Process { address, child, output }
    }

    fn memory(&mut self) -> Memory {
        writeln!(self.child.stdin.as_mut().unwrap()).unwrap();
        let line = answer(&mut self.output);
        let (live, resident) = line.split_once(' ').unwrap();
        Memory { live: live.parse().unwrap(), resident: resident.parse().unwrap() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The next answer of the process of a server.
fn answer(output: &mut Lines<BufReader<ChildStdout>>) -> String {
    let answer =
        output.find_map(|line| line.unwrap().split_once(ANSWER).map(|(_, answer)| answer.to_owned()));
    answer.expect("the server runs")
}

/// Sends so many requests, and waits until everything has returned to the start.
fn requests(address: SocketAddr, texts: &[String], all: usize) {
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
                let unloaded = post(address, "/v1/models/unload", &json!({ "model": model }));
                assert_eq!(unloaded.status, 200, "{}", unloaded.text());
            }
            let ask = || send(address, "POST", "/v1/completions", &[], body.to_string().as_bytes());
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
    wait_for(address, is_idle);
}

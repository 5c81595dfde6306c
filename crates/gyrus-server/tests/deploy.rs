//! The example files of `deploy` with the programs that they are for: Debian's nginx and Prometheus, and systemd's own check.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::client::{get, post, post_as, receive, receive_chunk, receive_head, send};
use common::{config, start};
use gyrus_server::Config;
use gyrus_testkit::{Need, repository, skip, tempfile};
use serde_json::{Value, json};

/// A program of the usual places, or a skip.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.map(|folder| folder.join(name)).find(|path| path.is_file());
    if found.is_none() {
        skip(Need::Extra, &format!("there is no {name}"));
    }
    found
}

/// An example file.
fn example(name: &str) -> String {
    std::fs::read_to_string(repository().join("deploy").join(name)).unwrap()
}

/// The text with something replaced that must be there.
#[track_caller]
fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from} is not in:\n{text}");
    text.replace(from, to)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until somebody listens.
#[track_caller]
fn wait_for(address: SocketAddr) {
    let started = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(started.elapsed() < Duration::from_secs(20), "nobody listens at {address}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs nginx with the example in front of a server.
fn nginx(
    program: &Path,
    folder: &Path,
    upstream: SocketAddr,
    change: impl Fn(String) -> String,
) -> (Process, SocketAddr) {
    let front = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let text = replaced(&example("nginx.conf"), "server 127.0.0.1:8080;", &format!("server {upstream};"));
    let text = change(replaced(&text, "listen 80;", &format!("listen {front};")));
    std::fs::write(folder.join("site.conf"), text).unwrap();
    let at = folder.display();
    let whole = format!(
        "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;\nevents {{}}\nhttp {{\n\
         access_log off; client_body_temp_path {at}/body; proxy_temp_path {at}/proxy; fastcgi_temp_path {at}/fastcgi;\n\
         uwsgi_temp_path {at}/uwsgi; scgi_temp_path {at}/scgi;\ninclude {at}/site.conf;\n}}\n"
    );
    std::fs::write(folder.join("nginx.conf"), whole).unwrap();
    let child = Command::new(program)
        .arg("-c")
        .arg(folder.join("nginx.conf"))
        .arg("-p")
        .arg(folder)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let process = Process(child);
    wait_for(front);
    (process, front)
}

/// The first event is passed on while the server has not sent the second one, by the example's settings and by the header
/// that the server sends.
#[test]
fn nginx_does_not_buffer_streams() {
    let Some(nginx_program) = program("nginx") else { return };
    let by_example = |text: String| text;
    let by_header = |text: String| replaced(&text, "proxy_buffering off;", "");
    type Change = fn(String) -> String;
    let cases: [(&str, Change); 2] = [("", by_example), ("X-Accel-Buffering: no\r\n", by_header)];
    for (header, change) in cases {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let upstream = listener.local_addr().unwrap();
        let (go_on, gone_on) = mpsc::channel::<()>();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while reader.read_line(&mut line).unwrap() > 2 {
                line.clear();
            }
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n";
            write!(stream, "{head}{header}\r\ndata: first\n\n").unwrap();
            stream.flush().unwrap();
            gone_on.recv_timeout(Duration::from_secs(10)).expect("the first event was not passed on");
            write!(stream, "data: second\n\n").unwrap();
        });
        let folder = tempfile::tempdir().unwrap();
        let (_nginx, front) = nginx(&nginx_program, folder.path(), upstream, change);
        let mut stream = TcpStream::connect(front).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        write!(stream, "GET /v1/stream HTTP/1.1\r\nHost: chat.example\r\nConnection: close\r\n\r\n").unwrap();
        let mut seen = String::new();
        let mut piece = [0; 1024];
        while !seen.contains("data: first") {
            let n = stream.read(&mut piece).unwrap();
            assert!(n > 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&piece[..n]));
        }
        assert!(!seen.contains("second"));
        go_on.send(()).unwrap();
        let _ = stream.read_to_string(&mut seen);
        assert!(seen.contains("data: second"), "{seen}");
        server.join().unwrap();
    }
}

#[test]
fn nginx_passes_answers_pages_and_disconnects() {
    let Some(nginx_program) = program("nginx") else { return };
    let Some(server) = start(Config { hosts: vec!["chat.example".to_owned()], ..config() }) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (_nginx, front) = nginx(&nginx_program, folder.path(), server.address, |text| text);
    let host = ("host", "chat.example");
    let ask = json!({ "messages": [{ "role": "user", "content": "Tell me a story." }], "seed": 3, "max_tokens": 40, "stream": true });
    let text = |chunks: Vec<Value>| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
    };
    let direct = text(post(server.address, "/v1/chat/completions", &ask).chunks());
    let passed = post_as(front, "/v1/chat/completions", &[host, ("origin", "http://chat.example")], &ask);
    assert_eq!(text(passed.chunks()), direct);
    assert!(direct.len() > 20);
    for (path, status) in [("/", 200), ("/page/chat.js", 200), ("/v1/models", 200), ("/metrics", 404)] {
        assert_eq!(receive(send(front, "GET", path, &[host], b"")).status, status, "{path}");
    }
    // A page of somebody else is refused, and so is a name that the server does not know.
    assert_eq!(
        post_as(front, "/v1/chat/completions", &[host, ("origin", "http://other.example")], &ask).status,
        403
    );
    assert_eq!(receive(send(front, "GET", "/v1/models", &[("host", "other.example")], b"")).status, 403);
    // A client that goes away is gone for the server as well.
    let long = json!({ "messages": ask["messages"], "ignore_eos": true, "n": 8, "stream": true });
    let headers = [host, ("content-type", "application/json")];
    let stream = send(front, "POST", "/v1/chat/completions", &headers, long.to_string().as_bytes());
    let mut reader = BufReader::new(stream);
    assert_eq!(receive_head(&mut reader).0, 200);
    assert!(receive_chunk(&mut reader).is_some());
    drop(reader);
    let started = Instant::now();
    while get(server.address, "/v1/metrics").json()["disconnected"] == 0 {
        assert!(started.elapsed() < Duration::from_secs(10), "the request goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn prometheus_scrapes_the_server() {
    let (Some(prometheus), Some(promtool)) = (program("prometheus"), program("promtool")) else { return };
    let Some(server) = start(config()) else { return };
    let ask =
        json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 5, "ignore_eos": true });
    assert_eq!(post(server.address, "/v1/chat/completions", &ask).status, 200);
    let folder = tempfile::tempdir().unwrap();
    let text = replaced(&example("prometheus.yml"), "127.0.0.1:8080", &server.address.to_string());
    let text = replaced(&text, "scrape_interval: 15s", "scrape_interval: 1s\n  evaluation_interval: 1s");
    std::fs::write(folder.path().join("prometheus.yml"), text).unwrap();
    std::fs::write(folder.path().join("prometheus-rules.yml"), example("prometheus-rules.yml")).unwrap();
    let checked = Command::new(&promtool)
        .args(["check", "config"])
        .arg(folder.path().join("prometheus.yml"))
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    // The format itself, by Prometheus' own lint.
    let mut lint = Command::new(&promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    lint.stdin.take().unwrap().write_all(&get(server.address, "/metrics").body).unwrap();
    let lint = lint.wait_with_output().unwrap();
    assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stderr));

    let front = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut command = Command::new(prometheus);
    command
        .arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address={front}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let _prometheus = Process(command.spawn().unwrap());
    wait_for(front);
    let value = |query: &str| {
        let found = get(front, &format!("/api/v1/query?query={query}"));
        if found.status != 200 {
            return None;
        }
        found.json()["data"]["result"][0]["value"][1].as_str().map(str::to_owned)
    };
    for (query, expected) in [
        ("up", Some("1")),
        ("gyrus_generated_tokens_total%7Bmodel%3D%22tales%22%7D", Some("5")),
        ("gyrus_first_token_seconds_count", Some("1")),
        ("gyrus:kv_blocks:ratio", None),
    ] {
        // Attempts and not seconds: a machine that stood still must not fail the test.
        let mut found = None;
        for _ in 0..300 {
            found = value(query);
            if found.is_some() && (expected.is_none() || found.as_deref() == expected) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(
            found.is_some() && (expected.is_none() || found.as_deref() == expected),
            "{query} is {found:?}"
        );
    }
}

#[test]
fn systemd_accepts_the_unit() {
    let Some(analyze) = program("systemd-analyze") else { return };
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("gyrus.service");
    // The program of the unit must exist to be accepted.
    std::fs::write(&unit, replaced(&example("gyrus.service"), "/usr/local/bin/gyrus", "/bin/true")).unwrap();
    let checked = Command::new(analyze).arg("verify").arg(&unit).output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr);
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("gyrus.service")).collect();
    assert!(ours.is_empty(), "{said}");
}

//! A server on this machine that stands for the hub.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What a client asked for.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    headers: Vec<(String, String)>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// The first byte of the range that is asked for.
    pub(crate) fn range_from(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// What the server answers, byte for byte, and how fast.
#[derive(Debug, Default, Clone)]
pub(crate) struct Answer {
    bytes: Vec<u8>,
    body_at: usize,
    /// Send so many bytes at a time, with a pause between.
    drip: Option<(usize, Duration)>,
}

impl Answer {
    pub(crate) fn new(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let length = body.len().to_string();
        let mut with_length = vec![("content-length", &*length)];
        with_length.retain(|(name, _)| !headers.iter().any(|(n, _)| n == name));
        with_length.extend(headers);
        Answer::exactly(status, &with_length, body)
    }

    /// With these headers and no others.
    pub(crate) fn exactly(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut head = format!("HTTP/1.1 {status} -\r\nconnection: close\r\n");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        Answer { body_at: head.len(), bytes: [head.as_bytes(), body].concat(), drip: None }
    }

    /// Bytes that need not be HTTP.
    pub(crate) fn raw(bytes: &[u8]) -> Answer {
        Answer { bytes: bytes.to_vec(), body_at: 0, drip: None }
    }

    /// Closes the connection after so many bytes of the body.
    pub(crate) fn cut(mut self, body_bytes: usize) -> Answer {
        self.bytes.truncate(self.body_at + body_bytes);
        self
    }

    pub(crate) fn drip(mut self, bytes: usize, pause: Duration) -> Answer {
        self.drip = Some((bytes, pause));
        self
    }

    fn without_body(mut self) -> Answer {
        self.bytes.truncate(self.body_at);
        self
    }
}

pub(crate) struct Server {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
    stop: Arc<AtomicBool>,
}

impl Server {
    /// Answers each request as the function says, given how many came before.
    pub(crate) fn start(answer: impl Fn(&Request, usize) -> Answer + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (stop, seen, answer) = (Arc::new(AtomicBool::new(false)), requests.clone(), Arc::new(answer));
        let stopped = stop.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (seen, answer) = (seen.clone(), answer.clone());
                // A client that goes away is part of the tests.
                thread::spawn(move || {
                    let _ = stream.and_then(|stream| serve(&stream, &seen, &*answer));
                });
            }
        });
        Server { url: format!("http://{address}"), requests, stop }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The ranges of all requests for content, in order; `None` for a request of the whole.
    pub(crate) fn ranges(&self, path: &str) -> Vec<Option<usize>> {
        let requests = self.requests();
        requests.iter().filter(|r| r.method == "GET" && r.path == path).map(Request::range_from).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        // One more connection, so that the loop looks.
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
    }
}

fn serve(
    mut stream: &TcpStream,
    seen: &Mutex<Vec<Request>>,
    answer: &dyn Fn(&Request, usize) -> Answer,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut headers = Vec::new();
    for line in lines {
        let line = line?;
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.to_lowercase(), value.trim().to_owned())),
            None => break,
        }
    }
    let request = Request { method, path, headers };
    let before = {
        let mut seen = seen.lock().unwrap();
        seen.push(request.clone());
        seen.len() - 1
    };
    let mut answer = answer(&request, before);
    if request.method == "HEAD" {
        answer = answer.without_body();
    }
    match answer.drip {
        None => stream.write_all(&answer.bytes)?,
        Some((bytes, pause)) => {
            for piece in answer.bytes.chunks(bytes) {
                stream.write_all(piece)?;
                stream.flush()?;
                thread::sleep(pause);
            }
        }
    }
    Ok(())
}

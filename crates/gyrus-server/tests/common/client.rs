//! An HTTP client for tests: one request a connection, everything visible.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The server-sent events: their names and data.
    pub(crate) fn events(&self) -> Vec<(String, String)> {
        let blocks = self.text().split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':'));
        let field = |block: &str, name: &str| {
            let lines = block.lines().filter_map(|line| line.strip_prefix(name)).map(str::trim_start);
            lines.collect::<Vec<_>>().join("\n")
        };
        blocks.map(|block| (field(block, "event:"), field(block, "data:"))).collect()
    }

    /// The JSON of all events but the last `[DONE]`.
    #[track_caller]
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().map(|(_, data)| data).as_deref(), Some("[DONE]"), "{}", self.text());
        events.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect()
    }

    /// The JSON of all lines.
    pub(crate) fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Connects, and sends a request without waiting for its answer.
pub(crate) fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    // A server that refuses a body may close before it has all of it.
    let _ = stream.write_all(body);
    stream
}

/// Reads a response.
pub(crate) fn receive(stream: TcpStream) -> Reply {
    let mut reader = BufReader::new(stream);
    let (status, headers) = receive_head(&mut reader);
    let find = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let mut body = Vec::new();
    if find("transfer-encoding").as_deref() == Some("chunked") {
        while let Some(chunk) = receive_chunk(&mut reader) {
            body.extend(chunk);
        }
    } else if let Some(length) = find("content-length") {
        body.resize(length.parse().unwrap(), 0);
        reader.read_exact(&mut body).unwrap();
    }
    Reply { status, headers, body }
}

/// The status and the headers.
pub(crate) fn receive_head(reader: &mut BufReader<TcpStream>) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status: {line:?}")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_lowercase(), value.trim().to_owned()));
    }
    (status, headers)
}

/// The next chunk; `None` after the last one, or if the connection was cut.
pub(crate) fn receive_chunk(reader: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let length = usize::from_str_radix(line.trim(), 16).ok().filter(|length| *length > 0)?;
    let mut chunk = vec![0; length + 2];
    reader.read_exact(&mut chunk).ok()?;
    chunk.truncate(length);
    Some(chunk)
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    receive(send(address, "GET", path, &[], b""))
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    post_as(address, path, &[], body)
}

pub(crate) fn post_as(address: SocketAddr, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
    let mut all = vec![("content-type", "application/json")];
    all.extend_from_slice(headers);
    receive(send(address, "POST", path, &all, body.to_string().as_bytes()))
}

/// What `/v1/metrics` tells.
pub(crate) fn metrics(address: SocketAddr) -> Value {
    get(address, "/v1/metrics").json()
}

/// Waits until the metrics are so.
#[track_caller]
pub(crate) fn wait_for(address: SocketAddr, is_so: impl Fn(&Value) -> bool) {
    let started = Instant::now();
    loop {
        let now = metrics(address);
        if is_so(&now) {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{now}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Nothing runs, waits or holds blocks.
pub(crate) fn is_idle(now: &Value) -> bool {
    let models = now["models"].as_object().unwrap();
    let idle = |model: &Value| ["running", "waiting", "kv_blocks_used"].iter().all(|name| model[name] == 0);
    now["in_flight"] == 0 && models.values().all(|model| model.get("running").is_none() || idle(model))
}

//! A file from the Hugging Face hub: resumed where it was cut, and checked against what the hub says of it.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::digest::Digest;
use super::http::{Ask, Client, LINKED_ETAG, Reply};
use super::part::{Expected, Part};
use super::progress::{Follower, Progress};
use super::{Absent, Unavailable};
use crate::cache::{self, Provenance, beside};
use crate::catalogue::HubFile;
use crate::environment::Hub;
use crate::{foreign, text};

/// How often a lost connection is taken up again without getting on.
const MOST_FAILURES: u32 = 5;
/// What counts as getting on.
const GAIN_BYTES: u64 = 1 << 16;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// What the hub says of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    bytes: Option<u64>,
    sha256: Option<Digest>,
    /// A mark of the version, fit for a file's name. Without one a part cannot be resumed later, since
    /// nobody could tell what it is a part of.
    version: Option<String>,
}

/// How one try to get the rest of the file ended.
enum Outcome {
    Complete,
    /// The rest did not come, but might the next time.
    Cut(String),
}

/// Pulls a file to `target`. The caller holds its lock.
pub(crate) fn pull(file: &HubFile, target: &Path, hub: &Hub, follower: &Follower) -> Result<()> {
    let client = Client::new(hub)?;
    let url = url(file, hub);
    let mut progress = Progress::new(&file.to_string(), "asking the hub", follower);
    let reply = client.send(Ask::Describe, &url)?;
    let known = match reply.status {
        200..=399 => known(&reply),
        // A server that does not answer such questions may still give the content.
        405 | 501 => Known::default(),
        _ => return Err(refused(&reply, file, hub)),
    };
    let suffix = match &known.version {
        Some(version) => format!("{version}.{}", cache::PART),
        None => cache::PART.to_owned(),
    };
    let path = beside(target, &suffix);
    sweep(target, &path);
    let expected = Expected { bytes: known.bytes, sha256: known.sha256 };
    let mut part = match known.version {
        Some(_) => Part::resume(path, expected)?,
        None => Part::create(path, expected)?,
    };
    // Until the server has shown how it does, a part from an earlier try stays if we cannot get at it.
    part.set_resumable(part.bytes() > 0);
    if part.bytes() > 0 {
        progress.note(&format!("going on after {}", text::bytes(part.bytes())));
    }
    let download = Download { client, url, file, hub, known, follower };
    download.fill(&mut part, &mut progress)?;
    drop(progress);
    let (sha256, bytes) = (part.digest(), part.bytes());
    // What is noted must be true of the file that will have the name.
    part.check()?;
    let provenance = Provenance { source: file.to_string(), bytes, sha256: sha256.to_string() };
    provenance.write(target).with_context(|| format!("{}: cannot write beside it", target.display()))?;
    part.finish(target)?;
    Ok(())
}

struct Download<'a> {
    client: Client<'a>,
    url: String,
    file: &'a HubFile,
    hub: &'a Hub,
    known: Known,
    follower: &'a Follower,
}

impl Download<'_> {
    /// Gets everything that is missing, over as many connections as it takes.
    fn fill(&self, part: &mut Part, progress: &mut Progress) -> Result<()> {
        let (mut best, mut failures) = (part.bytes(), 0);
        loop {
            self.follower.check()?;
            let reason = match self.continue_from(part, progress) {
                Ok(Outcome::Complete) => return Ok(()),
                Ok(Outcome::Cut(reason)) => reason,
                // The first contact shows whether there is a network at all; later it may come back.
                Err(error) if error.is::<Unavailable>() && best > 0 => format!("{error:#}"),
                Err(error) => return Err(error),
            };
            if part.bytes() >= best + GAIN_BYTES {
                failures = 0;
            }
            best = best.max(part.bytes());
            failures += 1;
            if failures == MOST_FAILURES {
                let of = self.known.bytes.map_or_else(String::new, |n| format!(" of {}", text::bytes(n)));
                let then = if part.is_resumable() && part.bytes() > 0 {
                    "; pull it again to go on from there"
                } else {
                    ""
                };
                let message = format!("cut off after {}{of}: {reason}{then}", text::bytes(part.bytes()));
                return Err(anyhow!(Unavailable(message)));
            }
            progress.note(&format!("cut off after {}: {reason}; trying again", text::bytes(part.bytes())));
            thread::sleep(FIRST_PAUSE * 2u32.pow(failures - 1));
        }
    }

    /// Gets as much of the rest as one connection gives.
    fn continue_from(&self, part: &mut Part, progress: &mut Progress) -> Result<Outcome> {
        if part.bytes() > 0 && self.known.bytes == Some(part.bytes()) {
            return Ok(Outcome::Complete);
        }
        let mut reply = self.client.send(Ask::Content { from: part.bytes() }, &self.url)?;
        match reply.status {
            200 => {
                // The whole file comes, perhaps since the server knows no ranges.
                let ranges = reply.header("accept-ranges") == Some("bytes");
                part.set_resumable(ranges && self.known.version.is_some());
                part.restart()?;
            }
            206 => {
                let range = reply.header("content-range").unwrap_or_default();
                let (from, total) = content_range(range)
                    .with_context(|| format!("the server sent a range it does not describe ({range:?})"))?;
                ensure!(
                    from == part.bytes(),
                    "asked for the bytes from {} on, the server sent those from {from} on",
                    part.bytes()
                );
                part.set_resumable(self.known.version.is_some());
                if let Some(total) = total {
                    self.check_size(total)?;
                    part.expect_bytes(total);
                }
            }
            // There is nothing after what we have, so what we have is not the beginning of this file.
            416 => {
                part.restart()?;
                return Ok(Outcome::Cut("the server has nothing to add (416)".to_owned()));
            }
            408 | 429 | 500..=599 => return Ok(Outcome::Cut(format!("the server answers {}", reply.status))),
            // An address that the hub gave has a limited life; the hub gives another.
            403 if !reply.by_hub => return Ok(Outcome::Cut("the store refuses access (403)".to_owned())),
            _ => return Err(refused(&reply, self.file, self.hub)),
        }
        let length: Option<u64> = reply.header("content-length").and_then(|text| text.parse().ok());
        if let Some(length) = length {
            let total = part.bytes().saturating_add(length);
            self.check_size(total)?;
            part.expect_bytes(total);
        }
        // A part takes no more than is expected of it. Without that, a server could fill the disk.
        ensure!(part.expected_bytes().is_some(), "neither the hub nor the server says how long the file is");
        progress.begin(part.expected_bytes(), part.bytes());
        read(&mut reply, part, progress, self.follower)
    }

    fn check_size(&self, total: u64) -> Result<()> {
        match self.known.bytes {
            Some(bytes) if bytes != total => {
                bail!("wrong size: the hub says that it has {bytes} bytes, the server sends {total}")
            }
            _ => Ok(()),
        }
    }
}

/// Reads a body to its end.
fn read(reply: &mut Reply, part: &mut Part, progress: &mut Progress, follower: &Follower) -> Result<Outcome> {
    let mut reader = reply.body.as_reader();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => part.write(&buffer[..n])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(Outcome::Cut(error.to_string())),
        }
        progress.at(part.bytes());
        follower.check()?;
    }
    match part.expected_bytes() {
        Some(bytes) if part.bytes() < bytes => Ok(Outcome::Cut("the connection was closed".to_owned())),
        _ => Ok(Outcome::Complete),
    }
}

/// `endpoint/owner/repo/resolve/main/file`, the address under which the hub gives a file.
fn url(file: &HubFile, hub: &Hub) -> String {
    let mut url = hub.endpoint.clone();
    let path = [&file.owner, &file.repo].into_iter().map(String::as_str).chain(["resolve", "main"]);
    for part in path.chain(file.path.iter().map(String::as_str)) {
        url.push('/');
        for &byte in part.as_bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                url.push(byte.into());
            } else {
                url.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    url
}

/// What the headers say of the file.
fn known(reply: &Reply) -> Known {
    let number = |name: &str| reply.header(name).and_then(|text| text.parse().ok());
    // A redirect's own length is that of its page.
    let own_length = || number("content-length").filter(|_| reply.status == 200);
    let etag = reply.header(LINKED_ETAG).or_else(|| reply.header("etag"));
    let etag = etag.map(|tag| tag.trim_start_matches("W/").trim_matches('"'));
    // The tag of a large file is its SHA-256; that of a small one is Git's, which is shorter.
    let sha256 = etag.and_then(Digest::parse);
    let version: Option<String> =
        etag.map(|tag| tag.chars().filter(char::is_ascii_alphanumeric).take(16).collect());
    Known {
        bytes: number("x-linked-size").or_else(own_length),
        sha256,
        version: version.filter(|version| !version.is_empty()),
    }
}

/// Reads `bytes 100-199/500`; the total may be unknown.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let from = range.split_once('-')?.0.trim().parse().ok()?;
    Some((from, total.trim().parse().ok()))
}

/// Removes parts of other versions.
fn sweep(target: &Path, current: &Path) {
    let (Some(folder), Some(name)) = (target.parent(), target.file_name()) else { return };
    let (prefix, suffix) = (format!("{}.", name.to_string_lossy()), format!(".{}", cache::PART));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let version = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(&suffix));
        let is_version = version.is_some_and(|v| v.chars().all(|c| c.is_ascii_alphanumeric()));
        if is_version && entry.path() != current {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Why the hub does not give the file.
fn refused(reply: &Reply, file: &HubFile, hub: &Hub) -> anyhow::Error {
    let repository = format!("{}/{}/{}", hub.endpoint, file.owner, file.repo);
    let token = match &hub.token {
        None => "set HF_TOKEN to a token that may read it",
        Some(_) => "the token in HF_TOKEN may not read it",
    };
    let message = match reply.status {
        401 => format!("the hub refuses access (401): {repository} does not exist, or is private; {token}"),
        403 => format!(
            "the hub refuses access (403): {repository} asks for its terms to be accepted first; {token}"
        ),
        404 => format!("the hub has no such file (404); {repository}/tree/main lists what there is"),
        status => format!("the hub answers {status}"),
    };
    let said = reply
        .header("x-error-message")
        .map_or_else(String::new, |said| format!("; it says: {}", foreign::one_line(said, 200)));
    if reply.status >= 500 || reply.status == 429 {
        return anyhow!(Unavailable(format!("{message}{said}")));
    }
    match reply.status {
        404 => anyhow!(Absent(format!("{message}{said}"))),
        _ => anyhow!("{message}{said}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Named;

    #[test]
    fn ranges_are_read() {
        assert_eq!(content_range("bytes 100-199/500"), Some((100, Some(500))));
        assert_eq!(content_range("bytes 0-9/*"), Some((0, None)));
        for bad in ["", "bytes", "bytes */500", "items 1-2/3", "bytes -5/9", "bytes 1/2", "bytes x-1/2"] {
            assert_eq!(content_range(bad), None, "{bad}");
        }
    }

    #[test]
    fn addresses_are_escaped() {
        let Ok(Named::Hub(file)) = Named::parse("hf:own-er/re.po/sub dir/möd#1%.gguf") else { panic!() };
        let hub = Hub {
            endpoint: "https://h".to_owned(),
            token: None,
            authorities: None,
            patience: Duration::from_secs(1),
        };
        assert_eq!(url(&file, &hub), "https://h/own-er/re.po/resolve/main/sub%20dir/m%C3%B6d%231%25.gguf");
    }

    #[test]
    fn a_silent_server_is_given_up_and_the_part_kept() {
        use std::io::{BufRead, BufReader, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        // Describes a file of 100 bytes, sends ten of them at each request, and then keeps silent.
        thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines: Vec<String> = BufReader::new(&stream)
                    .lines()
                    .map_while(Result::ok)
                    .take_while(|l| !l.is_empty())
                    .collect();
                let range =
                    lines.iter().find_map(|line| line.strip_prefix("range: bytes=")?.strip_suffix('-'));
                let head = match range {
                    Some(from) => format!("206 -\r\ncontent-range: bytes {from}-99/100\r\n"),
                    None => {
                        "200 -\r\ncontent-length: 100\r\naccept-ranges: bytes\r\netag: \"1\"\r\n".to_owned()
                    }
                };
                let body = if lines[0].starts_with("HEAD") { "" } else { "0123456789" };
                write!(stream, "HTTP/1.1 {head}connection: close\r\n\r\n{body}").unwrap();
                silent.push(stream);
            }
        });
        let folder = gyrus_testkit::tempfile::tempdir().unwrap();
        let target = folder.path().join("model.gguf");
        let Ok(Named::Hub(file)) = Named::parse("hf:a/b/model.gguf") else { panic!() };
        let hub = Hub { endpoint, token: None, authorities: None, patience: Duration::from_millis(200) };
        let error = pull(&file, &target, &hub, &Follower::default()).unwrap_err();
        assert!(error.is::<Unavailable>());
        let message = error.to_string();
        assert!(message.starts_with("cut off after 50 B of 100 B: timeout"), "{message}");
        assert!(message.ends_with("; pull it again to go on from there"), "{message}");
        assert_eq!(fs::read(beside(&target, "1.part")).unwrap(), b"0123456789".repeat(5));
    }
}

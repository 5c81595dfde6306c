//! Forms with files: `multipart/form-data`, as browsers and OpenAI's clients send audio.

use bytes::Bytes;

use crate::failure::{Failure, Kind};

/// The most parts of a form.
const MOST_PARTS: usize = 64;
/// The most bytes of a part's header.
const MOST_HEADER: usize = 4096;

/// A part of a form.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) content: Bytes,
}

/// The parts of a form. The first line of the body is its boundary.
pub(crate) fn parse(body: &Bytes) -> Result<Vec<Part>, Failure> {
    let wrong =
        |problem: &str| Failure::new(Kind::Invalid, format!("the body is no multipart/form-data: {problem}"));
    let first = find(body, b"\r\n", 0).filter(|end| (3..=200).contains(end) && body.starts_with(b"--"));
    let Some(first) = first else { return Err(wrong("it does not begin with a boundary")) };
    let boundary = [b"\r\n", &body[..first]].concat();
    let mut parts = Vec::new();
    let mut at = first + 2;
    loop {
        let Some(end) = find(body, &boundary, at) else { return Err(wrong("a part does not end")) };
        let part = body.slice(at..end);
        let header = find(&part, b"\r\n\r\n", 0).filter(|end| *end <= MOST_HEADER);
        let Some(header) = header else { return Err(wrong("a part has no header")) };
        let Some(name) = name_of(&part[..header]) else { return Err(wrong("a part has no name")) };
        if parts.len() == MOST_PARTS {
            return Err(wrong("it has too many parts"));
        }
        parts.push(Part { name, content: part.slice(header + 4..) });
        at = end + boundary.len();
        match body.get(at..at + 2) {
            Some(b"--") => return Ok(parts),
            Some(b"\r\n") => at += 2,
            _ => return Err(wrong("a boundary is not followed by a line")),
        }
    }
}

/// The name in `Content-Disposition: form-data; name="…"`.
fn name_of(header: &[u8]) -> Option<String> {
    let header = std::str::from_utf8(header).ok()?;
    let line = header.lines().find(|line| line.to_ascii_lowercase().starts_with("content-disposition:"))?;
    let field = line.split(';').map(str::trim).find_map(|field| field.strip_prefix("name="))?;
    Some(field.trim_matches('"').to_owned())
}

/// Where `wanted` first is in `bytes`, from `start` on.
fn find(bytes: &[u8], wanted: &[u8], start: usize) -> Option<usize> {
    let (first, rest) = wanted.split_first()?;
    let mut at = start;
    while let Some(skip) = bytes.get(at..)?.iter().position(|byte| byte == first) {
        at += skip;
        if bytes[at + 1..].starts_with(rest) {
            return Some(at);
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_names_and_any_bytes() {
        let body = b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\nRI\r\nFF\r\n--y\r\n--x\r\ncontent-disposition: form-data; name=model\r\n\r\ntiny\r\n--x--\r\n";
        let parts = parse(&Bytes::from_static(body)).unwrap();
        let all: Vec<(&str, &[u8])> = parts.iter().map(|part| (&part.name[..], &part.content[..])).collect();
        assert_eq!(all, [("file", &b"RI\r\nFF\r\n--y"[..]), ("model", b"tiny")]);
    }

    #[test]
    fn other_bodies_are_refused_and_never_panic() {
        let whole = b"--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--x--";
        assert_eq!(parse(&Bytes::from_static(whole)).unwrap().len(), 1);
        for length in 0..whole.len() {
            assert!(parse(&Bytes::from_static(&whole[..length])).is_err(), "{length}");
        }
        assert!(parse(&Bytes::from_static(b"{\"model\": \"tiny\"}")).is_err());
    }
}

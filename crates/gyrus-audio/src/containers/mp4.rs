//! The boxes of MP4 files.

use std::ops::Range;

use super::malformed;
use crate::AudioError;

mod delay;
mod tables;
mod work;

use work::Work;

/// The deepest nesting of boxes; files have seven levels.
const MOST_DEPTH: usize = 16;
const HEADER: usize = 8;
/// The header of a box whose length has 64 bits.
const LONG_HEADER: usize = 16;

/// Boxes of other boxes.
const CONTAINERS: [&[u8; 4]; 9] =
    [b"moov", b"trak", b"mdia", b"minf", b"stbl", b"mvex", b"moof", b"traf", b"wave"];
/// Boxes of tags, pictures and lists of edits, which no sample needs once the delay is read.
const UNUSED: [&[u8; 4]; 4] = [b"udta", b"meta", b"edts", b"sidx"];
/// Descriptions of audio samples, in the box `stsd`, which have boxes after their fields.
const AUDIO: [&[u8; 4]; 16] = [
    b"mp4a", b"alac", b"ac-3", b"fLaC", b"Opus", b".mp3", b"lpcm", b"alaw", b"ulaw", b"raw ", b"sowt",
    b"twos", b"in24", b"in32", b"fl32", b"fl64",
];

/// A box: its name, and where it and its content are.
struct Found {
    name: [u8; 4],
    at: usize,
    body: Range<usize>,
}

/// Compares the lengths and counts of all boxes with what is there, and makes boxes that are not needed free space. Tables that
/// the reader would look through again and again become short, or are refused. Returns the seconds of the encoder's delay.
pub(super) fn check(bytes: &mut [u8]) -> Result<f64, AudioError> {
    // Lists of edits and tags are hidden below.
    let delay = delay::of(bytes).unwrap_or(0.0);
    let mut work = Work::default();
    boxes(bytes, 0..bytes.len(), b"file", 0, &mut work)?;
    work.check()?;
    Ok(delay)
}

/// Checks the boxes of a part of the file.
fn boxes(
    bytes: &mut [u8],
    part: Range<usize>,
    parent: &[u8; 4],
    depth: usize,
    work: &mut Work,
) -> Result<(), AudioError> {
    if depth > MOST_DEPTH {
        return Err(malformed(
            "M4A",
            format!("boxes within more than {MOST_DEPTH} others at byte {}", part.start),
        ));
    }
    let mut at = part.start;
    while at < part.end {
        let found = find(bytes, at, part.end, depth)?;
        at = found.body.end;
        content(bytes, &found, parent, depth, work)?;
    }
    Ok(())
}

/// The box that begins here.
fn find(bytes: &[u8], at: usize, end: usize, depth: usize) -> Result<Found, AudioError> {
    let left = end - at;
    let header = bytes[at..end].first_chunk::<HEADER>();
    let Some(&[a, b, c, d, name @ ..]) = header else {
        return Err(malformed("M4A", format!("{left} bytes at byte {at} are no box")));
    };
    let (length, header) = match u32::from_be_bytes([a, b, c, d]) {
        // Samples may be written until the end of the file.
        0 if depth == 0 && &name == b"mdat" => (left as u64, HEADER),
        1 => (tables::u64_at(bytes, at + HEADER).unwrap_or(0), LONG_HEADER),
        length => (u64::from(length), HEADER),
    };
    let shown = name.escape_ascii();
    if length < header as u64 {
        return Err(malformed("M4A", format!("box '{shown}' of {length} bytes at byte {at}")));
    }
    match usize::try_from(length).ok().filter(|length| *length <= left) {
        Some(length) => Ok(Found { name, at, body: at + header..at + length }),
        None if depth == 0 => Err(AudioError::Truncated {
            declared: format!("a box '{shown}' of {length} bytes"),
            held: format!("{left} bytes of it"),
        }),
        None => {
            let problem = format!("box '{shown}' of {length} bytes at byte {at}, of which {left} are left");
            Err(malformed("M4A", problem))
        }
    }
}

/// Checks what is in a box.
fn content(
    bytes: &mut [u8],
    found: &Found,
    parent: &[u8; 4],
    depth: usize,
    work: &mut Work,
) -> Result<(), AudioError> {
    let Found { name, at, body } = found;
    work.meet(name);
    if UNUSED.contains(&name) {
        bytes[at + 4..at + HEADER].copy_from_slice(b"free");
        return Ok(());
    }
    let inside = if CONTAINERS.contains(&name) {
        body.clone()
    } else if parent == b"stsd" && AUDIO.contains(&name) {
        after_fields(bytes, body)?
    } else if name == b"stsd" {
        skipped(body, 8, "stsd")?
    } else if name == b"esds" {
        return descriptors(bytes, skipped(body, 4, "esds")?, 0);
    } else {
        tables::check(bytes, name, body)?;
        match name {
            b"stts" => tables::shorten_times(bytes, body),
            b"trun" => {
                let (samples, has_durations) = tables::run_of(bytes, body);
                work.add_run(samples, has_durations);
            }
            _ => {}
        }
        return Ok(());
    };
    boxes(bytes, inside, name, depth + 1, work)
}

/// The boxes after the fields of a description of samples.
fn after_fields(bytes: &[u8], body: &Range<usize>) -> Result<Range<usize>, AudioError> {
    let fields = match tables::u16_at(bytes, body.start + 8) {
        Some(0) => 28,
        Some(1) => 44,
        Some(2) => 64,
        version => {
            let problem = format!(
                "a description of samples of version {} at byte {}",
                version.unwrap_or(0),
                body.start
            );
            return Err(malformed("M4A", problem));
        }
    };
    skipped(body, fields, "description of samples")
}

/// A box's content after its fields.
fn skipped(body: &Range<usize>, fields: usize, name: &str) -> Result<Range<usize>, AudioError> {
    match body.len() >= fields {
        true => Ok(body.start + fields..body.end),
        false => {
            let (length, at) = (body.len(), body.start);
            Err(malformed("M4A", format!("{name} of {length} bytes at byte {at}, {fields} are needed")))
        }
    }
}

/// Descriptors of a stream, of its decoder, and of the decoder's settings.
const STREAM: u8 = 3;
const DECODER: u8 = 4;

/// Checks descriptors, each of which has a length of up to 28 bits.
fn descriptors(bytes: &[u8], part: Range<usize>, depth: usize) -> Result<(), AudioError> {
    let mut at = part.start;
    // The reader takes two bytes for the rest of the one before.
    while part.end.saturating_sub(at) > 2 {
        let (tag, begin) = (bytes[at], at);
        let mut length = 0;
        at += 1;
        for _ in 0..4 {
            let byte = *bytes[..part.end].get(at).unwrap_or(&0);
            at += 1;
            length = length << 7 | usize::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                break;
            }
        }
        let left = part.end.saturating_sub(at);
        let fields = match tag {
            STREAM if depth == 0 => stream_fields(bytes, at),
            DECODER if depth == 1 => 13,
            _ => 0,
        };
        if length > left || length < fields {
            let problem = format!(
                "descriptor {tag} of {length} bytes at byte {begin}; it has at least {fields}, and {left} are left"
            );
            return Err(malformed("M4A", problem));
        }
        if fields > 0 {
            // The reader counts three bytes of a stream's fields, however many there are.
            let end = if tag == STREAM { at + length + fields - 3 } else { at + length };
            descriptors(bytes, at + fields..end.min(part.end), depth + 1)?;
        }
        at += length;
    }
    Ok(())
}

/// The length of a stream's own fields, some of which are there if flags are set.
fn stream_fields(bytes: &[u8], at: usize) -> usize {
    let flags = bytes.get(at + 2).copied().unwrap_or(0);
    let depends = if flags & 0x80 != 0 { 2 } else { 0 };
    let address =
        if flags & 0x40 != 0 { 1 + usize::from(*bytes.get(at + 3 + depends).unwrap_or(&0)) } else { 0 };
    let clock = if flags & 0x20 != 0 { 2 } else { 0 };
    3 + depends + address + clock
}

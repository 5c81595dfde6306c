//! The delay of an encoder that a file of one track declares: where its first edit begins, or in a tag of iTunes.

use std::ops::Range;

use super::{find, tables};

/// A longer time, in seconds, is a part that was cut out, not the delay of an encoder.
const MOST_SECONDS: f64 = 1.0;
/// The tag's name. Its text has numbers in hexadecimal, the second of which is the delay in samples.
const TAG: &[u8] = b"iTunSMPB";
/// A box `data` of a tag: its header, type and language.
const DATA_FIELDS: usize = 16;

/// Seconds before the recording begins. Each of several tracks would have its own, so these are not read.
pub(super) fn of(bytes: &[u8]) -> Option<f64> {
    let movie = children(bytes, 0..bytes.len(), b"moov").next()?;
    let mut tracks = children(bytes, movie.clone(), b"trak");
    let (track, None) = (tracks.next()?, tracks.next()) else { return None };
    let media = children(bytes, track.clone(), b"mdia").next()?;
    let header = children(bytes, media, b"mdhd").next()?;
    let (scale, duration) = match bytes.get(header.start)? {
        1 => (header.start + 20, tables::u64_at(bytes, header.start + 24)?),
        _ => (header.start + 12, u64::from(tables::u32_at(bytes, header.start + 16)?)),
    };
    let scale = tables::u32_at(bytes, scale)?;
    let edits = children(bytes, track, b"edts").next();
    let edits = edits.and_then(|edits| children(bytes, edits, b"elst").next());
    let delay = match edits {
        Some(edits) => edited(bytes, edits)?,
        None => tagged(&bytes[children(bytes, movie, b"udta").next()?])?,
    };
    let seconds = delay as f64 / f64::from(scale.max(1));
    // Fragmented files have no duration here.
    (seconds <= MOST_SECONDS && (duration == 0 || delay < duration)).then_some(seconds)
}

/// The bodies of the boxes of this name in a part of the file, as far as it has boxes.
fn children<'b>(
    bytes: &'b [u8],
    part: Range<usize>,
    name: &'b [u8; 4],
) -> impl Iterator<Item = Range<usize>> + 'b {
    let mut at = part.start;
    let depth = usize::from(part.end != bytes.len() || part.start > 0);
    let all = std::iter::from_fn(move || {
        let found = (at < part.end).then(|| find(bytes, at, part.end, depth).ok()).flatten()?;
        at = found.body.end;
        Some(found)
    });
    all.filter(move |found| found.name == *name).map(|found| found.body)
}

/// The time at which the first edit begins that has any. An edit before it may have none: a pause.
fn edited(bytes: &[u8], edits: Range<usize>) -> Option<u64> {
    let bytes = &bytes[edits];
    let is_long = *bytes.first()? == 1;
    let count = tables::u32_at(bytes, 4)?.min(2) as usize;
    let time = |n: usize| match is_long {
        true => Some(tables::u64_at(bytes, 8 + 20 * n + 8)? as i64),
        false => Some(i64::from(tables::u32_at(bytes, 8 + 12 * n + 4)? as i32)),
    };
    (0..count).filter_map(time).find_map(|time| u64::try_from(time).ok())
}

/// The delay in the tag of iTunes.
fn tagged(tags: &[u8]) -> Option<u64> {
    let at = tags.windows(TAG.len()).position(|name| name == TAG)? + TAG.len();
    let data = &tags[at..];
    (data.get(4..8)? == b"data").then_some(())?;
    let length = tables::u32_at(data, 0)? as usize;
    let text = str::from_utf8(data.get(DATA_FIELDS..length)?).ok()?;
    u64::from_str_radix(text.split_whitespace().nth(1)?, 16).ok()
}

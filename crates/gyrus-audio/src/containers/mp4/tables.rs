//! Tables of samples, whose number of entries the file declares.

use std::ops::Range;

use crate::AudioError;
use crate::containers::malformed;

/// Checks a box that has no boxes in it.
pub(super) fn check(bytes: &[u8], name: &[u8; 4], body: &Range<usize>) -> Result<(), AudioError> {
    match name {
        b"stts" => entries(bytes, name, body, 4, 8, 8),
        b"stsc" => entries(bytes, name, body, 4, 8, 12),
        b"stco" => entries(bytes, name, body, 4, 8, 4),
        b"co64" => entries(bytes, name, body, 4, 8, 8),
        b"stsz" => sizes(bytes, body),
        b"trun" => run(bytes, body),
        b"trex" => size(bytes, name, body, 16),
        b"tfhd" => fragment(bytes, body),
        // The fields before the name of the handler.
        b"hdlr" => fields(name, body, 24),
        _ => Ok(()),
    }
}

/// Checks a table: where its number of entries is, where they begin, and the bytes of each.
fn entries(
    bytes: &[u8],
    name: &[u8; 4],
    body: &Range<usize>,
    count_at: usize,
    first: usize,
    each: usize,
) -> Result<(), AudioError> {
    fields(name, body, first)?;
    let count = u64::from(u32_at(bytes, body.start + count_at).unwrap_or(0));
    let held = (body.len() - first) as u64;
    match count * each as u64 <= held {
        true => Ok(()),
        false => {
            let problem = format!("{count} entries of {each} bytes each in the {held} bytes of");
            Err(of_table(&problem, name, body))
        }
    }
}

/// Checks the sizes of samples: one for all of them, or a table.
fn sizes(bytes: &[u8], body: &Range<usize>) -> Result<(), AudioError> {
    fields(b"stsz", body, 12)?;
    let each = u64::from(u32_at(bytes, body.start + 4).unwrap_or(0));
    if each == 0 {
        entries(bytes, b"stsz", body, 8, 12, 4)?;
        let count = u32_at(bytes, body.start + 8).unwrap_or(0) as usize;
        return largest(bytes, b"stsz", body, body.start + 12, 4, count);
    }
    let count = u64::from(u32_at(bytes, body.start + 8).unwrap_or(0));
    match count * each <= bytes.len() as u64 {
        true => Ok(()),
        false => Err(AudioError::Truncated {
            declared: format!("{count} samples of {each} bytes each"),
            held: format!("{} bytes in all", bytes.len()),
        }),
    }
}

/// Checks a run of samples of a fragment, which have up to four numbers each.
fn run(bytes: &[u8], body: &Range<usize>) -> Result<(), AudioError> {
    fields(b"trun", body, 8)?;
    let flags = u32_at(bytes, body.start).unwrap_or(0);
    let has = |flag: u32| if flags & flag != 0 { 4 } else { 0 };
    let first = 8 + has(0x1) + has(0x4);
    let (duration, size) = (has(0x100), has(0x200));
    let each = duration + size + has(0x400) + has(0x800);
    entries(bytes, b"trun", body, 4, first, each)?;
    let count = u32_at(bytes, body.start + 4).unwrap_or(0) as usize;
    if count > bytes.len() {
        let problem = format!("{count} samples in a file of {} bytes in", bytes.len());
        return Err(of_table(&problem, b"trun", body));
    }
    match size > 0 {
        true => largest(bytes, b"trun", body, body.start + first + duration, each, count),
        false => Ok(()),
    }
}

/// Checks the size of the samples of a fragment, which follows fields that may be there.
fn fragment(bytes: &[u8], body: &Range<usize>) -> Result<(), AudioError> {
    fields(b"tfhd", body, 8)?;
    let flags = u32_at(bytes, body.start).unwrap_or(0);
    let has = |flag: u32, bytes: usize| if flags & flag != 0 { bytes } else { 0 };
    match flags & 0x10 != 0 {
        true => size(bytes, b"tfhd", body, 8 + has(0x1, 8) + has(0x2, 4) + has(0x8, 4)),
        false => Ok(()),
    }
}

/// Checks one size of samples.
fn size(bytes: &[u8], name: &[u8; 4], body: &Range<usize>, at: usize) -> Result<(), AudioError> {
    fields(name, body, at + 4)?;
    largest(bytes, name, body, body.start + at, 4, 1)
}

/// Checks that no sample is larger than the file: `count` sizes from `at` on, one in each `step` bytes.
fn largest(
    bytes: &[u8],
    name: &[u8; 4],
    body: &Range<usize>,
    at: usize,
    step: usize,
    count: usize,
) -> Result<(), AudioError> {
    let sizes = (0..count).filter_map(|n| u32_at(bytes, at + n * step));
    match sizes.max().filter(|size| *size as usize > bytes.len()) {
        None => Ok(()),
        Some(size) => {
            let problem = format!("a sample of {size} bytes in a file of {} bytes in", bytes.len());
            Err(of_table(&problem, name, body))
        }
    }
}

/// Checks that a box has this many bytes.
fn fields(name: &[u8; 4], body: &Range<usize>, needed: usize) -> Result<(), AudioError> {
    match body.len() >= needed {
        true => Ok(()),
        false => Err(of_table(&format!("{} bytes, {needed} are needed, in", body.len()), name, body)),
    }
}

fn of_table(problem: &str, name: &[u8; 4], body: &Range<usize>) -> AudioError {
    malformed("M4A", format!("{problem} the box '{}' at byte {}", name.escape_ascii(), body.start))
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|b| u16::from_be_bytes(*b))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_be_bytes(*b))
}

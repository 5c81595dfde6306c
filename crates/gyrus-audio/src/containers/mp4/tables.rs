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

/// The number of samples of a run that was checked, and whether each has a duration.
pub(super) fn run_of(bytes: &[u8], body: &Range<usize>) -> (u64, bool) {
    let (flags, count) = (u32_at(bytes, body.start), u32_at(bytes, body.start + 4));
    (u64::from(count.unwrap_or(0)), flags.unwrap_or(0) & 0x100 != 0)
}

/// Replaces a table of times that was checked by one entry: all samples, and their mean duration. The reader looks through
/// the table from its beginning for each sample, but no time of a sample decides what is decoded.
pub(super) fn shorten_times(bytes: &mut [u8], body: &Range<usize>) {
    const FIRST: usize = 8;
    let (mut samples, mut time) = (0u64, 0u128);
    for n in 0..u32_at(bytes, body.start + 4).unwrap_or(0) as usize {
        let at = body.start + FIRST + 8 * n;
        let (count, each) = (u32_at(bytes, at).unwrap_or(0), u32_at(bytes, at + 4).unwrap_or(0));
        samples += u64::from(count);
        time += u128::from(count) * u128::from(each);
    }
    let mut put = |at: usize, number: u32| {
        bytes[body.start + at..body.start + at + 4].copy_from_slice(&number.to_be_bytes());
    };
    if samples == 0 {
        return put(4, 0);
    }
    // A mean of numbers of 32 bits.
    let mean = u32::try_from(time / u128::from(samples)).unwrap_or(u32::MAX);
    put(4, 1);
    put(FIRST, u32::try_from(samples).unwrap_or(u32::MAX));
    put(FIRST + 4, mean);
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

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|b| u64::from_be_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table of times as a box's content.
    fn times(entries: &[(u32, u32)]) -> Vec<u8> {
        let entries = entries.iter().flat_map(|(count, each)| [*count, *each]);
        let numbers = [0, entries.clone().count() as u32 / 2].into_iter().chain(entries);
        numbers.flat_map(u32::to_be_bytes).collect()
    }

    #[test]
    fn a_table_of_times_becomes_one_entry() {
        for (entries, expected) in [
            (&[(0, 9), (3, 1000), (0, 7), (1, 600)][..], vec![0, 1, 4, 900]),
            (&[(66, 1024)], vec![0, 1, 66, 1024]),
            (&[(u32::MAX, u32::MAX), (u32::MAX, u32::MAX)], vec![0, 1, u32::MAX, u32::MAX]),
            (&[(0, 5), (0, 6)], vec![0, 0]),
            (&[], vec![0, 0]),
        ] {
            let mut bytes = times(entries);
            let body = 0..bytes.len();
            check(&bytes, b"stts", &body).unwrap();
            shorten_times(&mut bytes, &body);
            let found: Vec<u32> = (0..expected.len()).filter_map(|n| u32_at(&bytes, 4 * n)).collect();
            assert_eq!(found, expected);
        }
    }
}

//! Reads a zip archive as far as Python wheels need: members stored or deflated, sizes below 4 GiB.
//!
//! The archive came over a network, so no number in it is believed: offsets are checked against the file's
//! size, and nothing is allocated by a count that the archive declares.

use std::io::{self, BufReader, Read, Seek, SeekFrom, Take};

use anyhow::{Context, Result, bail, ensure};
use flate2::bufread::DeflateDecoder;

/// A file inside the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Its size when unpacked, as the archive says.
    pub(crate) bytes: u64,
    packed_bytes: u64,
    method: u16,
    flags: u16,
    header_at: u64,
}

const END: &[u8] = b"PK\x05\x06";
const END_BYTES: usize = 22;
const CENTRAL: &[u8] = b"PK\x01\x02";
const CENTRAL_BYTES: usize = 46;
const LOCAL: &[u8] = b"PK\x03\x04";
const LOCAL_BYTES: usize = 30;
/// A comment may follow the end record; its length is a number of 16 bits.
const LONGEST_TAIL: u64 = END_BYTES as u64 + u16::MAX as u64;
/// No wheel lists more: this is half a million files.
const LONGEST_DIRECTORY: u64 = 32 << 20;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;
const ENCRYPTED: u16 = 1;

/// Lists what is in the archive, by its central directory.
pub(crate) fn members(archive: &mut (impl Read + Seek)) -> Result<Vec<Member>> {
    let length = archive.seek(SeekFrom::End(0))?;
    let tail = read_at(archive, length.saturating_sub(LONGEST_TAIL), LONGEST_TAIL.min(length))?;
    // The end record is the last one whose comment reaches exactly to the end of the file.
    let end = (0..=tail.len().saturating_sub(END_BYTES)).rev().find(|&at| {
        let rest = &tail[at..];
        rest.starts_with(END)
            && rest.len() >= END_BYTES
            && rest.len() == END_BYTES + usize::from(u16_at(rest, 20))
    });
    let end = &tail[end.context("not a zip archive, or cut short: it has no end record")?..];
    let (count, bytes, at) = (u16_at(end, 10), u32_at(end, 12), u32_at(end, 16));
    ensure!(
        count != u16::MAX && bytes != u32::MAX && at != u32::MAX,
        "the zip archive is in the 64-bit form, which is not supported"
    );
    let (bytes, at) = (u64::from(bytes), u64::from(at));
    ensure!(
        at + bytes <= length && bytes <= LONGEST_DIRECTORY,
        "the zip archive's directory ({bytes} bytes at offset {at}) does not fit a file of {length} bytes"
    );
    let directory = read_at(archive, at, bytes)?;
    let (mut members, mut rest) = (Vec::new(), &directory[..]);
    for n in 0..count {
        let offset = at + (directory.len() - rest.len()) as u64;
        let whole = || format!("entry {n} of the zip archive's directory, at offset {offset}, is damaged");
        ensure!(rest.len() >= CENTRAL_BYTES && rest.starts_with(CENTRAL), whole());
        let variable = [28, 30, 32].map(|field| usize::from(u16_at(rest, field)));
        let name = rest.get(CENTRAL_BYTES..CENTRAL_BYTES + variable[0]).with_context(whole)?;
        members.push(Member {
            name: String::from_utf8_lossy(name).into_owned(),
            flags: u16_at(rest, 8),
            method: u16_at(rest, 10),
            packed_bytes: u32_at(rest, 20).into(),
            bytes: u32_at(rest, 24).into(),
            header_at: u32_at(rest, 42).into(),
        });
        rest = rest.get(CENTRAL_BYTES + variable.iter().sum::<usize>()..).with_context(whole)?;
    }
    Ok(members)
}

/// The content of a member, unpacked as it is read.
pub(crate) enum Content<R: Read> {
    Stored(Take<R>),
    Deflated(DeflateDecoder<BufReader<Take<R>>>),
}

impl<R: Read> Read for Content<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Content::Stored(reader) => reader.read(buffer),
            Content::Deflated(reader) => reader.read(buffer),
        }
    }
}

/// Opens a member. How much comes out is for the reader to limit.
pub(crate) fn open<R: Read + Seek>(mut archive: R, member: &Member) -> Result<Content<R>> {
    ensure!(member.flags & ENCRYPTED == 0, "{} in the zip archive is encrypted", member.name);
    let damaged = || format!("the zip archive is damaged where {} should begin", member.name);
    let header = read_at(&mut archive, member.header_at, LOCAL_BYTES as u64).with_context(damaged)?;
    ensure!(header.starts_with(LOCAL), damaged());
    // The name and the extra field are repeated here, the latter often with another length.
    let skipped = u64::from(u16_at(&header, 26)) + u64::from(u16_at(&header, 28));
    archive.seek(SeekFrom::Start(member.header_at + LOCAL_BYTES as u64 + skipped))?;
    let packed = archive.take(member.packed_bytes);
    Ok(match member.method {
        STORED => Content::Stored(packed),
        DEFLATED => Content::Deflated(DeflateDecoder::new(BufReader::with_capacity(1 << 18, packed))),
        method => {
            bail!("{} in the zip archive is packed by method {method}, which is not supported", member.name)
        }
    })
}

fn read_at(archive: &mut (impl Read + Seek), at: u64, bytes: u64) -> Result<Vec<u8>> {
    archive.seek(SeekFrom::Start(at))?;
    let mut buffer = Vec::new();
    archive.take(bytes).read_to_end(&mut buffer)?;
    ensure!(buffer.len() as u64 == bytes, "the zip archive ends within {bytes} bytes at offset {at}");
    Ok(buffer)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::DeflateEncoder;
    use gyrus_testkit::{Rng, cases};
    use std::io::{Cursor, Write};

    /// An archive of these files, each deflated if it is to be.
    pub(crate) fn archive(files: &[(&str, &[u8], bool)]) -> Vec<u8> {
        let (mut zip, mut directory) = (Vec::new(), Vec::new());
        for (name, content, deflate) in files {
            let packed = if *deflate {
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(content).unwrap();
                encoder.finish().unwrap()
            } else {
                content.to_vec()
            };
            let mut common = Vec::new();
            for field in [20, 0, if *deflate { DEFLATED } else { STORED }, 0, 0] {
                common.extend(u16::to_le_bytes(field));
            }
            let mut crc = flate2::Crc::new();
            crc.update(content);
            for field in [crc.sum(), packed.len() as u32, content.len() as u32] {
                common.extend(field.to_le_bytes());
            }
            common.extend((name.len() as u16).to_le_bytes());
            directory.extend(CENTRAL);
            directory.extend([20, 0]);
            directory.extend(&common);
            directory.extend([0; 12]);
            directory.extend((zip.len() as u32).to_le_bytes());
            directory.extend(name.as_bytes());
            zip.extend(LOCAL);
            zip.extend(&common);
            // An extra field that the directory does not have, as real archives do.
            zip.extend([4, 0]);
            zip.extend(name.as_bytes());
            zip.extend(b"\xfe\xca\0\0");
            zip.extend(packed);
        }
        let at = zip.len() as u32;
        zip.extend(&directory);
        zip.extend(END);
        zip.extend([0; 4]);
        zip.extend((files.len() as u16).to_le_bytes());
        zip.extend((files.len() as u16).to_le_bytes());
        zip.extend((directory.len() as u32).to_le_bytes());
        zip.extend(at.to_le_bytes());
        zip.extend(b"\x07\0comment");
        zip
    }

    fn unpack(zip: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut unpacked = Vec::new();
        for member in members(&mut Cursor::new(zip))? {
            let mut content = Vec::new();
            open(Cursor::new(zip), &member)?.take(1 << 20).read_to_end(&mut content)?;
            unpacked.push((member.name, content));
        }
        Ok(unpacked)
    }

    #[test]
    fn members_are_listed_and_unpacked() {
        let long = b"all work and no play ".repeat(5000);
        let zip = archive(&[("a/model.gguf", &long, true), ("b.txt", b"plain", false), ("empty", b"", true)]);
        assert!(zip.len() < 5000);
        let unpacked = unpack(&zip).unwrap();
        assert_eq!(unpacked[0], ("a/model.gguf".to_owned(), long.clone()));
        assert_eq!(unpacked[1], ("b.txt".to_owned(), b"plain".to_vec()));
        assert_eq!(unpacked[2].1, b"");
        assert_eq!(members(&mut Cursor::new(&zip)).unwrap()[0].bytes, long.len() as u64);
        assert_eq!(unpack(&archive(&[])).unwrap(), []);
    }

    #[test]
    fn every_cut_is_an_error() {
        let zip = archive(&[("a", b"some content", true), ("b", b"more", false)]);
        for length in 0..zip.len() {
            assert!(unpack(&zip[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn damage_never_does_more_than_fail() {
        let mut rng = Rng::new(1);
        let content = rng.bytes(300);
        let zip = archive(&[("a", &content, true), ("b", &content, false)]);
        for _ in 0..cases(3000) {
            let mut zip = zip.clone();
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(zip.len());
                zip[at] = *rng.pick(&[0, 1, 0x7f, 0xff, rng.clone().u64() as u8]);
            }
            // Whatever comes out, it comes out without a panic, and what is stored is never longer than the file.
            if let Ok(unpacked) = unpack(&zip) {
                assert!(unpacked.iter().all(|(_, content)| content.len() <= 1 << 20));
            }
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        let zip = archive(&[("a", b"content", false)]);
        let directory = zip.windows(4).position(|w| w == CENTRAL).unwrap();
        let patched = |at: usize, value: u8| {
            let mut zip = zip.clone();
            zip[directory + at] = value;
            unpack(&zip).unwrap_err().to_string()
        };
        assert!(patched(10, 93).contains("method 93"));
        assert!(patched(8, 1).contains("encrypted"));
        let end = zip.len() - 7 - END_BYTES;
        let mut large = zip.clone();
        large[end + 16..end + 20].fill(0xff);
        assert!(unpack(&large).unwrap_err().to_string().contains("64-bit"));
    }
}

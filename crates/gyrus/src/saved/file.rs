//! The file of a saved session.
//!
//! It begins with [`MAGIC`], the version, the length of the header and the header, in JSON. Then come the tokens with the
//! kinds of their rows, what the caller attached, a record of states if the model has one, and the blocks of each KV
//! group in batches. Behind each part is its checksum, which covers the header's, too: parts of two files do not fit
//! together. The header's numbers give the length of the file, to the byte. Nothing is allocated before that was
//! compared.

use std::io::{ErrorKind, Read, Write};

use super::SessionFileError;
use super::hash::{Digest, digest};
use super::header::{Header, malformed};

/// How a saved session begins.
const MAGIC: &[u8; 12] = b"gyrus-saved\n";
/// The version of this layout, and of that of blocks and records.
const VERSION: u32 = 1;
/// The most bytes of a header. Real ones have less than one thousand.
const MAX_HEADER: u32 = 64 << 10;
/// Bytes before the header, and of a checksum.
const FIXED: usize = MAGIC.len() + 8;
const SUM: u64 = size_of::<Digest>() as u64;

/// Writes a saved session part by part.
pub(crate) struct Writer<'w> {
    out: &'w mut dyn Write,
    header: Digest,
    /// Parts that were written.
    parts: u64,
}

impl<'w> Writer<'w> {
    /// Writes the header.
    pub(crate) fn new(out: &'w mut dyn Write, header: &Header) -> Result<Writer<'w>, SessionFileError> {
        let json = header.to_json();
        let length = u32::try_from(json.len()).ok().filter(|length| *length <= MAX_HEADER);
        let length = length.ok_or_else(|| malformed(format!("it has {} bytes", json.len())))?;
        let head = [&MAGIC[..], &VERSION.to_le_bytes(), &length.to_le_bytes(), &json].concat();
        let sum = digest(b"header", &head);
        out.write_all(&head)?;
        out.write_all(&sum)?;
        Ok(Writer { out, header: sum, parts: 0 })
    }

    /// Writes a part and its checksum.
    pub(crate) fn part(&mut self, bytes: &[u8]) -> Result<(), SessionFileError> {
        self.out.write_all(bytes)?;
        self.out.write_all(&digest(&seed(&self.header, self.parts), bytes))?;
        self.parts += 1;
        Ok(())
    }
}

/// Reads a saved session part by part.
pub(crate) struct Reader<'r> {
    input: &'r mut dyn Read,
    pub(crate) header: Header,
    sum: Digest,
    parts: u64,
    /// The offset of the next byte.
    at: u64,
}

impl<'r> Reader<'r> {
    /// Reads the header of a file of this many bytes.
    pub(crate) fn open(input: &'r mut dyn Read, bytes: u64) -> Result<Reader<'r>, SessionFileError> {
        let mut head = vec![0; FIXED.min(usize::try_from(bytes).unwrap_or(FIXED))];
        read(input, &mut head)?;
        let begins = head.get(..MAGIC.len()).unwrap_or(&head);
        if begins != MAGIC {
            return Err(SessionFileError::NotASession { begins: begins.escape_ascii().to_string() });
        }
        let word = |at: usize| head.get(at..at + 4)?.first_chunk().map(|word| u32::from_le_bytes(*word));
        let short = |expected: u64| SessionFileError::Length { found: bytes, expected };
        let least = FIXED as u64 + SUM;
        let version = word(MAGIC.len()).ok_or_else(|| short(least))?;
        if version != VERSION {
            return Err(SessionFileError::Version { found: version, known: VERSION });
        }
        let length = word(MAGIC.len() + 4).ok_or_else(|| short(least))?;
        if length > MAX_HEADER {
            return Err(malformed(format!("it has {length} bytes, at most {MAX_HEADER} are possible")));
        }
        let at = least + u64::from(length);
        if at > bytes {
            return Err(short(at));
        }
        head.resize(FIXED + length as usize, 0);
        read(input, &mut head[FIXED..])?;
        let mut sum: Digest = [0; 16];
        read(input, &mut sum)?;
        if sum != digest(b"header", &head) {
            return Err(SessionFileError::Damaged { part: "the header".to_owned(), at: 0 });
        }
        let header = Header::parse(&head[FIXED..])?;
        let behind = header.bytes_behind(SUM).and_then(|behind| behind.checked_add(at));
        let expected = behind.ok_or_else(|| malformed("its sizes are too large"))?;
        if expected != bytes {
            return Err(short(expected));
        }
        Ok(Reader { input, header, sum, parts: 0, at })
    }

    /// Reads the next part, which has this many bytes as the header says, and compares its checksum. `name` is what
    /// errors call it.
    pub(crate) fn part(
        &mut self,
        bytes: u64,
        part: &mut Vec<u8>,
        name: impl FnOnce() -> String,
    ) -> Result<(), SessionFileError> {
        let length = usize::try_from(bytes).map_err(|_| malformed("a part is too large for this machine"))?;
        part.clear();
        part.try_reserve_exact(length).map_err(|_| malformed("a part is too large for the memory"))?;
        part.resize(length, 0);
        let end = self.at.saturating_add(bytes).saturating_add(SUM);
        read(self.input, part)?;
        let mut sum: Digest = [0; 16];
        read(self.input, &mut sum)?;
        if sum != digest(&seed(&self.sum, self.parts), part) {
            return Err(SessionFileError::Damaged { part: name(), at: self.at });
        }
        self.parts += 1;
        self.at = end;
        Ok(())
    }
}

/// Gives the parts of a file the checksums that they must have, as far as its header can be read: what damage leaves to
/// the other checks.
pub(crate) fn seal(file: &mut [u8]) {
    let length = file.get(FIXED - 4..FIXED).and_then(|word| word.first_chunk().copied());
    let end = length.map_or(usize::MAX, |word| FIXED.saturating_add(u32::from_le_bytes(word) as usize));
    if file.len() < end.saturating_add(SUM as usize) {
        return;
    }
    let sum = digest(b"header", &file[..end]);
    file[end..end + SUM as usize].copy_from_slice(&sum);
    let whole = file.len() as u64;
    let Ok(Reader { header, .. }) = Reader::open(&mut &*file, whole) else { return };
    let mut at = end + SUM as usize;
    for (number, bytes) in header.parts().enumerate() {
        let next = at + bytes as usize;
        let of_part = digest(&seed(&sum, number as u64), &file[at..next]);
        file[next..next + SUM as usize].copy_from_slice(&of_part);
        at = next + SUM as usize;
    }
}

/// What the checksum of a part covers beside its bytes.
fn seed(header: &Digest, part: u64) -> [u8; 24] {
    let mut seed = [0; 24];
    seed[..16].copy_from_slice(header);
    seed[16..].copy_from_slice(&part.to_le_bytes());
    seed
}

/// Reads exactly as many bytes as the file must have.
fn read(input: &mut dyn Read, bytes: &mut [u8]) -> Result<(), SessionFileError> {
    input.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => SessionFileError::Shortened,
        _ => SessionFileError::Io(error),
    })
}

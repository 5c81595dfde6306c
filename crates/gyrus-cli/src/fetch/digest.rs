//! SHA-256 checksums.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use sha2::Digest as _;

/// A SHA-256 checksum.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest([u8; 32]);

/// Sums up bytes as they come.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hasher(sha2::Sha256);

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    pub(crate) fn digest(&self) -> Digest {
        Digest(self.0.clone().finalize().into())
    }
}

impl Digest {
    /// A checksum in the program's text; one that is none does not compile.
    pub(crate) const fn of_hex(text: &str) -> Digest {
        match Digest::parse(text) {
            Some(digest) => digest,
            None => panic!("a SHA-256 has 64 hexadecimal digits"),
        }
    }

    /// Reads 64 hexadecimal digits.
    pub(crate) const fn parse(text: &str) -> Option<Digest> {
        let digits = text.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        let (mut bytes, mut n) = ([0; 32], 0);
        while n < 64 {
            let Some(digit) = (digits[n] as char).to_digit(16) else { return None };
            bytes[n / 2] = bytes[n / 2] << 4 | digit as u8;
            n += 1;
        }
        Some(Digest(bytes))
    }

    #[cfg(test)]
    pub(crate) fn of(bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.digest()
    }

    /// The checksum of a file, and its size.
    pub(crate) fn of_file(path: &Path) -> io::Result<(Digest, u64)> {
        let mut hasher = Hasher::default();
        let bytes = feed(&mut std::fs::File::open(path)?, &mut hasher)?;
        Ok((hasher.digest(), bytes))
    }
}

/// Sums up the rest of a file and returns how much that was.
pub(crate) fn feed(reader: &mut impl Read, hasher: &mut Hasher) -> io::Result<u64> {
    let (mut buffer, mut bytes) = (vec![0; 1 << 18], 0);
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(n) => {
                hasher.update(&buffer[..n]);
                bytes += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_is_written_and_read() {
        // FIPS 180-4's own example.
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc").to_string(), text);
        assert_eq!(Digest::parse(text), Some(Digest::of(b"abc")));
        assert_eq!(Digest::parse(&text.to_uppercase()), Some(Digest::of(b"abc")));
        for bad in ["", "ba78", &text.replace('b', "g"), &text.replace("ba", "é")] {
            assert_eq!(Digest::parse(bad), None);
        }
    }
}

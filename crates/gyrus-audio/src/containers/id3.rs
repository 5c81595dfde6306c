//! ID3v2 tags before the audio.

use crate::AudioError;

const HEADER: usize = 10;
/// A flag: the header is repeated after the tag.
const FOOTER: u8 = 0x10;

/// Removes the tags at the beginning. Their frames are never read.
pub(super) fn remove(bytes: &mut Vec<u8>) -> Result<(), AudioError> {
    let mut end = 0;
    while let Some(length) = tag_bytes(&bytes[end..]) {
        let left = bytes.len() - end;
        if length > left {
            return Err(AudioError::Truncated {
                declared: format!("an ID3 tag of {length} bytes"),
                held: format!("{left} bytes"),
            });
        }
        end += length;
    }
    bytes.drain(..end);
    match bytes.is_empty() {
        true => Err(AudioError::NoSamples),
        false => Ok(()),
    }
}

/// The length of the tag that begins here.
fn tag_bytes(bytes: &[u8]) -> Option<usize> {
    let &[b'I', b'D', b'3', _, _, flags, a, b, c, d] = bytes.first_chunk::<HEADER>()? else { return None };
    // Seven bits of each byte.
    let body = [a, b, c, d].iter().fold(0usize, |sum, byte| sum << 7 | usize::from(byte & 0x7f));
    let footer = if flags & FOOTER != 0 { HEADER } else { 0 };
    Some(HEADER + body + footer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_removed_and_longer_ones_than_the_file_are_errors() {
        let tag = |body: u8, flags: u8| [b'I', b'D', b'3', 4, 0, flags, 0, 0, 0, body].to_vec();
        let mut bytes = [tag(3, 0), vec![7; 3], tag(1, FOOTER), vec![8; 11], vec![0xff, 0xfb]].concat();
        remove(&mut bytes).unwrap();
        assert_eq!(bytes, [0xff, 0xfb]);
        let mut short = [tag(0x7f, 0), vec![0; 9]].concat();
        let error = remove(&mut short).unwrap_err().to_string();
        assert_eq!(error, "the file is truncated: it declares an ID3 tag of 137 bytes, and holds 19 bytes");
        assert_eq!(remove(&mut tag(0, 0)), Err(AudioError::NoSamples));
    }
}

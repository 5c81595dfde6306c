//! Metadata of native FLAC files.

use super::malformed;
use crate::AudioError;

const LAST: u8 = 0x80;
/// The type of the block that describes the stream.
const STREAM_INFO: u8 = 0;
/// The bytes of a block before its body: the type, and 24 bits of length.
const HEADER: usize = 4;

/// Leaves the description of the stream as the only block of metadata.
pub(super) fn remove_metadata(bytes: &mut Vec<u8>) -> Result<(), AudioError> {
    let (mut at, mut kept) = (4, 0);
    loop {
        let header = bytes.get(at..).and_then(<[u8]>::first_chunk::<HEADER>);
        let Some(&[kind, a, b, c]) = header else {
            return Err(malformed("FLAC", format!("the metadata end at byte {at}")));
        };
        let (body, length) = (at + HEADER, u32::from_be_bytes([0, a, b, c]) as usize);
        let left = bytes.len() - body;
        if length > left {
            let problem = format!("metadata of {length} bytes at byte {at}, of which {left} are left");
            return Err(malformed("FLAC", problem));
        }
        if at == 4 {
            if kind & !LAST != STREAM_INFO {
                return Err(malformed("FLAC", "the first block does not describe the stream".to_owned()));
            }
            kept = body + length;
        }
        at = body + length;
        if kind & LAST != 0 {
            break;
        }
    }
    bytes[4] |= LAST;
    bytes.drain(kept..at);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_description_of_the_stream_is_left() {
        let mut bytes = b"fLaC\x00\x00\x00\x02ab\x04\x00\x00\x03xyz\x81\x00\x00\x01pframes".to_vec();
        remove_metadata(&mut bytes).unwrap();
        assert_eq!(bytes, b"fLaC\x80\x00\x00\x02abframes");
        let error = |bytes: &[u8]| remove_metadata(&mut bytes.to_vec()).unwrap_err().to_string();
        assert_eq!(error(b"fLaC\x00\x00\x00\x01a\x04"), "malformed FLAC data: the metadata end at byte 9");
        assert_eq!(
            error(b"fLaC\x80\xff\xff\xffabc"),
            "malformed FLAC data: metadata of 16777215 bytes at byte 4, of which 3 are left"
        );
        assert_eq!(
            error(b"fLaC\x84\x00\x00\x00"),
            "malformed FLAC data: the first block does not describe the stream"
        );
    }
}

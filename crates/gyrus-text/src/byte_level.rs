//! The byte alphabet of GPT-2: every byte is represented by one printable character.
//!
//! Printable bytes of Latin-1 represent themselves. The 68 others (controls, spaces, the soft hyphen) are represented
//! by the characters from U+0100 on, in byte order.

/// Whether a byte is represented by the character of the same number.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The character of each byte.
pub(crate) const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut next = 0x100_u32;
    let mut byte = 0;
    while byte < 256 {
        let code = if is_printable(byte as u8) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        chars[byte] = match char::from_u32(code) {
            Some(c) => c,
            None => panic!("below the surrogates"),
        };
        byte += 1;
    }
    chars
};

/// One more than the highest character of the alphabet.
const END: usize = 0x144;

/// The byte of each character below [`END`]; above 255 for characters outside the alphabet.
const BYTES: [u16; END] = {
    let mut bytes = [u16::MAX; END];
    let mut byte = 0;
    while byte < 256 {
        bytes[CHARS[byte] as usize] = byte as u16;
        byte += 1;
    }
    bytes
};

/// The byte that a character represents.
#[inline]
pub(crate) fn byte_of(c: char) -> Option<u8> {
    u8::try_from(*BYTES.get(c as usize)?).ok()
}

/// Appends the bytes of a token's text. Characters outside the alphabet, which only occur in user-defined tokens, are
/// copied as UTF-8.
pub(crate) fn decode_into(text: &str, out: &mut Vec<u8>) {
    for c in text.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_that_of_gpt2() {
        assert_eq!(CHARS[0x20], '\u{120}');
        assert_eq!(CHARS[0x0A], '\u{10A}');
        assert_eq!(CHARS[0xA0], '\u{142}');
        assert_eq!(CHARS[0xAD], '\u{143}');
        assert_eq!(CHARS[b'a' as usize], 'a');
        assert!((0..=255).all(|byte| byte_of(CHARS[byte as usize]) == Some(byte)));
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('\u{144}'), None);
    }
}

//! SentencePiece's precompiled normalisation rules: a double-array trie from character sequences to their replacements.
//!
//! The map comes from a file and is not trusted: every index is bounds-checked, and an invalid one is no match.

use crate::error::TokenizerError;

/// A compiled character map.
#[derive(Debug, Default)]
pub(crate) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

impl Charsmap {
    /// Parses the map: the trie's size in bytes, the trie, and the zero-terminated replacements.
    pub(crate) fn new(map: &[u8]) -> Result<Self, TokenizerError> {
        if map.is_empty() {
            return Ok(Self::default());
        }
        let fail = |what: String| TokenizerError::Charsmap { len: map.len(), what };
        let (size, rest) =
            map.split_first_chunk::<4>().ok_or_else(|| fail("it is too short for its header".into()))?;
        let size = u32::from_le_bytes(*size) as usize;
        if !size.is_multiple_of(4) || size > rest.len() {
            return Err(fail(format!("its header has an invalid trie size of {size} bytes")));
        }
        let (trie, replacements) = rest.split_at(size);
        if std::str::from_utf8(replacements).is_err() {
            return Err(fail("replacements are not UTF-8".into()));
        }
        if replacements.last().is_some_and(|&last| last != 0) {
            return Err(fail("the last replacement is not zero-terminated".into()));
        }
        let units = trie.chunks_exact(4).map(|u| u32::from_le_bytes([u[0], u[1], u[2], u[3]])).collect();
        Ok(Self { units, replacements: replacements.to_vec() })
    }

    /// The longest sequence at the start of `text` that has a replacement: its length and the replacement.
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(usize, &str)> {
        let mut found = None;
        self.walk(text, |len, value| {
            found = Some((len, value));
            true
        });
        let (len, start) = found?;
        Some((len, self.replacement(start)?))
    }

    /// The replacement of the shortest sequence at the start of `text` that has one.
    pub(crate) fn shortest(&self, text: &[u8]) -> Option<&str> {
        let mut found = None;
        self.walk(text, |_, value| {
            found = Some(value);
            false
        });
        self.replacement(found?)
    }

    /// Calls `found` with the length and value of each sequence at the start of `text`, until it returns `false`.
    fn walk(&self, text: &[u8], mut found: impl FnMut(usize, u32) -> bool) {
        let Some(&root) = self.units.first() else { return };
        let mut at = offset(root);
        for (index, &byte) in text.iter().enumerate() {
            at ^= usize::from(byte);
            let Some(&unit) = self.units.get(at) else { break };
            // The low byte is the label; the top bit marks values, which no label has.
            if unit & (1 << 31 | 0xFF) != u32::from(byte) || byte == 0 {
                break;
            }
            at ^= offset(unit);
            if unit >> 8 & 1 == 1 {
                let Some(&value) = self.units.get(at) else { break };
                if !found(index + 1, value & !(1 << 31)) {
                    break;
                }
            }
        }
    }

    fn replacement(&self, start: u32) -> Option<&str> {
        let tail = self.replacements.get(start as usize..)?;
        let end = tail.iter().position(|&byte| byte == 0)?;
        std::str::from_utf8(&tail[..end]).ok()
    }
}

/// The offset of a node's children: 21 bits, times 256 if the extension bit is set.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 1 << 9) >> 6)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_maps_are_errors() {
        for map in [&[1, 2, 3][..], &[8, 0, 0, 0, 1, 2, 3, 4], &[3, 0, 0, 0, 1, 2, 3], &[0, 0, 0, 0, b'a']] {
            assert!(Charsmap::new(map).is_err(), "{map:?}");
        }
        assert!(Charsmap::new(&[0xFF; 4]).is_err());
        assert_eq!(Charsmap::new(&[]).expect("no map").longest(b"a"), None);
    }

    #[test]
    fn offsets_out_of_range_do_not_match() {
        // A root whose children are out of range.
        let mut map = vec![4, 0, 0, 0];
        map.extend_from_slice(&(0x7FFF_FC00_u32 | 1 << 9).to_le_bytes());
        map.push(0);
        assert_eq!(Charsmap::new(&map).expect("well-formed").longest(b"abc"), None);
    }
}

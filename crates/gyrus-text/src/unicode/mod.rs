//! Unicode character classes, as in the regular expressions of the reference tokenizers.

mod table;

use std::sync::LazyLock;

/// A set of classes of one character. The values are those of the generated table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(u16);

impl Class {
    /// No class: unassigned code points and invalid UTF-8.
    pub(crate) const NONE: Self = Self(0);
    /// `\p{L}`
    pub(crate) const LETTER: Self = Self(1);
    /// `\p{N}`
    pub(crate) const NUMBER: Self = Self(2);
    /// `\s`
    pub(crate) const SPACE: Self = Self(4);
    /// `\p{M}`
    pub(crate) const MARK: Self = Self(8);
    /// `\p{P}`
    pub(crate) const PUNCTUATION: Self = Self(16);
    /// `\p{S}`
    pub(crate) const SYMBOL: Self = Self(32);
    /// `\p{Lu}` and `\p{Lt}`
    pub(crate) const UPPER: Self = Self(64);
    /// `\p{Ll}`
    pub(crate) const LOWER: Self = Self(128);
    /// `\p{Han}`
    pub(crate) const HAN: Self = Self(256);
    /// Punctuation in BERT's tables, which are of an older Unicode release.
    pub(crate) const BERT_PUNCTUATION: Self = Self(1024);
    /// Accents that BERT strips.
    pub(crate) const BERT_ACCENT: Self = Self(2048);
    /// Control characters that BERT strips.
    pub(crate) const BERT_CONTROL: Self = Self(4096);
    /// Combining marks in the tables of Hugging Face's normalisers, which are of an older Unicode release.
    pub(crate) const COMBINING: Self = Self(8192);
    /// Characters with a decomposition in those tables.
    pub(crate) const DECOMPOSES: Self = Self(16384);

    /// The union of two sets.
    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the two sets share a class.
    #[inline]
    pub(crate) const fn is(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

const BLOCK: usize = 128;

/// Classes by code point: a block index for every 128 code points; equal blocks are shared.
pub(crate) struct Classes {
    blocks: Vec<u16>,
    classes: Vec<Class>,
    ascii: [Class; 128],
}

static CLASSES: LazyLock<Classes> = LazyLock::new(Classes::build);

/// The table, built on first use.
pub(crate) fn classes() -> &'static Classes {
    &CLASSES
}

impl Classes {
    fn build() -> Self {
        let mut blocks = Vec::with_capacity(0x11_0000 / BLOCK);
        let mut classes: Vec<Class> = Vec::new();
        let mut seen: std::collections::HashMap<[u16; BLOCK], u16> = std::collections::HashMap::new();
        let mut run = 0;
        for start in (0..0x11_0000).step_by(BLOCK) {
            let mut block = [0_u16; BLOCK];
            for (offset, class) in block.iter_mut().enumerate() {
                let code = (start + offset) as u32;
                while run + 1 < table::RUNS.len() && table::RUNS[run + 1].0 <= code {
                    run += 1;
                }
                *class = table::RUNS[run].1;
            }
            let next = (classes.len() / BLOCK) as u16;
            let index = *seen.entry(block).or_insert(next);
            if index == next {
                classes.extend(block.map(Class));
            }
            blocks.push(index);
        }
        let mut ascii = [Class::NONE; 128];
        ascii.copy_from_slice(&classes[..128]);
        Self { blocks, classes, ascii }
    }

    /// The classes of a code point.
    #[inline]
    pub(crate) fn of(&self, code: u32) -> Class {
        if let Some(&class) = self.ascii.get(code as usize) {
            return class;
        }
        match self.blocks.get(code as usize / BLOCK) {
            Some(&block) => self.classes[block as usize * BLOCK + code as usize % BLOCK],
            None => Class::NONE,
        }
    }

    /// The classes of a character.
    #[inline]
    pub(crate) fn of_char(&self, c: char) -> Class {
        self.of(c as u32)
    }
}

/// Not a code point; invalid UTF-8 bytes decode to it.
pub(crate) const INVALID: u32 = u32::MAX;

/// The code point at `at` and its length in bytes. A byte that starts no valid sequence counts as one character without
/// a class, so that any bytes can be split. `at` must be within `text`.
#[inline]
pub(crate) fn code_at(text: &[u8], at: usize) -> (u32, usize) {
    let first = text[at];
    if first < 0x80 {
        return (u32::from(first), 1);
    }
    let rest = &text[at + 1..];
    let tail = |index: usize| match rest.get(index) {
        Some(&byte) if byte & 0xC0 == 0x80 => Some(u32::from(byte & 0x3F)),
        _ => None,
    };
    let decoded = match first {
        0xC2..=0xDF => tail(0).map(|a| ((u32::from(first) & 0x1F) << 6 | a, 2)),
        0xE0..=0xEF => tail(0).zip(tail(1)).map(|(a, b)| ((u32::from(first) & 0x0F) << 12 | a << 6 | b, 3)),
        0xF0..=0xF4 => tail(0)
            .zip(tail(1))
            .zip(tail(2))
            .map(|((a, b), c)| ((u32::from(first) & 0x07) << 18 | a << 12 | b << 6 | c, 4)),
        _ => None,
    };
    match decoded {
        // Overlong forms and surrogates are invalid.
        Some((code, 3)) if code < 0x800 || (0xD800..0xE000).contains(&code) => (INVALID, 1),
        Some((code, 4)) if !(0x1_0000..0x11_0000).contains(&code) => (INVALID, 1),
        Some(found) => found,
        None => (INVALID, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_well_known_characters() {
        let table = classes();
        assert!(table.of_char('a').is(Class::LETTER) && table.of_char('a').is(Class::LOWER));
        assert!(table.of_char('Ǆ').is(Class::UPPER) && table.of_char('ǅ').is(Class::UPPER));
        assert!(table.of_char('½').is(Class::NUMBER) && table.of_char('Ⅷ').is(Class::NUMBER));
        assert!(table.of_char('\u{3000}').is(Class::SPACE) && table.of_char('\u{85}').is(Class::SPACE));
        assert!(!table.of_char('\u{200B}').is(Class::SPACE));
        assert!(table.of_char('\u{301}').is(Class::MARK) && table.of_char('\u{301}').is(Class::BERT_ACCENT));
        assert!(table.of_char('漢').is(Class::HAN) && !table.of_char('か').is(Class::HAN));
        assert!(table.of_char('~').is(Class::SYMBOL) && table.of_char('!').is(Class::PUNCTUATION));
        assert_eq!(table.of(INVALID), Class::NONE);
    }

    #[test]
    fn decoding_agrees_with_the_standard_library() {
        for c in (0..0x11_0000).filter_map(char::from_u32) {
            let mut buffer = [0; 4];
            let bytes = c.encode_utf8(&mut buffer).as_bytes();
            assert_eq!(code_at(bytes, 0), (c as u32, bytes.len()));
        }
        for bytes in
            [&[0x80][..], &[0xC0, 0x80], &[0xE0, 0x80, 0x80], &[0xED, 0xA0, 0x80], &[0xF4, 0x90, 0x80, 0x80]]
        {
            assert_eq!(code_at(bytes, 0), (INVALID, 1));
        }
        assert_eq!(code_at(&[0xE4, 0xBD], 0), (INVALID, 1));
    }
}

//! The tokens: their texts, kinds and bytes.

use crate::byte_level;
use crate::data::{Spelling, TokenKind};
use crate::error::TokenizerError;
use crate::table::TextTable;

/// The character that SentencePiece writes for a space.
pub(crate) const ESCAPED_SPACE: &str = "\u{2581}";

/// Validated tokens. Every list is as long as the vocabulary.
#[derive(Debug)]
pub(crate) struct Vocab {
    pub(crate) tokens: Vec<String>,
    pub(crate) kinds: Vec<TokenKind>,
    pub(crate) scores: Vec<f64>,
    texts: TextTable,
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// Ids are 32-bit numbers, and merging reserves a few of them as markers.
pub(crate) const MAX_TOKENS: usize = 1 << 30;

impl Vocab {
    pub(crate) fn new(
        tokens: Vec<String>,
        mut kinds: Vec<TokenKind>,
        mut scores: Vec<f64>,
        spelling: &Spelling,
    ) -> Result<Self, TokenizerError> {
        let count = tokens.len();
        if count == 0 || count > MAX_TOKENS {
            return Err(TokenizerError::TokenCount { count, max: MAX_TOKENS });
        }
        if kinds.is_empty() {
            kinds.resize(count, TokenKind::Normal);
        }
        if scores.is_empty() {
            scores.resize(count, 0.0);
        }
        for (list, len) in [("token kinds", kinds.len()), ("scores", scores.len())] {
            if len != count {
                return Err(TokenizerError::Length { list, len, tokens: count });
            }
        }
        if let Some(id) = scores.iter().position(|score| !score.is_finite()) {
            return Err(TokenizerError::Score { id: id as u32, score: scores[id] });
        }
        let total = tokens.iter().map(String::len).sum();
        let mut texts = TextTable::with_capacity(count, total);
        let mut bytes = Vec::with_capacity(total);
        let mut ends = Vec::with_capacity(count);
        for (id, text) in tokens.iter().enumerate() {
            let kind = &mut kinds[id];
            if is_placeholder(text, id) {
                *kind = TokenKind::Unused;
            }
            match *kind {
                TokenKind::Byte => bytes.push(
                    byte_of(text)
                        .ok_or_else(|| TokenizerError::ByteToken { id: id as u32, text: text.clone() })?,
                ),
                TokenKind::Unknown | TokenKind::Control | TokenKind::UserDefined
                    if *spelling == Spelling::ByteLevel =>
                {
                    bytes.extend_from_slice(text.as_bytes());
                }
                _ => render(spelling, text, &mut bytes),
            }
            ends.push(bytes.len());
            // An empty text is an unused id; there may be several.
            if !text.is_empty() {
                texts.insert(text.as_bytes(), id as u32).map_err(|first| TokenizerError::DuplicateToken {
                    text: text.clone(),
                    first,
                    second: id as u32,
                })?;
            }
        }
        Ok(Self { tokens, kinds, scores, texts, bytes, ends })
    }

    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn id_of(&self, text: &str) -> Option<u32> {
        self.texts.get(text.as_bytes())
    }

    pub(crate) fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The bytes of a token; empty for an id outside the vocabulary.
    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match self.ends.get(id) {
            Some(&end) => &self.bytes[if id == 0 { 0 } else { self.ends[id - 1] }..end],
            None => &[],
        }
    }

    /// The ids of the 256 byte tokens, where the vocabulary has them.
    pub(crate) fn byte_ids(&self) -> [Option<u32>; 256] {
        let mut ids = [None; 256];
        for (id, kind) in self.kinds.iter().enumerate() {
            if *kind == TokenKind::Byte {
                ids[self.bytes(id as u32)[0] as usize].get_or_insert(id as u32);
            }
        }
        ids
    }
}

/// Appends the bytes of a token that is not the first of a text.
fn render(spelling: &Spelling, text: &str, out: &mut Vec<u8>) {
    match spelling {
        Spelling::ByteLevel => byte_level::decode_into(text, out),
        Spelling::Text(replacements) => match replacements.as_slice() {
            // The usual case, without a copy.
            [(from, to)] if !from.is_empty() => {
                for (index, part) in text.split(from.as_str()).enumerate() {
                    out.extend_from_slice(if index == 0 { b"" } else { to.as_bytes() });
                    out.extend_from_slice(part.as_bytes());
                }
            }
            all => {
                let replace = |text: String, (from, to): &(String, String)| text.replace(from.as_str(), to);
                out.extend_from_slice(all.iter().fold(text.to_owned(), replace).as_bytes());
            }
        },
        Spelling::Words { continuation, cleanup } => {
            if let Some(rest) = text.strip_prefix(continuation.as_str()).filter(|_| !continuation.is_empty())
            {
                return out.extend_from_slice(rest.as_bytes());
            }
            let mut word = format!(" {text}");
            if *cleanup {
                for (from, to) in CLEANUP {
                    word = word.replace(from, to);
                }
            }
            out.extend_from_slice(word.as_bytes());
        }
    }
}

/// Spaces that English text does not have, as BERT's decoder removes them.
const CLEANUP: [(&str, &str); 11] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];

/// The byte of a token text of the exact form `<0xHH>`.
pub(crate) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?.as_bytes();
    let digit = |at: usize| (digits[at] as char).to_digit(16);
    if digits.len() != 2 {
        return None;
    }
    Some((digit(0)? * 16 + digit(1)?) as u8)
}

/// Converters fill unused ids with `[PADn]`, where n is the id. The model's reference tokenizer does not have these
/// tokens, so text is never encoded to one.
fn is_placeholder(text: &str, id: usize) -> bool {
    let number = text.strip_prefix("[PAD").and_then(|rest| rest.strip_suffix(']'));
    number.is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()) && number.parse() == Ok(id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocab(tokens: &[&str], kind: TokenKind) -> Result<Vocab, TokenizerError> {
        let tokens: Vec<_> = tokens.iter().map(|t| (*t).to_owned()).collect();
        let kinds = vec![kind; tokens.len()];
        Vocab::new(tokens, kinds, Vec::new(), &Spelling::Text(Vec::new()))
    }

    #[test]
    fn byte_tokens_are_parsed_strictly() {
        assert_eq!(vocab(&["<0x0A>"], TokenKind::Byte).expect("a byte").bytes(0), b"\n");
        for text in ["<0x-1>", "<0x+1>", "<0xA>", "<0x0AB>", "0x0A", "<0xGG>", "<0xé>", ""] {
            let error = vocab(&[text], TokenKind::Byte).expect_err("refused");
            assert_eq!(error, TokenizerError::ByteToken { id: 0, text: text.into() });
        }
    }

    #[test]
    fn errors_name_duplicate_tokens() {
        let error = vocab(&["a", "b", "a"], TokenKind::Normal).expect_err("refused");
        assert_eq!(error, TokenizerError::DuplicateToken { text: "a".into(), first: 0, second: 2 });
        assert!(vocab(&["", ""], TokenKind::Normal).is_ok());
    }

    #[test]
    fn placeholders_are_not_tokens() {
        let vocab = vocab(&["a", "[PAD1]", "[PAD7]"], TokenKind::UserDefined).expect("fine");
        assert_eq!(vocab.kinds, [TokenKind::UserDefined, TokenKind::Unused, TokenKind::UserDefined]);
    }
}

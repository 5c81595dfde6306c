//! WordPiece, the tokenizer of BERT: clean the text, split it into words, match the longest pieces.
//!
//! Vocabularies in GGUF mark the beginnings of words with U+2581 instead of marking continuations.

use unicode_normalization::UnicodeNormalization;

use crate::data::TokenKind;
use crate::table::Trie;
use crate::unicode::{Class, classes};
use crate::vocab::{ESCAPED_SPACE, Vocab};

/// Longer words are encoded as the unknown token.
const LONGEST_WORD: usize = 100;

/// A WordPiece vocabulary.
pub(crate) struct WordPiece {
    beginnings: Trie,
    continuations: Trie,
    unknown: Option<u32>,
    lowercase: bool,
    strip_accents: bool,
}

impl WordPiece {
    pub(crate) fn new(vocab: &Vocab, unknown: Option<u32>, lowercase: bool, strip_accents: bool) -> Self {
        let (mut beginnings, mut continuations) = (Trie::new(), Trie::new());
        for (id, (text, kind)) in vocab.tokens.iter().zip(&vocab.kinds).enumerate() {
            if matches!(kind, TokenKind::Normal | TokenKind::UserDefined) {
                match text.strip_prefix(ESCAPED_SPACE) {
                    Some(beginning) => beginnings.insert(beginning.as_bytes(), id as u32),
                    None => continuations.insert(text.as_bytes(), id as u32),
                }
            }
        }
        Self { beginnings, continuations, unknown, lowercase, strip_accents }
    }

    /// Appends the ids of `text`, which holds no special tokens.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let classes = classes();
        let mut word = String::new();
        let cleaned = text.chars().filter(|&c| !classes.of_char(c).is(Class::BERT_CONTROL));
        let mut take = |c: char| {
            let class = classes.of_char(c);
            if class.is(Class::SPACE) {
                self.finish(&mut word, out);
            } else if is_ideograph(c) || class.is(Class::BERT_PUNCTUATION) {
                self.finish(&mut word, out);
                word.push(c);
                self.finish(&mut word, out);
            } else {
                word.push(c);
            }
        };
        let mut lower = |c: char| {
            if self.lowercase { c.to_lowercase().for_each(&mut take) } else { take(c) }
        };
        if self.strip_accents {
            cleaned.nfd().filter(|&c| !classes.of_char(c).is(Class::BERT_ACCENT)).for_each(&mut lower);
        } else {
            cleaned.for_each(&mut lower);
        }
        self.finish(&mut word, out);
    }

    /// Splits a word into the longest matching pieces from the left. If no piece matches, the word is unknown.
    fn finish(&self, word: &mut String, out: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let start = out.len();
        let bytes = word.as_bytes();
        let too_long = word.chars().count() > LONGEST_WORD;
        let mut pieces = &self.beginnings;
        let mut at = 0;
        while at < bytes.len() {
            let mut node = Trie::ROOT;
            let mut longest = None;
            for (offset, &byte) in bytes[at..].iter().enumerate() {
                let Some(next) = pieces.step(node, byte) else { break };
                node = next;
                if let Some(id) = pieces.id(node) {
                    longest = Some((id, at + offset + 1));
                }
            }
            let Some((id, end)) = longest.filter(|_| !too_long) else {
                out.truncate(start);
                out.extend(self.unknown);
                break;
            };
            out.push(id);
            at = end;
            pieces = &self.continuations;
        }
        word.clear();
    }
}

/// Each Chinese character is a word. The blocks are BERT's, including a gap in one of them.
fn is_ideograph(c: char) -> bool {
    matches!(c as u32,
        0x3400..=0x4DBF | 0x4E00..=0x9FFF | 0xF900..=0xFAFF | 0x2_0000..=0x2_A6DF | 0x2_A700..=0x2_B81F
        | 0x2_B920..=0x2_CEAF | 0x2_F800..=0x2_FA1F)
}

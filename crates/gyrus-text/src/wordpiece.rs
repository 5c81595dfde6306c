//! WordPiece, the tokenizer of BERT: a word is encoded as the longest matching pieces.

use crate::data::{TokenKind, WordMarks};
use crate::table::Trie;
use crate::vocab::{ESCAPED_SPACE, Vocab};

/// A WordPiece vocabulary.
pub(crate) struct WordPiece {
    beginnings: Trie,
    continuations: Trie,
    unknown: Option<u32>,
    longest_word: usize,
}

impl WordPiece {
    pub(crate) fn new(vocab: &Vocab, unknown: Option<u32>, words: &WordMarks, longest_word: usize) -> Self {
        let (mut beginnings, mut continuations) = (Trie::new(), Trie::new());
        for (id, (text, kind)) in vocab.tokens.iter().zip(&vocab.kinds).enumerate() {
            if !matches!(kind, TokenKind::Normal | TokenKind::UserDefined) {
                continue;
            }
            match words {
                WordMarks::Beginning => match text.strip_prefix(ESCAPED_SPACE) {
                    Some(beginning) => beginnings.insert(beginning.as_bytes(), id as u32),
                    None => continuations.insert(text.as_bytes(), id as u32),
                },
                // A text with the prefix is also the beginning of a word that is spelt like it.
                WordMarks::Continuation(prefix) => {
                    beginnings.insert(text.as_bytes(), id as u32);
                    if let Some(continuation) = text.strip_prefix(prefix.as_str()) {
                        continuations.insert(continuation.as_bytes(), id as u32);
                    }
                }
            }
        }
        Self { beginnings, continuations, unknown, longest_word }
    }

    /// Splits a word into the longest matching pieces from the left and appends their ids. If no piece matches, the
    /// word is unknown.
    pub(crate) fn encode(&self, word: &str, out: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let start = out.len();
        let bytes = word.as_bytes();
        let too_long = word.chars().count() > self.longest_word;
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
    }
}

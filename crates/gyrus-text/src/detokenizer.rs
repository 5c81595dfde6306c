//! Decodes a stream of token ids to text without splitting characters.

use std::ops::Deref;

use crate::data::TextStart;
use crate::tokenizer::Tokenizer;

/// The initial capacity for a token's bytes; few tokens are longer.
const TOKEN_BYTES: usize = 256;

/// Decodes a stream of token ids to a stream of text.
///
/// Each [`push`](Self::push) returns the characters that are complete. The bytes of an incomplete character are held
/// back. Bytes that no continuation can complete become U+FFFD. [`finish`](Self::finish) returns the rest. The tokenizer
/// is borrowed or shared: a `&Tokenizer` or an `Arc<Tokenizer>`.
#[derive(Debug, Clone)]
pub struct Detokenizer<T> {
    tokenizer: T,
    render_special: bool,
    /// What is still to be removed at the start: the space that the encoder adds.
    start: TextStart,
    /// The bytes of an incomplete character, at most three between two calls.
    tail: Vec<u8>,
}

impl<T: Deref<Target = Tokenizer>> Detokenizer<T> {
    /// For a stream that starts with the beginning of a text: the space that the encoder adds is removed.
    /// `render_special` renders control tokens as text, else they are skipped.
    pub fn new(tokenizer: T, render_special: bool) -> Self {
        let start = tokenizer.text_start();
        Self { tokenizer, render_special, start, tail: Vec::with_capacity(TOKEN_BYTES) }
    }

    /// For a stream that continues a text, such as a completion after its prompt: a leading space is kept.
    pub fn continuing(tokenizer: T, render_special: bool) -> Self {
        Self { tokenizer, render_special, start: TextStart::Keep, tail: Vec::with_capacity(TOKEN_BYTES) }
    }

    /// The text that the next id completes. It is often empty in the middle of a character, and always for an id
    /// outside the vocabulary.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.push_into(id, &mut text);
        text
    }

    /// As [`push`](Self::push), appended to `text`, so that one buffer serves the whole stream.
    pub fn push_into(&mut self, id: u32, text: &mut String) {
        let bytes = self.tokenizer.next_bytes(id, self.render_special, &mut self.start);
        self.tail.extend_from_slice(&bytes);
        self.take(false, text);
    }

    /// The bytes of an incomplete character.
    pub fn pending(&self) -> &[u8] {
        &self.tail
    }

    /// Ends the stream: an incomplete character becomes U+FFFD.
    pub fn finish(mut self) -> String {
        let mut text = String::new();
        self.take(true, &mut text);
        text
    }

    /// Moves the complete characters from `tail` to `text`.
    fn take(&mut self, last: bool, text: &mut String) {
        let mut kept = 0;
        for chunk in self.tail.utf8_chunks() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let ends_here = std::ptr::eq(invalid.as_ptr_range().end, self.tail.as_ptr_range().end);
            if ends_here && !last && could_continue(invalid) {
                kept = invalid.len();
            } else {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.tail.drain(..self.tail.len() - kept);
    }
}

/// Whether more bytes could complete a character.
fn could_continue(bytes: &[u8]) -> bool {
    // The standard library reports no error length exactly when input ended too early.
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

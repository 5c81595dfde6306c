//! Ids back to text, one at a time, never cutting a character.

use crate::tokenizer::Tokenizer;

/// Bytes that one token rarely exceeds: room for them is made once.
const LONGEST_PIECE: usize = 256;

/// Turns a stream of ids into a stream of text.
///
/// Each [`push`](Self::push) gives the characters that are complete; bytes of a character still under
/// way wait for the rest. Bytes that no continuation can complete become U+FFFD, and
/// [`finish`](Self::finish) gives what is left over.
#[derive(Debug, Clone)]
pub struct Detokenizer<'t> {
    tokenizer: &'t Tokenizer,
    render_special: bool,
    /// A space in front of the first text is the encoder's, not the writer's.
    at_start: bool,
    /// At most the three bytes a character can lack its end after, and those of a token while it is looked at.
    tail: Vec<u8>,
}

impl<'t> Detokenizer<'t> {
    /// For a stream that begins with the text: the space that the encoder puts in front is taken away.
    /// With `render_special`, control tokens appear as written; else they are passed over.
    pub fn new(tokenizer: &'t Tokenizer, render_special: bool) -> Self {
        let at_start = tokenizer.strips_leading_space();
        Self { tokenizer, render_special, at_start, tail: Vec::with_capacity(LONGEST_PIECE) }
    }

    /// For a stream that continues a text, as what a model generates continues its prompt: a leading
    /// space is part of it.
    pub fn continuing(tokenizer: &'t Tokenizer, render_special: bool) -> Self {
        Self { tokenizer, render_special, at_start: false, tail: Vec::with_capacity(LONGEST_PIECE) }
    }

    /// The text that the next id completes; often empty in the middle of a character. An id outside the
    /// vocabulary has no text.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.push_into(id, &mut text);
        text
    }

    /// As [`push`](Self::push), behind what `text` holds, so that a stream can do with one buffer.
    pub fn push_into(&mut self, id: u32, text: &mut String) {
        let mut bytes = self.tokenizer.rendered(id, self.render_special);
        if self.at_start && !bytes.is_empty() && !self.tokenizer.is_special(id) {
            self.at_start = false;
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.tail.extend_from_slice(bytes);
        self.take(false, text);
    }

    /// The bytes that wait for the rest of their character.
    pub fn pending(&self) -> &[u8] {
        &self.tail
    }

    /// The end of the stream: an unfinished character becomes U+FFFD.
    pub fn finish(mut self) -> String {
        let mut text = String::new();
        self.take(true, &mut text);
        text
    }

    /// Moves the complete characters from the tail to the text.
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

/// Whether more bytes could make a character of these.
fn could_continue(bytes: &[u8]) -> bool {
    // The standard library reports no error length exactly when input ended too early.
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

//! A rendered prompt with the source of each part.

use super::text::{Origin, Text};

/// The source of a part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The template itself. Only here are control tokens parsed.
    Template,
    /// The inputs, which are data.
    Data,
    /// The whole content of the message with this index, unchanged.
    Content(usize),
}

/// A rendered conversation that records which bytes the template wrote.
#[derive(Clone, Debug)]
pub struct Rendered {
    text: Text,
    /// The length in bytes of each message's content, if it is a string.
    contents: Vec<Option<usize>>,
}

impl Rendered {
    pub(super) fn new(text: Text, contents: Vec<Option<usize>>) -> Rendered {
        Rendered { text, contents }
    }

    /// The prompt.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The prompt in parts, in order; no part is empty.
    pub fn parts(&self) -> impl Iterator<Item = (&str, Source)> {
        self.text.parts().map(|(text, origin)| {
            let source = match origin {
                Origin::Template => Source::Template,
                Origin::Content { message, start: 0 }
                    if self.contents.get(message as usize) == Some(&Some(text.len())) =>
                {
                    Source::Content(message as usize)
                }
                _ => Source::Data,
            };
            (text, source)
        })
    }
}

//! The prompt, and whose words it is made of.

use super::text::{Origin, Text};

/// Whose words a part of a prompt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The template's own. Only there do control tokens mean what they say.
    Template,
    /// Taken from the inputs: what somebody said, whoever it was.
    Data,
    /// The content of the message of that index, whole and unchanged.
    Content(usize),
}

/// A rendered conversation that remembers which bytes the template wrote itself.
#[derive(Clone, Debug)]
pub struct Rendered {
    text: Text,
    /// Bytes of each message's content, where it is a string.
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

    /// The prompt in parts, in order, none of them empty.
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

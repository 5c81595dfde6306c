//! The parser of a model's output.

use std::fmt;

use crate::formats::harmony::Harmony;
use crate::marked::Marked;
use crate::{Event, Format, Tools};

/// Splits a model's output into events as it streams.
pub struct Parser {
    format: Format,
    kind: Kind,
}

enum Kind {
    Marked(Marked),
    Harmony(Harmony),
}

impl Parser {
    /// A parser of a format. Without `tools`, calls are text. `in_reasoning`: the prompt ends inside the reasoning
    /// ([`Format::begins_in_reasoning`]).
    pub fn new(format: Format, tools: Option<Tools>, in_reasoning: bool) -> Parser {
        let kind = match format {
            Format::Harmony => Kind::Harmony(Harmony::new(tools, in_reasoning)),
            other => Kind::Marked(Marked::new(other.table(), tools, in_reasoning)),
        };
        Parser { format, kind }
    }

    /// Takes the next text of the output, with control tokens written as text, and returns what is certain by now.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        self.take(text, false)
    }

    /// Whether the output so far ends inside the reasoning.
    pub fn is_in_reasoning(&self) -> bool {
        match &self.kind {
            Kind::Marked(parser) => parser.is_in_reasoning(),
            Kind::Harmony(parser) => parser.is_in_reasoning(),
        }
    }

    /// Ends the output and returns what was held back.
    pub fn finish(mut self) -> Vec<Event> {
        self.take("", true)
    }

    fn take(&mut self, text: &str, is_end: bool) -> Vec<Event> {
        let mut events = Vec::new();
        match &mut self.kind {
            Kind::Marked(parser) => parser.push(text, is_end, &mut events),
            Kind::Harmony(parser) => parser.push(text, is_end, &mut events),
        }
        events
    }
}

impl fmt::Debug for Parser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parser").field("format", &self.format).finish_non_exhaustive()
    }
}

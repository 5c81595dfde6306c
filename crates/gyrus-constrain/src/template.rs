//! JSON in a frame of fixed texts, such as `<tool_call>{…}</tool_call>`.

use std::fmt::Write;

use toktrie::TokTrie;

use crate::work::Work;
use crate::{Error, regex, schema};

/// A part of a text in a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// This text.
    Text(String),
    /// The control token of this name, or the name as text where the vocabulary has no such token.
    Marker(String),
    /// JSON that a schema describes.
    Schema(String),
    /// Text that a regular expression matches: the longest such text, so it must not be able to go on with the beginning
    /// of what follows.
    Regex(String),
    /// One after the other.
    Sequence(Vec<Part>),
    /// One of several. Alternatives should differ in their first characters: the longest fixed text wins.
    Choice(Vec<Part>),
    /// The part at least `min` times, and at most `max` times if that is given.
    Repeat {
        /// What is repeated.
        part: Box<Part>,
        /// The fewest times.
        min: usize,
        /// The most times.
        max: Option<usize>,
    },
}

impl Part {
    /// The number of parts that it consists of, itself included.
    pub fn size(&self) -> usize {
        1 + match self {
            Part::Sequence(parts) | Part::Choice(parts) => parts.iter().map(Part::size).sum(),
            Part::Repeat { part, .. } => part.size(),
            Part::Text(_) | Part::Marker(_) | Part::Schema(_) | Part::Regex(_) => 0,
        }
    }

    /// A text.
    pub fn text(text: impl Into<String>) -> Part {
        Part::Text(text.into())
    }
}

/// The grammar of a part, in Lark.
pub(crate) fn to_lark(part: &Part, trie: &TokTrie, work: &Work<'_>) -> Result<String, Error> {
    let mut writer = Writer { trie, work, out: String::new(), rules: 0 };
    let start = writer.part(part, 0)?;
    work.limits.check_source(&writer.out)?;
    Ok(format!("start: {start}\n{}", writer.out))
}

struct Writer<'a> {
    trie: &'a TokTrie,
    work: &'a Work<'a>,
    out: String,
    rules: usize,
}

impl Writer<'_> {
    /// An expression for the part. Rules that it needs are appended to the output.
    fn part(&mut self, part: &Part, depth: usize) -> Result<String, Error> {
        self.work.limits.check_depth(depth)?;
        let all = |writer: &mut Self, parts: &[Part]| {
            parts.iter().map(|part| writer.part(part, depth + 1)).collect::<Result<Vec<_>, _>>()
        };
        Ok(match part {
            Part::Text(text) => quoted(text),
            Part::Marker(name) => match self.trie.get_special_token(name) {
                Some(id) => format!("<[{id}]>"),
                None => quoted(name),
            },
            Part::Schema(text) => {
                let schema = schema::prepare_text(text, self.work)?;
                self.rule(&format!("%json {schema}"))
            }
            Part::Regex(text) => format!("/{}/", regex::checked(text, self.work.limits)?),
            Part::Sequence(parts) => format!("({})", all(self, parts)?.join(" ")),
            Part::Choice(parts) => {
                let body = all(self, parts)?.join(" | ");
                self.rule(&body)
            }
            Part::Repeat { part, min, max } => {
                self.work
                    .limits
                    .check_repetition(max.unwrap_or(0).max(*min) as u64, "a count of a template")?;
                let body = self.part(part, depth + 1)?;
                let body = self.rule(&body);
                let max = max.map_or(String::new(), |max| max.to_string());
                format!("{body}{{{min},{max}}}")
            }
        })
    }

    fn rule(&mut self, body: &str) -> String {
        self.rules += 1;
        let name = format!("part_{}", self.rules);
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{name}: {body}");
        name
    }
}

/// A literal of Lark.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

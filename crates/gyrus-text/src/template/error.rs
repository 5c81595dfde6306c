//! Errors of chat templates, with their position.

use std::fmt;

/// A position in a template's source, counted from one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line, counted from one.
    pub line: u32,
    /// Column in characters, counted from one.
    pub column: u32,
}

impl Position {
    /// The position of byte `offset` in `source`.
    pub(crate) fn of(source: &str, offset: usize) -> Position {
        let mut end = offset.min(source.len());
        while !source.is_char_boundary(end) {
            end -= 1;
        }
        let before = &source[..end];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Position {
            line: count(before.matches('\n').count() + 1),
            column: count(before[line_start..].chars().count() + 1),
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// The [`Limits`](super::Limits) that a render exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// The work done: evaluated nodes and bytes touched.
    Fuel,
    /// The nesting of expressions, blocks, values and macro calls.
    Depth,
    /// The length of the rendered text.
    Output,
    /// The length of the template itself.
    Source,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Fuel => "work",
            Limit::Depth => "nesting depth",
            Limit::Output => "output size",
            Limit::Source => "template size",
        })
    }
}

/// Errors of chat templates and of the conversations they render.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template's source does not parse.
    #[error("chat template, {at}: {message}")]
    Syntax {
        /// Where parsing stopped.
        at: Position,
        /// What was found and what was expected.
        message: String,
    },
    /// The template rejected the conversation with `raise_exception`.
    #[error("the chat template refuses this conversation ({at}): {message}")]
    Raised {
        /// Where the template raised.
        at: Position,
        /// The message of the template.
        message: String,
    },
    /// An operation of the template failed.
    #[error("chat template, {at}: {message}")]
    Render {
        /// The innermost expression that failed.
        at: Position,
        /// What failed.
        message: String,
    },
    /// The render exceeded a limit.
    #[error("chat template, {at}: rendering exceeds the {limit} limit of {allowed}")]
    Limit {
        /// Where rendering was stopped.
        at: Position,
        /// The limit.
        limit: Limit,
        /// Its value.
        allowed: u64,
    },
    /// A conversation is not valid JSON.
    #[error("conversation JSON, line {line}, column {column}: {message}")]
    Json {
        /// Line, counted from one.
        line: usize,
        /// Column, counted from one.
        column: usize,
        /// The message of the JSON parser.
        message: String,
    },
    /// The JSON is not a conversation.
    #[error("conversation, {path}: {message}")]
    Conversation {
        /// The path of the invalid value, such as `messages[3].content`.
        path: String,
        /// What is wrong with the value.
        message: String,
    },
}

/// An error within the interpreter, before its offset is converted to a line and column.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    /// The byte offset in the normalised source; the innermost expression sets it.
    pub(crate) at: Option<u32>,
}

#[derive(Debug)]
pub(crate) enum FaultKind {
    Syntax(String),
    Raised(String),
    Failed(String),
    Limit(Limit, u64),
}

pub(crate) type Outcome<T> = Result<T, Fault>;

impl Fault {
    /// An operation that raises an exception in Python or Jinja.
    pub(crate) fn failed(message: impl Into<String>) -> Fault {
        Fault { kind: FaultKind::Failed(message.into()), at: None }
    }

    pub(crate) fn raised(message: String) -> Fault {
        Fault { kind: FaultKind::Raised(message), at: None }
    }

    pub(crate) fn syntax(at: usize, message: impl Into<String>) -> Fault {
        Fault { kind: FaultKind::Syntax(message.into()), at: Some(offset(at)) }
    }

    pub(crate) fn limit(limit: Limit, allowed: u64) -> Fault {
        Fault { kind: FaultKind::Limit(limit, allowed), at: None }
    }

    /// Sets the offset unless an inner expression has set it.
    pub(crate) fn or_at(mut self, at: u32) -> Fault {
        self.at.get_or_insert(at);
        self
    }

    pub(crate) fn locate(self, source: &str) -> TemplateError {
        let at = Position::of(source, self.at.unwrap_or(0) as usize);
        match self.kind {
            FaultKind::Syntax(message) => TemplateError::Syntax { at, message },
            FaultKind::Raised(message) => TemplateError::Raised { at, message },
            FaultKind::Failed(message) => TemplateError::Render { at, message },
            FaultKind::Limit(limit, allowed) => TemplateError::Limit { at, limit, allowed },
        }
    }
}

/// Sources are limited to far less than 4 GiB, so this never saturates in practice.
pub(crate) fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

//! Errors in constraints.

use thiserror::Error;

/// Why a constraint cannot be compiled or continued.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The text of a grammar, regular expression or schema is malformed.
    #[error("{language}, line {line}, column {column}: {message}")]
    Syntax {
        /// What the text should be: `GBNF`, `JSON schema`, `Lark`, `regex`.
        language: &'static str,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// A rule of a GBNF grammar begins with itself, so that no token would ever be consumed.
    #[error("GBNF, line {line}, column {column}: rule {rule:?} is left-recursive: {path}")]
    LeftRecursion {
        /// Line of the rule, from 1.
        line: usize,
        /// Column of the rule, from 1.
        column: usize,
        /// The rule.
        rule: String,
        /// The rules from this one back to itself, as `a → b → a`.
        path: String,
    },
    /// A JSON schema uses a keyword, or a value of one, that cannot be enforced exactly.
    #[error("JSON schema keyword {keyword:?} at {place}{} is not supported: {reason}", in_text(position))]
    Keyword {
        /// The keyword.
        keyword: String,
        /// The JSON pointer of the schema that has it, `#` for the root.
        place: String,
        /// Line and column of the keyword, from 1, where the schema was a text of several lines.
        position: Option<(usize, usize)>,
        /// Why, or what to use instead.
        reason: String,
    },
    /// A keyword of a JSON schema has a value that its specification does not allow.
    #[error("JSON schema keyword {keyword:?} at {place}{} must be {expected}", in_text(position))]
    Invalid {
        /// The keyword.
        keyword: String,
        /// The JSON pointer of the schema that has it, `#` for the root.
        place: String,
        /// Line and column of the keyword, from 1, where the schema was a text of several lines.
        position: Option<(usize, usize)>,
        /// The kind of value that is allowed.
        expected: &'static str,
    },
    /// No text satisfies the constraint.
    #[error("no text satisfies the {language}: {reason}")]
    Unsatisfiable {
        /// What was compiled.
        language: &'static str,
        /// Why.
        reason: String,
    },
    /// The engine refuses the constraint for another reason.
    #[error("{language} is not supported: {reason}")]
    Unsupported {
        /// What was compiled.
        language: &'static str,
        /// The engine's reason.
        reason: String,
    },
    /// The constraint, or a step of it, needs more than a limit allows.
    #[error("the constraint exceeds the limit `{limit}` of {allowed}: {reason}")]
    Limit {
        /// The field of [`Limits`](crate::Limits).
        limit: &'static str,
        /// Its value.
        allowed: u64,
        /// What exceeded it.
        reason: String,
    },
    /// A vocabulary that cannot be used.
    #[error("vocabulary: {0}")]
    Vocabulary(String),
    /// A token that the constraint does not allow here.
    #[error("token {token} ({text:?}) is not allowed after {position} tokens of constrained text")]
    Token {
        /// The token's id.
        token: u32,
        /// Its text.
        text: String,
        /// Tokens committed before.
        position: usize,
    },
    /// No token of the vocabulary continues the text and it is not complete.
    #[error("no token of the vocabulary continues the constrained text after {position} tokens: {reason}")]
    DeadEnd {
        /// Tokens committed before.
        position: usize,
        /// The engine's reason.
        reason: String,
    },
    /// A mask of another size than the vocabulary.
    #[error("a mask of {words} words is too short for a vocabulary of {tokens} tokens")]
    MaskSize {
        /// Words of the mask.
        words: usize,
        /// Tokens of the vocabulary.
        tokens: usize,
    },
    /// More tokens should be taken back than were committed.
    #[error("cannot roll back {asked} tokens of {committed} that can be taken back")]
    Rollback {
        /// Tokens to take back.
        asked: usize,
        /// Tokens that could be.
        committed: usize,
    },
}

impl Error {
    /// A syntax error at a byte of `text`.
    pub(crate) fn syntax(
        language: &'static str,
        text: &str,
        offset: usize,
        message: impl Into<String>,
    ) -> Error {
        let (line, column) = Error::place(text, offset);
        Error::Syntax { language, line, column, message: message.into() }
    }

    /// Line and column, from 1, of a byte of `text`.
    pub(crate) fn place(text: &str, offset: usize) -> (usize, usize) {
        let before = &text.as_bytes()[..offset.min(text.len())];
        let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
        let start = before.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        (line, String::from_utf8_lossy(&before[start..]).chars().count() + 1)
    }
}

fn in_text(position: &Option<(usize, usize)>) -> String {
    position.map_or_else(String::new, |(line, column)| format!(" (line {line}, column {column})"))
}

//! Finds the matches of a pattern in a text.

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use fancy_regex::{Regex, RegexBuilder};

use crate::data::Pattern;
use crate::error::TokenizerError;
use crate::pretokenizer::{ScanFn, Text};
use crate::unicode::{Class, classes};

/// The longest regular expression in bytes.
const MAX_REGEX: usize = 16_384;
/// Bytes of one automaton of a compiled regular expression.
const MAX_AUTOMATON: usize = 8 << 20;
/// Steps back before the engine gives up on a text. The patterns of tokenizers step back once for each character.
const MAX_BACKTRACKS: usize = 50_000_000;

/// A compiled pattern.
pub(crate) enum Matcher {
    Scanner(ScanFn),
    Literal(AhoCorasick),
    Regex(Box<Regex>),
    Class(fn(char) -> bool),
}

impl Matcher {
    pub(crate) fn new(pattern: &Pattern) -> Result<Self, TokenizerError> {
        Ok(match pattern {
            Pattern::Scanner(scanner) => Self::Scanner(scanner.scan()),
            Pattern::Literal(text) => {
                let fail = |what: String| TokenizerError::Pattern { pattern: text.clone(), what };
                if text.is_empty() {
                    return Err(fail("it is empty".into()));
                }
                let built = AhoCorasick::builder().kind(Some(AhoCorasickKind::ContiguousNFA)).build([text]);
                Self::Literal(built.map_err(|error| fail(error.to_string()))?)
            }
            Pattern::Regex(text) => Self::Regex(Box::new(compile(text)?)),
            Pattern::Whitespace => Self::Class(char::is_whitespace),
            Pattern::Punctuation => Self::Class(|c| classes().of_char(c).is(Class::BERT_PUNCTUATION)),
            Pattern::Number => Self::Class(char::is_numeric),
        })
    }

    /// Calls `found` with the start and end of each match that is not empty, in order.
    pub(crate) fn for_each(&self, text: &str, found: &mut dyn FnMut(usize, usize)) {
        match self {
            Self::Scanner(scan) => {
                let text = Text::new(text.as_bytes());
                let mut at = 0;
                while let Some(next) = text.get(at) {
                    let end = scan(&text, at);
                    if end > at {
                        found(at, end);
                    }
                    at = end.max(at + if end == at { next.len } else { 0 });
                }
            }
            Self::Literal(literal) => literal.find_iter(text).for_each(|m| found(m.start(), m.end())),
            Self::Regex(regex) => {
                // An engine that gives up leaves the rest of the text unmatched.
                for m in regex.find_iter(text).map_while(Result::ok).filter(|m| !m.range().is_empty()) {
                    found(m.start(), m.end());
                }
            }
            Self::Class(test) => {
                for (at, c) in text.char_indices().filter(|&(_, c)| test(c)) {
                    found(at, at + c.len_utf8());
                }
            }
        }
    }
}

fn compile(text: &str) -> Result<Regex, TokenizerError> {
    let fail = |what: String| TokenizerError::Pattern { pattern: text.chars().take(200).collect(), what };
    if text.len() > MAX_REGEX {
        return Err(fail(format!("it has {} bytes, at most {MAX_REGEX} are allowed", text.len())));
    }
    RegexBuilder::new(text)
        .oniguruma_mode(true)
        .backtrack_limit(MAX_BACKTRACKS)
        .delegate_size_limit(MAX_AUTOMATON)
        .delegate_dfa_size_limit(MAX_AUTOMATON)
        .build()
        .map_err(|error| fail(error.to_string()))
}

//! Finding special tokens in text: leftmost first, the longest where several begin together.

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

use crate::data::TokenKind;
use crate::error::TokenizerError;
use crate::vocab::Vocab;

/// White space that a special token swallows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Strip {
    pub(crate) left: bool,
    pub(crate) right: bool,
}

/// A part of the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'a> {
    /// Text to be tokenised by the family's rules; not empty.
    Text(&'a [u8]),
    /// A special token.
    Token(u32),
}

/// Search automata for the two ways to read text.
pub(crate) struct SpecialFinder {
    /// Control, unknown and user-defined tokens.
    parse: Finder,
    /// User-defined tokens only: they are text, though of a fixed form.
    literal: Finder,
    strips: Vec<(u32, Strip)>,
}

struct Finder {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl Finder {
    fn new(vocab: &Vocab, wanted: impl Fn(TokenKind) -> bool) -> Result<Self, TokenizerError> {
        let ids: Vec<u32> = (0..vocab.len() as u32)
            .filter(|&id| wanted(vocab.kinds[id as usize]) && !vocab.tokens[id as usize].is_empty())
            .collect();
        if ids.is_empty() {
            return Ok(Self { automaton: None, ids });
        }
        // The other kind of automaton, faster by a little, takes a kilobyte for each byte of the tokens:
        // a file could make that a great deal.
        let automaton = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(ids.iter().map(|&id| vocab.tokens[id as usize].as_bytes()))
            .map_err(|error| TokenizerError::SpecialSearch { what: error.to_string() })?;
        Ok(Self { automaton: Some(automaton), ids })
    }
}

impl SpecialFinder {
    pub(crate) fn new(vocab: &Vocab, strips: Vec<(u32, Strip)>) -> Result<Self, TokenizerError> {
        Ok(Self {
            parse: Finder::new(vocab, |kind| {
                matches!(kind, TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined)
            })?,
            literal: Finder::new(vocab, |kind| kind == TokenKind::UserDefined)?,
            strips,
        })
    }

    /// Cuts `text` at its special tokens.
    pub(crate) fn split<'a>(&self, text: &'a [u8], parse: bool, mut emit: impl FnMut(Fragment<'a>)) {
        let finder = if parse { &self.parse } else { &self.literal };
        let mut at = 0;
        if let Some(automaton) = &finder.automaton {
            while let Some(found) = automaton.find(Input::new(text).range(at..)) {
                let id = finder.ids[found.pattern().as_usize()];
                let strip =
                    self.strips.iter().find(|(other, _)| *other == id).map_or(Strip::default(), |s| s.1);
                let mut before = &text[at..found.start()];
                if strip.left {
                    before = before.trim_ascii_end();
                }
                if !before.is_empty() {
                    emit(Fragment::Text(before));
                }
                emit(Fragment::Token(id));
                at = found.end();
                if strip.right {
                    at = text.len() - text[at..].trim_ascii_start().len();
                }
            }
        }
        if at < text.len() {
            emit(Fragment::Text(&text[at..]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocab::Spelling;

    fn fragments(text: &str, parse: bool, strips: Vec<(u32, Strip)>) -> Vec<String> {
        let tokens = ["<a>", "<a><b>", "b><c", "ud"].map(String::from).to_vec();
        let mut kinds = vec![TokenKind::Control; 4];
        kinds[3] = TokenKind::UserDefined;
        let vocab = Vocab::new(tokens, kinds, Vec::new(), Spelling::Escaped).expect("fine");
        let mut found = Vec::new();
        SpecialFinder::new(&vocab, strips).expect("fine").split(text.as_bytes(), parse, |fragment| {
            found.push(match fragment {
                Fragment::Text(text) => String::from_utf8_lossy(text).into_owned(),
                Fragment::Token(id) => format!("#{id}"),
            });
        });
        found
    }

    #[test]
    fn leftmost_then_longest() {
        assert_eq!(fragments("x<a><b><c<a>", true, vec![]), ["x", "#1", "<c", "#0"]);
        assert_eq!(fragments("<b><c", true, vec![]), ["<", "#2"]);
        assert_eq!(fragments("<a>ud", false, vec![]), ["<a>", "#3"]);
        assert!(fragments("", true, vec![]).is_empty());
    }

    #[test]
    fn swallowed_space() {
        let strips = vec![(0, Strip { left: true, right: true })];
        assert_eq!(fragments("x \n<a> \ny", true, strips), ["x", "#0", "y"]);
    }
}

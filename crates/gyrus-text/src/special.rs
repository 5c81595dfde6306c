//! Finds special tokens in text: the leftmost first, the longest of several at one position.

use std::cmp::Reverse;
use std::ops::Range;
use std::slice;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

use crate::data::TokenKind;
use crate::error::TokenizerError;
use crate::vocab::Vocab;

/// Whether a special token strips the white space next to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Strip {
    pub(crate) left: bool,
    pub(crate) right: bool,
}

/// A part of the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fragment<'a> {
    /// Text without special tokens; not empty.
    Text(&'a [u8]),
    /// A special token.
    Token(u32),
}

/// Search automata for [`Special::Parse`](crate::Special::Parse) and [`Special::Literal`](crate::Special::Literal).
pub(crate) struct SpecialFinder {
    /// Control, unknown and user-defined tokens: for trusted text.
    parse: Finder,
    /// User-defined tokens only: they are matched in any text.
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
        // A DFA is slightly faster but takes a kilobyte for each byte of the tokens, and the tokens come from a file.
        let automaton = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(ids.iter().map(|&id| vocab.tokens[id as usize].as_bytes()))
            .map_err(|error| TokenizerError::SpecialSearch { what: error.to_string() })?;
        Ok(Self { automaton: Some(automaton), ids })
    }

    /// The first token within `range`, the longest of those at its position.
    fn find(&self, text: &[u8], range: Range<usize>) -> Option<Found> {
        let found = self.automaton.as_ref()?.find(Input::new(text).range(range))?;
        Some(Found { id: self.ids[found.pattern().as_usize()], start: found.start(), end: found.end() })
    }
}

#[derive(Debug, Clone, Copy)]
struct Found {
    id: u32,
    start: usize,
    end: usize,
}

/// The position of one finder in a text. It caches the next match.
struct Search<'f> {
    finder: &'f Finder,
    next: Option<Found>,
}

impl Search<'_> {
    /// The next token from `at` on within one of `ranges`. Ranges before `at` are dropped.
    fn next(&mut self, text: &[u8], at: usize, ranges: &mut &[Range<usize>]) -> Option<Found> {
        while self.next.is_none_or(|found| found.start < at) {
            let (first, rest) = ranges.split_first()?;
            let from = first.start.max(at);
            self.next = if from < first.end { self.finder.find(text, from..first.end) } else { None };
            if self.next.is_none() {
                *ranges = rest;
            }
        }
        self.next
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

    /// Splits `text` at its special tokens. Control and unknown tokens are matched within one of the `trusted` ranges,
    /// which are sorted and disjoint; user-defined tokens are matched anywhere.
    pub(crate) fn split<'a>(
        &self,
        text: &'a [u8],
        mut trusted: &[Range<usize>],
        mut emit: impl FnMut(Fragment<'a>),
    ) {
        let all = 0..text.len();
        // If the whole text is trusted, the first search finds all tokens.
        let mut anywhere = if *trusted == [all.clone()] { &[] } else { slice::from_ref(&all) };
        let mut parse = Search { finder: &self.parse, next: None };
        let mut literal = Search { finder: &self.literal, next: None };
        let mut at = 0;
        loop {
            let candidates = [parse.next(text, at, &mut trusted), literal.next(text, at, &mut anywhere)];
            let first = candidates.into_iter().flatten().min_by_key(|f| (f.start, Reverse(f.end)));
            let Some(Found { id, start, end }) = first else { break };
            let strip = self.strips.iter().find(|(other, _)| *other == id).map_or(Strip::default(), |s| s.1);
            let mut before = &text[at..start];
            if strip.left {
                before = before.trim_ascii_end();
            }
            if !before.is_empty() {
                emit(Fragment::Text(before));
            }
            emit(Fragment::Token(id));
            at = end;
            if strip.right {
                at = text.len() - text[at..].trim_ascii_start().len();
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
        let all = 0..text.len();
        fragments_of(text, if parse { slice::from_ref(&all) } else { &[] }, strips)
    }

    fn fragments_of(text: &str, trusted: &[Range<usize>], strips: Vec<(u32, Strip)>) -> Vec<String> {
        let tokens = ["<a>", "<a><b>", "b><c", "ud"].map(String::from).to_vec();
        let mut kinds = vec![TokenKind::Control; 4];
        kinds[3] = TokenKind::UserDefined;
        let vocab = Vocab::new(tokens, kinds, Vec::new(), Spelling::Escaped).expect("fine");
        let mut found = Vec::new();
        SpecialFinder::new(&vocab, strips).expect("fine").split(text.as_bytes(), trusted, |fragment| {
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
    fn control_tokens_are_matched_within_one_trusted_range() {
        let found = |trusted: &[Range<usize>]| fragments_of("<a><b>ud<a>ud", trusted, vec![]);
        assert_eq!(found(slice::from_ref(&(0..13))), ["#1", "#3", "#0", "#3"]);
        assert_eq!(found(&[]), ["<a><b>", "#3", "<a>", "#3"]);
        // A shorter token is matched where the range cuts the longest; none is matched across two ranges.
        assert_eq!(found(slice::from_ref(&(0..4))), ["#0", "<b>", "#3", "<a>", "#3"]);
        assert_eq!(found(&[0..2, 2..8, 8..10, 10..13]), ["<a><b>", "#3", "<a>", "#3"]);
        assert_eq!(found(&[0..2, 8..11]), ["<a><b>", "#3", "#0", "#3"]);
        // A user-defined token is matched across a boundary, because it is text.
        assert_eq!(found(&[0..7, 7..13]), ["#1", "#3", "#0", "#3"]);
    }

    #[test]
    fn white_space_is_stripped() {
        let strips = vec![(0, Strip { left: true, right: true })];
        assert_eq!(fragments("x \n<a> \ny", true, strips), ["x", "#0", "y"]);
    }
}

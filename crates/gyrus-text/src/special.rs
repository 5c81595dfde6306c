//! Finding special tokens in text: leftmost first, the longest where several begin together.

use std::cmp::Reverse;
use std::ops::Range;
use std::slice;

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
    /// Control, unknown and user-defined tokens: for text of the program's own making.
    parse: Finder,
    /// User-defined tokens only: they are text, though of a fixed form, and found in any.
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

    /// The first token that lies within `range`, the longest of those that begin there.
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

/// One finder's way through a text: what it finds next is looked for once.
struct Search<'f> {
    finder: &'f Finder,
    next: Option<Found>,
}

impl Search<'_> {
    /// The first token from `at` on in one of `ranges`, of which those that are passed are dropped.
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

    /// Cuts `text` at its special tokens. Control and unknown tokens are found where they lie within one of
    /// the `own` ranges, which are in order and apart; user-defined ones anywhere.
    pub(crate) fn split<'a>(
        &self,
        text: &'a [u8],
        mut own: &[Range<usize>],
        mut emit: impl FnMut(Fragment<'a>),
    ) {
        let all = 0..text.len();
        // What is all our own holds no token that only the second search would find.
        let mut anywhere = if *own == [all.clone()] { &[] } else { slice::from_ref(&all) };
        let mut parse = Search { finder: &self.parse, next: None };
        let mut literal = Search { finder: &self.literal, next: None };
        let mut at = 0;
        loop {
            let candidates = [parse.next(text, at, &mut own), literal.next(text, at, &mut anywhere)];
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

    fn fragments_of(text: &str, own: &[Range<usize>], strips: Vec<(u32, Strip)>) -> Vec<String> {
        let tokens = ["<a>", "<a><b>", "b><c", "ud"].map(String::from).to_vec();
        let mut kinds = vec![TokenKind::Control; 4];
        kinds[3] = TokenKind::UserDefined;
        let vocab = Vocab::new(tokens, kinds, Vec::new(), Spelling::Escaped).expect("fine");
        let mut found = Vec::new();
        SpecialFinder::new(&vocab, strips).expect("fine").split(text.as_bytes(), own, |fragment| {
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
    fn control_tokens_lie_within_one_own_range() {
        let found = |own: &[Range<usize>]| fragments_of("<a><b>ud<a>ud", own, vec![]);
        assert_eq!(found(slice::from_ref(&(0..13))), ["#1", "#3", "#0", "#3"]);
        assert_eq!(found(&[]), ["<a><b>", "#3", "<a>", "#3"]);
        // A shorter token where the longest is not whole, and none across two ranges.
        assert_eq!(found(slice::from_ref(&(0..4))), ["#0", "<b>", "#3", "<a>", "#3"]);
        assert_eq!(found(&[0..2, 2..8, 8..10, 10..13]), ["<a><b>", "#3", "<a>", "#3"]);
        assert_eq!(found(&[0..2, 8..11]), ["<a><b>", "#3", "#0", "#3"]);
        // A user-defined token across a boundary is text of a fixed form all the same.
        assert_eq!(found(&[0..7, 7..13]), ["#1", "#3", "#0", "#3"]);
    }

    #[test]
    fn swallowed_space() {
        let strips = vec![(0, Strip { left: true, right: true })];
        assert_eq!(fragments("x \n<a> \ny", true, strips), ["x", "#0", "y"]);
    }
}

//! Finds special tokens in text: the leftmost first, the longest of several at one position.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::slice;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};

use crate::data::{Matching, TokenKind};
use crate::error::TokenizerError;
use crate::unicode::{Class, INVALID, classes, code_at};
use crate::vocab::Vocab;

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
    matching: HashMap<u32, Matching>,
}

#[derive(Default)]
struct Finder {
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl Finder {
    /// A finder of these tokens by these texts, which are not empty.
    fn new<'t>(tokens: impl Iterator<Item = (u32, &'t str)>) -> Result<Self, TokenizerError> {
        let (ids, texts): (Vec<u32>, Vec<&str>) = tokens.unzip();
        if ids.is_empty() {
            return Ok(Self::default());
        }
        // A DFA is slightly faster but takes a kilobyte for each byte of the tokens, and the tokens come from a file.
        let automaton = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts)
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
    matching: &'f HashMap<u32, Matching>,
    next: Option<Found>,
}

impl Search<'_> {
    /// The next token from `at` on within one of `ranges`. Ranges before `at` are dropped.
    fn next(&mut self, text: &[u8], at: usize, ranges: &mut &[Range<usize>]) -> Option<Found> {
        while self.next.is_none_or(|found| found.start < at) {
            let (first, rest) = ranges.split_first()?;
            let from = first.start.max(at);
            self.next = self.find(text, from..first.end);
            if self.next.is_none() {
                *ranges = rest;
            }
        }
        self.next
    }

    /// The first token within `range` whose options allow it there.
    fn find(&self, text: &[u8], mut range: Range<usize>) -> Option<Found> {
        while range.start < range.end {
            let found = self.finder.find(text, range.clone())?;
            let is_word = |code: u32| code == u32::from(b'_') || classes().of(code).is(WORD);
            let alone = || {
                let after = &text[found.end..];
                !last_code(&text[..found.start]).is_some_and(|(code, _)| is_word(code))
                    && (after.is_empty() || !is_word(code_at(after, 0).0))
            };
            if !self.matching.get(&found.id).is_some_and(|matching| matching.single_word) || alone() {
                return Some(found);
            }
            range.start = found.end;
        }
        None
    }
}

const WORD: Class = Class::LETTER.or(Class::MARK).or(Class::NUMBER);

/// The last code point of `text` and where it starts. A byte that ends no valid sequence has no class.
fn last_code(text: &[u8]) -> Option<(u32, usize)> {
    let end = text.len();
    let start = (end.saturating_sub(4)..end).rev().find(|&at| text[at] & 0xC0 != 0x80)?;
    let (code, len) = code_at(text, start);
    Some(if start + len == end { (code, start) } else { (INVALID, end - 1) })
}

/// The length of `text` without the white space at its end.
fn trimmed_end(text: &[u8]) -> usize {
    let mut end = text.len();
    while let Some((code, start)) = last_code(&text[..end])
        && classes().of(code).is(Class::SPACE)
    {
        end = start;
    }
    end
}

/// The bytes of white space at the start of `text`.
fn leading_space(text: &[u8]) -> usize {
    let mut at = 0;
    while at < text.len() {
        let (code, len) = code_at(text, at);
        if !classes().of(code).is(Class::SPACE) {
            break;
        }
        at += len;
    }
    at
}

impl SpecialFinder {
    pub(crate) fn new(vocab: &Vocab, matching: &[(u32, Matching)]) -> Result<Self, TokenizerError> {
        let matching: HashMap<u32, Matching> = matching.iter().copied().collect();
        // User-defined tokens that are matched in normalised text are not matched here.
        let tokens = |user_only: bool| {
            let matching = &matching;
            (0_u32..).zip(vocab.kinds.iter().zip(&vocab.tokens)).filter_map(move |(id, (kind, text))| {
                let wanted = match kind {
                    TokenKind::UserDefined => !matching.get(&id).is_some_and(|matching| matching.normalized),
                    TokenKind::Control | TokenKind::Unknown => !user_only,
                    _ => false,
                };
                (wanted && !text.is_empty()).then_some((id, text.as_str()))
            })
        };
        Ok(Self { parse: Finder::new(tokens(false))?, literal: Finder::new(tokens(true))?, matching })
    }

    /// A finder of the user-defined tokens that are matched in normalised text; `normal` normalises their texts. `None`
    /// if there are no such tokens.
    pub(crate) fn of_normalized(
        vocab: &Vocab,
        matching: &[(u32, Matching)],
        mut normal: impl FnMut(&str) -> String,
    ) -> Result<Option<Self>, TokenizerError> {
        let matching: HashMap<u32, Matching> = matching
            .iter()
            .copied()
            .filter(|(id, matching)| matching.normalized && vocab.kind(*id) == Some(TokenKind::UserDefined))
            .collect();
        if matching.is_empty() {
            return Ok(None);
        }
        let mut texts: Vec<(u32, String)> =
            matching.keys().map(|&id| (id, normal(&vocab.tokens[id as usize]))).collect();
        texts.retain(|(_, text)| !text.is_empty());
        texts.sort_unstable();
        let literal = Finder::new(texts.iter().map(|(id, text)| (*id, text.as_str())))?;
        Ok(Some(Self { parse: Finder::default(), literal, matching }))
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
        let search = |finder| Search { finder, matching: &self.matching, next: None };
        let (mut parse, mut literal) = (search(&self.parse), search(&self.literal));
        let mut at = 0;
        loop {
            let candidates = [parse.next(text, at, &mut trusted), literal.next(text, at, &mut anywhere)];
            let first = candidates.into_iter().flatten().min_by_key(|f| (f.start, Reverse(f.end)));
            let Some(Found { id, start, end }) = first else { break };
            let matching = self.matching.get(&id).copied().unwrap_or_default();
            let mut before = &text[at..start];
            if matching.strip_left {
                before = &before[..trimmed_end(before)];
            }
            if !before.is_empty() {
                emit(Fragment::Text(before));
            }
            emit(Fragment::Token(id));
            at = end;
            if matching.strip_right {
                at += leading_space(&text[at..]);
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
    use crate::data::Spelling;

    fn fragments(text: &str, parse: bool, matching: &[(u32, Matching)]) -> Vec<String> {
        let all = 0..text.len();
        fragments_of(text, if parse { slice::from_ref(&all) } else { &[] }, matching)
    }

    fn fragments_of(text: &str, trusted: &[Range<usize>], matching: &[(u32, Matching)]) -> Vec<String> {
        let tokens = ["<a>", "<a><b>", "b><c", "ud"].map(String::from).to_vec();
        let mut kinds = vec![TokenKind::Control; 4];
        kinds[3] = TokenKind::UserDefined;
        let vocab = Vocab::new(tokens, kinds, Vec::new(), &Spelling::Text(Vec::new())).expect("fine");
        let mut found = Vec::new();
        SpecialFinder::new(&vocab, matching).expect("fine").split(text.as_bytes(), trusted, |fragment| {
            found.push(match fragment {
                Fragment::Text(text) => String::from_utf8_lossy(text).into_owned(),
                Fragment::Token(id) => format!("#{id}"),
            });
        });
        found
    }

    #[test]
    fn leftmost_then_longest() {
        assert_eq!(fragments("x<a><b><c<a>", true, &[]), ["x", "#1", "<c", "#0"]);
        assert_eq!(fragments("<b><c", true, &[]), ["<", "#2"]);
        assert_eq!(fragments("<a>ud", false, &[]), ["<a>", "#3"]);
        assert!(fragments("", true, &[]).is_empty());
    }

    #[test]
    fn control_tokens_are_matched_within_one_trusted_range() {
        let found = |trusted: &[Range<usize>]| fragments_of("<a><b>ud<a>ud", trusted, &[]);
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
        let matching = [(0, Matching { strip_left: true, strip_right: true, ..Matching::default() })];
        assert_eq!(fragments("x \n\u{3000}<a> \u{a0}\ny", true, &matching), ["x", "#0", "y"]);
        assert_eq!(fragments(" <a> ", true, &matching), ["#0"]);
    }

    #[test]
    fn single_words_are_not_matched_inside_others() {
        let matching = [(3, Matching { single_word: true, ..Matching::default() })];
        assert_eq!(fragments("ud mud udé ud", false, &matching), ["#3", " mud udé ", "#3"]);
        assert_eq!(fragments("ud_ud-ud", false, &matching), ["ud_ud-", "#3"]);
    }
}

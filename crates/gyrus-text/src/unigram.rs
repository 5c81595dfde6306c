//! SentencePiece Unigram: the most probable segmentation of a text into pieces (Viterbi).

use crate::charsmap::Charsmap;
use crate::data::TokenKind;
use crate::error::TokenizerError;
use crate::table::Trie;
use crate::vocab::{ESCAPED_SPACE, Vocab};

/// How much lower an unknown character scores than the least probable piece.
const UNKNOWN_PENALTY: f32 = 10.0;

/// White-space rules of the normaliser.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spaces {
    /// Add a space before the text (or after it, with `as_suffix`).
    pub(crate) add_prefix: bool,
    /// Collapse runs of spaces and trim the ends.
    pub(crate) remove_extra: bool,
    /// Put the escaped space after words instead of before them.
    pub(crate) as_suffix: bool,
}

/// A Unigram vocabulary.
pub(crate) struct Unigram {
    pieces: Trie,
    scores: Vec<f32>,
    unknown_score: f32,
    unknown: Option<u32>,
    bytes: [Option<u32>; 256],
    byte_fallback: bool,
    charsmap: Charsmap,
    spaces: Spaces,
}

/// The best segmentation up to a position of the text: its last piece.
#[derive(Clone, Copy)]
struct Step {
    start: usize,
    id: u32,
    score: f32,
}

const NONE: u32 = u32::MAX;

impl Unigram {
    pub(crate) fn new(
        vocab: &Vocab,
        unknown: Option<u32>,
        charsmap: &[u8],
        spaces: Spaces,
    ) -> Result<Self, TokenizerError> {
        let normal = || {
            let kinds = vocab.kinds.iter();
            vocab
                .scores
                .iter()
                .zip(kinds)
                .filter(|(_, kind)| **kind == TokenKind::Normal)
                .map(|(score, _)| *score)
        };
        let lowest = normal().fold(f32::INFINITY, f32::min);
        let highest = normal().fold(f32::NEG_INFINITY, f32::max);
        let (lowest, highest) = if lowest.is_finite() { (lowest, highest) } else { (0.0, 0.0) };
        let mut pieces = Trie::new();
        let mut scores = vocab.scores.clone();
        for (id, (text, kind)) in vocab.tokens.iter().zip(&vocab.kinds).enumerate() {
            match kind {
                TokenKind::Normal => {}
                // A user-defined piece beats any other segmentation.
                TokenKind::UserDefined => scores[id] = text.len() as f32 * highest - 0.1,
                _ => continue,
            }
            if !text.is_empty() {
                pieces.insert(text.as_bytes(), id as u32);
            }
        }
        let bytes = vocab.byte_ids();
        Ok(Self {
            pieces,
            scores,
            unknown_score: lowest - UNKNOWN_PENALTY,
            unknown,
            byte_fallback: bytes.iter().all(Option::is_some),
            bytes,
            charsmap: Charsmap::new(charsmap)?,
            spaces,
        })
    }

    /// Appends the ids of `text`, which contains no special tokens.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let text = self.normalise(text);
        let none = Step { start: 0, id: NONE, score: f32::NEG_INFINITY };
        let mut steps = vec![none; text.len() + 1];
        steps[0].score = 0.0;
        for (start, c) in text.char_indices() {
            let score = steps[start].score;
            let bytes = text.as_bytes();
            let mut node = Trie::ROOT;
            let mut whole_character = false;
            for at in start..bytes.len() {
                let Some(next) = self.pieces.step(node, bytes[at]) else { break };
                node = next;
                if let Some(id) = self.pieces.id(node) {
                    whole_character |= at + 1 - start == c.len_utf8();
                    improve(&mut steps[at + 1], Step { start, id, score: score + self.scores[id as usize] });
                }
            }
            if !whole_character {
                let end = start + c.len_utf8();
                improve(&mut steps[end], Step { start, id: NONE, score: score + self.unknown_score });
            }
        }
        let first = out.len();
        let mut at = text.len();
        let mut after_unknown = false;
        while at > 0 {
            let step = steps[at];
            if step.id != NONE {
                out.push(step.id);
            } else if self.byte_fallback {
                out.extend(text[step.start..at].bytes().rev().filter_map(|byte| self.bytes[byte as usize]));
            } else if !after_unknown {
                // One unknown token stands for a run of unknown characters.
                out.extend(self.unknown);
            }
            after_unknown = step.id == NONE;
            at = step.start;
        }
        out[first..].reverse();
    }

    /// The replacement of the first character, or of a longer sequence of the map, and the rest.
    fn replace<'a>(&'a self, text: &'a str) -> Option<(&'a str, &'a str)> {
        let first = text.chars().next()?;
        Some(match self.charsmap.longest(text.as_bytes()) {
            // A match that ends inside a character only occurs in a malformed map.
            Some((len, piece)) if text.is_char_boundary(len) => (piece, &text[len..]),
            _ => text.split_at(first.len_utf8()),
        })
    }

    /// Applies the character map and the white-space rules.
    fn normalise(&self, text: &str) -> String {
        let Spaces { add_prefix, remove_extra, as_suffix } = self.spaces;
        let mut rest = text;
        while remove_extra && let Some((" ", next)) = self.replace(rest) {
            rest = next;
        }
        if rest.is_empty() {
            return String::new();
        }
        let mut normal = String::with_capacity(text.len() + ESCAPED_SPACE.len());
        if add_prefix && !as_suffix {
            normal.push_str(ESCAPED_SPACE);
        }
        let mut after_space = remove_extra;
        while let Some((piece, next)) = self.replace(rest) {
            rest = next;
            let piece = if after_space { piece.trim_start_matches(' ') } else { piece };
            for c in piece.chars() {
                if c == ' ' { normal.push_str(ESCAPED_SPACE) } else { normal.push(c) }
            }
            if !piece.is_empty() {
                after_space = remove_extra && piece.ends_with(' ');
            }
        }
        if remove_extra {
            normal.truncate(normal.trim_end_matches(ESCAPED_SPACE).len());
        }
        if add_prefix && as_suffix {
            normal.push_str(ESCAPED_SPACE);
        }
        normal
    }
}

/// Keeps the better of two segmentations up to the same position; the earlier one if they are equal.
fn improve(best: &mut Step, step: Step) {
    if step.score > best.score || best.id == NONE && best.score == f32::NEG_INFINITY {
        *best = step;
    }
}

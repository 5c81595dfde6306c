//! SentencePiece Unigram: the most probable segmentation of a text into pieces (Viterbi).

use crate::data::TokenKind;
use crate::table::Trie;
use crate::vocab::Vocab;

/// How much lower an unknown character scores than the least probable piece.
const UNKNOWN_PENALTY: f64 = 10.0;

/// A Unigram vocabulary.
pub(crate) struct Unigram {
    pieces: Trie,
    scores: Vec<f64>,
    unknown_score: f64,
    double_precision: bool,
    unknown: Option<u32>,
    bytes: [Option<u32>; 256],
    byte_fallback: bool,
}

/// The best segmentation up to a position of the text: its last piece.
#[derive(Clone, Copy)]
struct Step {
    start: usize,
    id: u32,
    score: f64,
}

const NONE: u32 = u32::MAX;

impl Unigram {
    pub(crate) fn new(
        vocab: &Vocab,
        unknown: Option<u32>,
        byte_fallback: bool,
        double_precision: bool,
        count: usize,
    ) -> Self {
        let normal = || {
            let kinds = vocab.kinds.iter();
            vocab
                .scores
                .iter()
                .zip(kinds)
                .filter(|(_, kind)| **kind == TokenKind::Normal)
                .map(|(score, _)| *score)
        };
        let lowest = normal().fold(f64::INFINITY, f64::min);
        let highest = normal().fold(f64::NEG_INFINITY, f64::max);
        let (lowest, highest) = if lowest.is_finite() { (lowest, highest) } else { (0.0, 0.0) };
        let mut pieces = Trie::new();
        let mut scores = vocab.scores.clone();
        for (id, (text, kind)) in vocab.tokens.iter().zip(&vocab.kinds).enumerate().take(count) {
            match kind {
                TokenKind::Normal => {}
                TokenKind::UserDefined if double_precision => {}
                // A user-defined piece beats any other segmentation.
                TokenKind::UserDefined => scores[id] = text.len() as f64 * highest - 0.1,
                _ => continue,
            }
            if !text.is_empty() {
                pieces.insert(text.as_bytes(), id as u32);
            }
        }
        let bytes = vocab.byte_ids();
        Self {
            pieces,
            scores,
            unknown_score: lowest - UNKNOWN_PENALTY,
            unknown,
            double_precision,
            byte_fallback: byte_fallback && bytes.iter().all(Option::is_some),
            bytes,
        }
    }

    /// Appends the ids of a piece.
    pub(crate) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let none = Step { start: 0, id: NONE, score: f64::NEG_INFINITY };
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
                    improve(
                        &mut steps[at + 1],
                        Step { start, id, score: self.sum(score, self.scores[id as usize]) },
                    );
                }
            }
            if !whole_character {
                let end = start + c.len_utf8();
                improve(
                    &mut steps[end],
                    Step { start, id: NONE, score: self.sum(score, self.unknown_score) },
                );
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

    fn sum(&self, left: f64, right: f64) -> f64 {
        if self.double_precision { left + right } else { f64::from(left as f32 + right as f32) }
    }
}

/// Keeps the better of two segmentations up to the same position; the earlier one if they are equal.
fn improve(best: &mut Step, step: Step) {
    if step.score > best.score || best.id == NONE && best.score == f64::NEG_INFINITY {
        *best = step;
    }
}

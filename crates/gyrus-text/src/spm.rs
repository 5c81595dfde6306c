//! SentencePiece BPE: merge neighbours whose concatenation is a piece, highest score first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use crate::data::TokenKind;
use crate::table::TextTable;
use crate::vocab::Vocab;

const NONE: u32 = u32::MAX;

/// A SentencePiece vocabulary with scores.
pub(crate) struct Spm {
    /// The pieces that text can be encoded to; never control, unknown or byte tokens.
    pieces: TextTable,
    longest: usize,
    /// The rank of each token's score: lower is better.
    order: Vec<u32>,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
    has_unused: bool,
    /// Whether no piece contains an escaped space after another character. Then words are encoded one by one.
    by_words: bool,
}

/// Scratch buffers, reused between calls.
#[derive(Default)]
pub(crate) struct SpmScratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<u64>>,
    splits: HashMap<(usize, usize), usize>,
}

/// A range of the text: one character at first, later the characters that were merged.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    end: usize,
    next: u32,
    previous: u32,
    /// Its piece, or [`NONE`].
    id: u32,
    /// The piece of this symbol merged with the next one, or [`NONE`].
    joined: u32,
}

impl Spm {
    pub(crate) fn new(vocab: &Vocab, unknown: Option<u32>) -> Self {
        let mut pieces = TextTable::with_capacity(vocab.len(), 0);
        let mut longest = 0;
        let mut has_unused = false;
        let mut by_words = true;
        for (id, (text, kind)) in vocab.tokens.iter().zip(&vocab.kinds).enumerate() {
            if matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused)
                && !text.is_empty()
            {
                longest = longest.max(text.len());
                has_unused |= *kind == TokenKind::Unused;
                let mut chars = text.chars().skip_while(|&c| c == '\u{2581}');
                by_words &= chars.all(|c| c != '\u{2581}');
                // Token texts are unique.
                let _ = pieces.insert(text.as_bytes(), id as u32);
            }
        }
        let order = vocab.scores.iter().map(|&score| descending(score as f32)).collect();
        Self { pieces, longest, order, bytes: vocab.byte_ids(), unknown, has_unused, by_words }
    }

    /// Appends the ids of `text`, whose spaces are written as U+2581.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, scratch: &mut SpmScratch, out: &mut Vec<u32>) {
        if !self.by_words {
            return self.encode_word(vocab, text, scratch, out);
        }
        let mut start = 0;
        let mut after_space = true;
        for (at, c) in text.char_indices() {
            let is_space = c == '\u{2581}';
            if is_space && !after_space {
                self.encode_word(vocab, &text[start..at], scratch, out);
                start = at;
            }
            after_space = is_space;
        }
        self.encode_word(vocab, &text[start..], scratch, out);
    }

    fn piece(&self, text: &str) -> u32 {
        if text.len() > self.longest { NONE } else { self.pieces.get(text.as_bytes()).unwrap_or(NONE) }
    }

    fn encode_word(&self, vocab: &Vocab, text: &str, scratch: &mut SpmScratch, out: &mut Vec<u32>) {
        let SpmScratch { symbols, heap, splits } = scratch;
        symbols.clear();
        heap.clear();
        splits.clear();
        for (start, c) in text.char_indices() {
            let end = start + c.len_utf8();
            let index = symbols.len() as u32;
            symbols.push(Symbol {
                start,
                end,
                next: if end == text.len() { NONE } else { index + 1 },
                previous: index.wrapping_sub(1),
                id: self.piece(&text[start..end]),
                joined: NONE,
            });
        }
        for at in 0..symbols.len().saturating_sub(1) {
            self.propose(text, symbols, heap, at);
        }
        while let Some(Reverse(top)) = heap.pop() {
            let at = (top & u64::from(u32::MAX)) as usize;
            let Symbol { start, end, joined, next, .. } = symbols[at];
            if joined == NONE || u64::from(self.order[joined as usize]) != top >> 32 {
                continue;
            }
            let right = symbols[next as usize];
            symbols[next as usize].joined = NONE;
            if self.has_unused {
                splits.insert((start, right.end), end);
            }
            let symbol = &mut symbols[at];
            symbol.id = joined;
            symbol.end = right.end;
            symbol.next = right.next;
            symbol.joined = NONE;
            let previous = symbol.previous;
            if right.next != NONE {
                symbols[right.next as usize].previous = at as u32;
                self.propose(text, symbols, heap, at);
            }
            if previous != NONE {
                self.propose(text, symbols, heap, previous as usize);
            }
        }
        let mut at = if symbols.is_empty() { NONE } else { 0 };
        while at != NONE {
            let symbol = symbols[at as usize];
            self.emit(vocab, text, symbol, splits, out);
            at = symbol.next;
        }
    }

    /// Pushes the merge of the symbol at `at` with its neighbour, if it is a piece.
    fn propose(&self, text: &str, symbols: &mut [Symbol], heap: &mut BinaryHeap<Reverse<u64>>, at: usize) {
        let Symbol { start, next, .. } = symbols[at];
        let joined = self.piece(&text[start..symbols[next as usize].end]);
        symbols[at].joined = joined;
        if joined != NONE {
            heap.push(Reverse(u64::from(self.order[joined as usize]) << 32 | at as u64));
        }
    }

    /// Emits one symbol: its piece, or the parts of an unused piece, or byte tokens, or the unknown token.
    fn emit(
        &self,
        vocab: &Vocab,
        text: &str,
        symbol: Symbol,
        splits: &HashMap<(usize, usize), usize>,
        out: &mut Vec<u32>,
    ) {
        let mut stack = vec![(symbol.start, symbol.end, symbol.id)];
        while let Some((start, end, id)) = stack.pop() {
            if id != NONE && vocab.kinds[id as usize] == TokenKind::Unused {
                if let Some(&middle) = splits.get(&(start, end)) {
                    stack.push((middle, end, self.piece(&text[middle..end])));
                    stack.push((start, middle, self.piece(&text[start..middle])));
                    continue;
                }
            } else if id != NONE {
                out.push(id);
                continue;
            }
            let bytes = text[start..end].bytes();
            if bytes.clone().all(|byte| self.bytes[byte as usize].is_some()) {
                out.extend(bytes.filter_map(|byte| self.bytes[byte as usize]));
            } else {
                out.extend(self.unknown);
            }
        }
    }
}

/// A number that orders finite scores from high to low.
fn descending(score: f32) -> u32 {
    // Positive and negative zero are the same score.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Spelling;

    #[test]
    fn scores_are_ordered() {
        let scores = [1e30_f32, 3.5, 0.0, -0.5, -1e9];
        assert!(scores.windows(2).all(|pair| descending(pair[0]) < descending(pair[1])));
        assert_eq!(descending(0.0), descending(-0.0));
    }

    #[test]
    fn unused_pieces_are_split_again() {
        let tokens = ["a", "b", "ab", "c", "abc"].map(String::from).to_vec();
        let mut kinds = vec![TokenKind::Normal; 5];
        kinds[4] = TokenKind::Unused;
        let vocab = Vocab::new(tokens, kinds, vec![0.0, 0.0, 2.0, 0.0, 3.0], &Spelling::Text(Vec::new()))
            .expect("fine");
        let spm = Spm::new(&vocab, None);
        let mut out = Vec::new();
        spm.encode(&vocab, "abcab", &mut SpmScratch::default(), &mut out);
        assert_eq!(out, [2, 3, 2]);
    }
}

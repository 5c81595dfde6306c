//! Byte-pair encoding from a list of merges: over bytes (GPT-2 and after) or over characters (Gemma 4).

use std::sync::atomic::{AtomicU8, Ordering};

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::byte_level;
use crate::data::TokenKind;
use crate::error::TokenizerError;
use crate::merge::{NO_SYMBOL, Scratch, merge};
use crate::pretok::{self, Rule};
use crate::table::{Merge, PairTable, TextTable};
use crate::unicode::{Class, classes};
use crate::vocab::{ESCAPED_SPACE, Vocab};

/// Reads the merge rules: each joins two tokens of the vocabulary into a third.
fn read_merges(vocab: &Vocab, merges: &[String]) -> Result<PairTable<Merge>, TokenizerError> {
    let mut pairs = PairTable::with_capacity(merges.len());
    let mut joined = String::new();
    for (index, rule) in merges.iter().enumerate() {
        // The first token may itself begin with a space, never be empty.
        let split = rule.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
        let (left, right) = match split {
            Some(at) if at + 1 < rule.len() => (&rule[..at], &rule[at + 1..]),
            _ => return Err(TokenizerError::MergeForm { index, rule: rule.clone() }),
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let find = |token: &str| {
            vocab.id_of(token).ok_or_else(|| TokenizerError::MergeToken {
                index,
                rule: rule.clone(),
                token: token.to_owned(),
            })
        };
        let merge = Merge { rank: index as u32, id: find(&joined)? };
        pairs.insert(find(left)?, find(right)?, merge);
    }
    Ok(pairs)
}

/// What is known of a token: whether merging its own bytes gives it back.
const UNTRIED: u8 = 0;
const WHOLE: u8 = 1;
const BROKEN: u8 = 2;

/// Byte-level BPE.
pub(crate) struct ByteLevelBpe {
    rule: Rule,
    pairs: PairTable<Merge>,
    /// Bytes to ids, of the tokens that text can become.
    pieces: TextTable,
    longest: usize,
    symbols: [u32; 256],
    /// Most pieces of running text are single tokens. Whether a token's own bytes merge back into it
    /// is found out once, when it is first met, and then a lookup replaces the merging. The answer does
    /// not depend on who asks, so threads may race for it.
    whole: Vec<AtomicU8>,
}

impl ByteLevelBpe {
    pub(crate) fn new(vocab: &Vocab, merges: &[String], rule: Rule) -> Result<Self, TokenizerError> {
        let pairs = read_merges(vocab, merges)?;
        let mut pieces = TextTable::with_capacity(vocab.len(), 0);
        let mut longest = 0;
        for (id, kind) in vocab.kinds.iter().enumerate() {
            if *kind == TokenKind::Normal && !vocab.tokens[id].is_empty() {
                let bytes = vocab.bytes(id as u32);
                longest = longest.max(bytes.len());
                // Two spellings of the same bytes exist only outside the byte alphabet; the first counts.
                let _ = pieces.insert(bytes, id as u32);
            }
        }
        // A byte without a token is left out of the ids, as the published tokenizers do. A token that is
        // text of a fixed form writes its character, not the byte.
        let mut buffer = [0; 4];
        let symbols = byte_level::CHARS.map(|c| {
            let id = vocab.id_of(c.encode_utf8(&mut buffer));
            id.filter(|&id| vocab.kinds[id as usize] == TokenKind::Normal).unwrap_or(NO_SYMBOL)
        });
        let whole = std::iter::repeat_with(|| AtomicU8::new(UNTRIED)).take(vocab.len()).collect();
        Ok(Self { rule, pairs, pieces, longest, symbols, whole })
    }

    /// Appends the ids of `text`, which holds no special tokens and may hold any bytes.
    pub(crate) fn encode(&self, text: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if !self.rule.nfc || text.is_ascii() {
            return self.encode_normal(text, scratch, out);
        }
        if let Ok(valid) = std::str::from_utf8(text) {
            match normalised(valid) {
                None => self.encode_normal(text, scratch, out),
                Some(normal) => self.encode_normal(normal.as_bytes(), scratch, out),
            }
            return;
        }
        let mut normal = Vec::with_capacity(text.len());
        let mut buffer = String::new();
        for chunk in text.utf8_chunks() {
            buffer.clear();
            normalise_into(chunk.valid(), &mut buffer);
            normal.extend_from_slice(buffer.as_bytes());
            normal.extend_from_slice(chunk.invalid());
        }
        self.encode_normal(&normal, scratch, out);
    }

    fn encode_normal(&self, text: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        pretok::split(self.rule.patterns, text, &mut |piece| self.encode_piece(piece, scratch, out));
    }

    #[inline]
    fn encode_piece(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if piece.len() <= self.longest
            && let Some(id) = self.pieces.get(piece)
        {
            if self.rule.ignore_merges {
                return out.push(id);
            }
            let known = &self.whole[id as usize];
            match known.load(Ordering::Relaxed) {
                WHOLE => return out.push(id),
                UNTRIED => {
                    let start = out.len();
                    self.merge_piece(piece, scratch, out);
                    let state = if out[start..] == [id] { WHOLE } else { BROKEN };
                    return known.store(state, Ordering::Relaxed);
                }
                _ => {}
            }
        }
        self.merge_piece(piece, scratch, out);
    }

    fn merge_piece(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        scratch.symbols.clear();
        scratch.symbols.extend(piece.iter().map(|&byte| self.symbols[byte as usize]));
        merge(&self.pairs, scratch, out);
    }

    /// Whether some merge makes this token, so that it is a piece of text and no marker.
    pub(crate) fn makes(&self, vocab: &Vocab, id: u32) -> bool {
        let mut ids = Vec::new();
        self.merge_piece(vocab.bytes(id), &mut Scratch::default(), &mut ids);
        ids == [id]
    }
}

/// The text in Unicode form C, if it is not so already.
fn normalised(text: &str) -> Option<String> {
    match is_nfc_quick(text.chars()) {
        IsNormalized::Yes => None,
        _ => {
            let mut normal = String::with_capacity(text.len());
            normalise_into(text, &mut normal);
            Some(normal)
        }
    }
}

/// Normalises what the class table knows. A character of a later Unicode release is left as it is and
/// nothing moves across it, as in the releases that did not have it.
fn normalise_into(text: &str, out: &mut String) {
    let classes = classes();
    let mut rest = text;
    while !rest.is_empty() {
        let later = rest.find(|c| classes.of_char(c) == Class::NONE).unwrap_or(rest.len());
        out.extend(rest[..later].nfc());
        rest = &rest[later..];
        let known = rest.find(|c| classes.of_char(c) != Class::NONE).unwrap_or(rest.len());
        out.push_str(&rest[..known]);
        rest = &rest[known..];
    }
}

/// BPE over the characters of text in which spaces are written as U+2581. Characters without a token
/// become bytes.
pub(crate) struct CharBpe {
    pairs: PairTable<Merge>,
    bytes: [Option<u32>; 256],
    unknown: Option<u32>,
}

impl CharBpe {
    pub(crate) fn new(
        vocab: &Vocab,
        merges: &[String],
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        Ok(Self { pairs: read_merges(vocab, merges)?, bytes: vocab.byte_ids(), unknown })
    }

    /// Appends the ids of `text`, which holds no special tokens.
    pub(crate) fn encode(&self, vocab: &Vocab, text: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        scratch.symbols.clear();
        let mut buffer = [0; 4];
        let mut after_unknown = false;
        for c in text.chars() {
            let piece = if c == ' ' { ESCAPED_SPACE } else { c.encode_utf8(&mut buffer) };
            let mut unknown = false;
            match vocab.id_of(piece) {
                Some(id) => scratch.symbols.push(id),
                None if piece.bytes().all(|byte| self.bytes[byte as usize].is_some()) => {
                    scratch.symbols.extend(piece.bytes().filter_map(|byte| self.bytes[byte as usize]));
                }
                None => {
                    unknown = true;
                    // One unknown token stands for a whole run of unknown characters.
                    if !after_unknown {
                        scratch.symbols.extend(self.unknown);
                    }
                }
            }
            after_unknown = unknown;
        }
        merge(&self.pairs, scratch, out);
    }
}

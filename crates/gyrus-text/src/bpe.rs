//! Byte-pair encoding with a list of merges: over bytes (GPT-2 and later) or over characters (Gemma 4).

use std::sync::atomic::{AtomicU8, Ordering};

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

use crate::byte_level;
use crate::data::TokenKind;
use crate::error::TokenizerError;
use crate::merge::{NO_SYMBOL, Scratch, merge};
use crate::pretokenizer::{self, PreTokenizer};
use crate::table::{Merge, PairTable, TextTable};
use crate::unicode::{Class, classes};
use crate::vocab::{ESCAPED_SPACE, Vocab};

/// Parses the merges: each joins two tokens of the vocabulary into a third.
fn read_merges(vocab: &Vocab, merges: &[String]) -> Result<PairTable<Merge>, TokenizerError> {
    let mut pairs = PairTable::with_capacity(merges.len());
    let mut joined = String::new();
    for (index, rule) in merges.iter().enumerate() {
        // The first token may itself start with a space, but it is never empty.
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

/// Whether merging a token's own bytes gives the token again: unknown, yes or no.
const UNTRIED: u8 = 0;
const WHOLE: u8 = 1;
const BROKEN: u8 = 2;

/// Byte-level BPE.
pub(crate) struct ByteLevelBpe {
    pre_tokenizer: PreTokenizer,
    pairs: PairTable<Merge>,
    /// Ids by bytes, of the tokens that text can be encoded to.
    pieces: TextTable,
    longest: usize,
    symbols: [u32; 256],
    /// Most pieces of text are single tokens. Whether a token's own bytes merge back into it is computed at its first
    /// use; later a lookup replaces the merging. The result is deterministic, so a race between threads is harmless.
    whole: Vec<AtomicU8>,
}

impl ByteLevelBpe {
    pub(crate) fn new(
        vocab: &Vocab,
        merges: &[String],
        pre_tokenizer: PreTokenizer,
    ) -> Result<Self, TokenizerError> {
        let pairs = read_merges(vocab, merges)?;
        let mut pieces = TextTable::with_capacity(vocab.len(), 0);
        let mut longest = 0;
        for (id, kind) in vocab.kinds.iter().enumerate() {
            if *kind == TokenKind::Normal && !vocab.tokens[id].is_empty() {
                let bytes = vocab.bytes(id as u32);
                longest = longest.max(bytes.len());
                // Two tokens have equal bytes only if one has characters outside the byte alphabet; the first one
                // counts.
                let _ = pieces.insert(bytes, id as u32);
            }
        }
        // A byte without a token is dropped, as the reference tokenizers do. A user-defined token stands for its
        // character, not for the byte.
        let mut buffer = [0; 4];
        let symbols = byte_level::CHARS.map(|c| {
            let id = vocab.id_of(c.encode_utf8(&mut buffer));
            id.filter(|&id| vocab.kinds[id as usize] == TokenKind::Normal).unwrap_or(NO_SYMBOL)
        });
        let whole = std::iter::repeat_with(|| AtomicU8::new(UNTRIED)).take(vocab.len()).collect();
        Ok(Self { pre_tokenizer, pairs, pieces, longest, symbols, whole })
    }

    /// Appends the ids of `text`, which contains no special tokens and may contain any bytes.
    pub(crate) fn encode(&self, text: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if !self.pre_tokenizer.nfc || text.is_ascii() {
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
        pretokenizer::split(self.pre_tokenizer.patterns, text, &mut |piece| {
            self.encode_piece(piece, scratch, out)
        });
    }

    #[inline]
    fn encode_piece(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if piece.len() <= self.longest
            && let Some(id) = self.pieces.get(piece)
        {
            if self.pre_tokenizer.ignore_merges {
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

    /// Whether some merge produces this token, which means that it is text and not a special token.
    pub(crate) fn has_merge_into(&self, vocab: &Vocab, id: u32) -> bool {
        let mut ids = Vec::new();
        self.merge_piece(vocab.bytes(id), &mut Scratch::default(), &mut ids);
        ids == [id]
    }
}

/// The text in Unicode normalization form C, if it differs.
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

/// Normalises the characters in the class table. A character of a later Unicode release stays as it is and blocks
/// reordering, as in releases that do not define it.
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

/// BPE over the characters of a text whose spaces are written as U+2581. Characters without a token are encoded as byte
/// tokens.
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

    /// Appends the ids of `text`, which contains no special tokens.
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
                    // One unknown token stands for a run of unknown characters.
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

//! Byte-pair encoding with a list of merges: over bytes (GPT-2 and later) or over characters (Gemma 4).

use std::sync::atomic::{AtomicU8, Ordering};

use crate::byte_level;
use crate::data::{Bpe, MergeRule, TokenKind};
use crate::error::TokenizerError;
use crate::merge::{Scratch, merge};
use crate::table::{Merge, PairTable, TextTable};
use crate::vocab::Vocab;

/// Resolves the merges: each joins two tokens of the vocabulary into a third.
fn read_merges(vocab: &Vocab, merges: &[MergeRule]) -> Result<PairTable<Merge>, TokenizerError> {
    let mut pairs = PairTable::with_capacity(merges.len());
    for (index, rule) in merges.iter().enumerate() {
        let (left, right) = rule.parts();
        let find = |token: &str| {
            vocab.id_of(token).ok_or_else(|| TokenizerError::MergeToken {
                index,
                rule: format!("{left} {right}"),
                token: token.to_owned(),
            })
        };
        let merge = Merge { rank: index as u32, id: find(rule.joined())? };
        pairs.insert(find(left)?, find(right)?, merge);
    }
    Ok(pairs)
}

/// Whether merging a token's own bytes gives the token again: unknown, yes or no.
const UNTRIED: u8 = 0;
const WHOLE: u8 = 1;
const BROKEN: u8 = 2;

/// A byte that is dropped.
const NO_SYMBOL: u32 = u32::MAX;

/// Byte-level BPE.
pub(crate) struct ByteLevelBpe {
    ignore_merges: bool,
    fuse_unknown: bool,
    /// The symbol of bytes without a token.
    unknown: u32,
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
    pub(crate) fn new(vocab: &Vocab, bpe: &Bpe) -> Result<Self, TokenizerError> {
        let pairs = read_merges(vocab, &bpe.merges)?;
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
        // A byte without a token is unknown, or dropped if there is no unknown token, as the reference tokenizers do. A
        // user-defined token stands for its character, not for the byte.
        let unknown = bpe.unknown.unwrap_or(NO_SYMBOL);
        let mut buffer = [0; 4];
        let symbols = byte_level::CHARS.map(|c| {
            let id = vocab.id_of(c.encode_utf8(&mut buffer));
            id.filter(|&id| vocab.kinds[id as usize] == TokenKind::Normal).unwrap_or(unknown)
        });
        let whole = std::iter::repeat_with(|| AtomicU8::new(UNTRIED)).take(vocab.len()).collect();
        let Bpe { ignore_merges, fuse_unknown, .. } = *bpe;
        Ok(Self { ignore_merges, fuse_unknown, unknown, pairs, pieces, longest, symbols, whole })
    }

    /// Appends the ids of a piece, which may contain any bytes.
    #[inline]
    pub(crate) fn encode_piece(&self, piece: &[u8], scratch: &mut Scratch, out: &mut Vec<u32>) {
        if piece.len() <= self.longest
            && let Some(id) = self.pieces.get(piece)
        {
            if self.ignore_merges {
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
        let symbols = piece.iter().map(|&byte| self.symbols[byte as usize]);
        scratch.symbols.extend(symbols.filter(|&symbol| symbol != NO_SYMBOL));
        if self.fuse_unknown && self.unknown != NO_SYMBOL {
            scratch.symbols.dedup_by(|next, last| *next == self.unknown && last == next);
        }
        merge(&self.pairs, scratch, out);
    }

    /// Whether some merge produces this token, which means that it is text and not a special token.
    pub(crate) fn has_merge_into(&self, vocab: &Vocab, id: u32) -> bool {
        let mut ids = Vec::new();
        self.merge_piece(vocab.bytes(id), &mut Scratch::default(), &mut ids);
        ids == [id]
    }
}

/// BPE over characters. Characters without a token are encoded as byte tokens where the vocabulary has them.
pub(crate) struct CharBpe {
    pairs: PairTable<Merge>,
    bytes: [Option<u32>; 256],
    ignore_merges: bool,
    fuse_unknown: bool,
    unknown: Option<u32>,
}

impl CharBpe {
    pub(crate) fn new(vocab: &Vocab, bpe: &Bpe) -> Result<Self, TokenizerError> {
        let Bpe { ignore_merges, fuse_unknown, unknown, .. } = *bpe;
        let pairs = read_merges(vocab, &bpe.merges)?;
        Ok(Self { pairs, bytes: vocab.byte_ids(), ignore_merges, fuse_unknown, unknown })
    }

    /// Appends the ids of a piece.
    pub(crate) fn encode(&self, vocab: &Vocab, piece: &str, scratch: &mut Scratch, out: &mut Vec<u32>) {
        if self.ignore_merges
            && let Some(id) = vocab.id_of(piece).filter(|&id| vocab.kinds[id as usize] == TokenKind::Normal)
        {
            return out.push(id);
        }
        scratch.symbols.clear();
        let mut buffer = [0; 4];
        let mut after_unknown = false;
        for c in piece.chars() {
            let text = c.encode_utf8(&mut buffer);
            let mut unknown = false;
            match vocab.id_of(text) {
                Some(id) => scratch.symbols.push(id),
                None if text.bytes().all(|byte| self.bytes[byte as usize].is_some()) => {
                    scratch.symbols.extend(text.bytes().filter_map(|byte| self.bytes[byte as usize]));
                }
                None => {
                    unknown = true;
                    if !(self.fuse_unknown && after_unknown) {
                        scratch.symbols.extend(self.unknown);
                    }
                }
            }
            after_unknown = unknown;
        }
        merge(&self.pairs, scratch, out);
    }
}

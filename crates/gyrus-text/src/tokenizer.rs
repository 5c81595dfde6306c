//! The tokenizer, for all tokenizer families.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use crate::bpe::{ByteLevelBpe, CharBpe};
use crate::data::{Model, PairTokens, SpecialIds, TextStart, TokenKind, TokenizerData};
use crate::detokenizer::Detokenizer;
use crate::end_tokens::{end_tokens, is_end_name};
use crate::error::TokenizerError;
use crate::merge::Scratch;
use crate::normalizer::{NormalText, Normalizers};
use crate::pretokenizer::{Position, Splitter};
use crate::special::{Fragment, SpecialFinder};
use crate::spm::{Spm, SpmScratch};
use crate::unigram::Unigram;
use crate::vocab::{ESCAPED_SPACE, Vocab};
use crate::wordpiece::WordPiece;

/// How to encode special tokens that are spelt out in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// As the special tokens: for trusted text, such as a rendered chat template.
    Parse,
    /// As plain text: for untrusted text. User-defined tokens are still matched, because they are text.
    Literal,
}

/// A part of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text, and how to encode the special tokens spelt out in it.
    Text(&'a str, Special),
    /// Token ids, such as those that a model generated.
    Ids(&'a [u32]),
}

enum Encoder {
    ByteLevel(Box<ByteLevelBpe>),
    Characters(Box<CharBpe>),
    Spm(Box<Spm>),
    WordPiece(WordPiece),
    Unigram(Box<Unigram>),
}

/// Encodes text to token ids and decodes ids to text. It is immutable, so all threads can share it.
pub struct Tokenizer {
    vocab: Vocab,
    special: SpecialFinder,
    normalizers: Normalizers,
    /// Finds the tokens that are matched in normalised text.
    normalized: Option<SpecialFinder>,
    splitter: Splitter,
    encoder: Encoder,
    ids: SpecialIds,
    ends: BTreeSet<u32>,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    pair: Option<PairTokens>,
    start: TextStart,
}

/// Buffers, reused between fragments of a text.
#[derive(Default)]
struct Buffers {
    text: NormalText,
    bytes: Vec<u8>,
    merge: Scratch,
    spm: SpmScratch,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let family = match self.encoder {
            Encoder::ByteLevel(_) => "byte-level BPE",
            Encoder::Characters(_) => "character BPE",
            Encoder::Spm(_) => "SentencePiece BPE",
            Encoder::WordPiece(_) => "WordPiece",
            Encoder::Unigram(_) => "Unigram",
        };
        f.debug_struct("Tokenizer")
            .field("family", &family)
            .field("tokens", &self.vocab.len())
            .field("ids", &self.ids)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Validates the data and builds the tokenizer.
    pub fn new(data: TokenizerData) -> Result<Self, TokenizerError> {
        let has_kinds = !data.kinds.is_empty();
        let mut vocab = Vocab::new(data.tokens, data.kinds, data.scores, &data.decoder.spelling)?;
        let ids = data.ids;
        let named = ids.named().into_iter().filter_map(|(name, id)| Some((name, id?)));
        let others = [("added", &data.prefix), ("added", &data.suffix), ("end", &data.ends)];
        let others = others.into_iter().flat_map(|(name, ids)| ids.iter().map(move |&id| (name, id)));
        let of_pairs = data.pair.iter().flat_map(|pair| [&pair.prefix, &pair.between, &pair.suffix]);
        let of_pairs = of_pairs.flat_map(|ids| ids.iter().map(|&id| ("added", id)));
        let others = others.chain(of_pairs);
        let matched = data.matching.iter().map(|&(id, _)| ("special", id));
        let bpe = match &data.model {
            Model::ByteLevelBpe(bpe) | Model::CharacterBpe(bpe) => bpe.unknown,
            _ => None,
        };
        let unknown = bpe.map(|id| ("unknown", id));
        let outside = |&(_, id): &(&str, u32)| id as usize >= vocab.len();
        if let Some((name, id)) = named.chain(others).chain(matched).chain(unknown).find(outside) {
            return Err(TokenizerError::IdRange { name, id, tokens: vocab.len() });
        }
        let encoder = match &data.model {
            Model::ByteLevelBpe(bpe) => Encoder::ByteLevel(Box::new(ByteLevelBpe::new(&vocab, bpe)?)),
            Model::CharacterBpe(bpe) => Encoder::Characters(Box::new(CharBpe::new(&vocab, bpe)?)),
            Model::SentencePieceBpe => Encoder::Spm(Box::new(Spm::new(&vocab, ids.unk))),
            &Model::Unigram { byte_fallback, double_precision, pieces } => {
                let unigram = Unigram::new(&vocab, ids.unk, byte_fallback, double_precision, pieces);
                Encoder::Unigram(Box::new(unigram))
            }
            Model::WordPiece { words, longest_word } => {
                Encoder::WordPiece(WordPiece::new(&vocab, ids.unk, words, *longest_word))
            }
        };

        let mut ends = end_tokens(&vocab, &ids, |id| match &encoder {
            Encoder::ByteLevel(bpe) => bpe.has_merge_into(&vocab, id),
            _ => has_kinds,
        });
        ends.extend(data.ends);
        // Untrusted text must not contain a token that ends the generation, so end tokens become control tokens. If the
        // file does not mark an end token as a control token, its name identifies it.
        for &id in &ends {
            let kind = &mut vocab.kinds[id as usize];
            let unmarked = *kind == TokenKind::Normal && is_end_name(&vocab.tokens[id as usize]);
            if *kind == TokenKind::UserDefined || unmarked {
                *kind = TokenKind::Control;
            }
        }
        let normalizers = Normalizers::new(data.normalizers)?;
        let mut buffers = NormalText::default();
        let normal = |text: &str| normalizers.apply(text, true, &mut buffers).to_owned();
        let normalized = SpecialFinder::of_normalized(&vocab, &data.matching, normal)?;
        Ok(Self {
            special: SpecialFinder::new(&vocab, &data.matching)?,
            vocab,
            normalizers,
            normalized,
            splitter: Splitter::new(data.pre_tokenizers)?,
            encoder,
            ids,
            ends,
            prefix: data.prefix,
            suffix: data.suffix,
            pair: data.pair,
            start: data.decoder.start,
        })
    }

    /// The tokens that are added before and after a text.
    pub fn added(&self) -> (&[u32], &[u32]) {
        (&self.prefix, &self.suffix)
    }

    /// The tokens that are added to a pair of texts, if the tokenizer takes pairs.
    pub fn pair(&self) -> Option<&PairTokens> {
        self.pair.as_ref()
    }

    /// Encodes `text`. `add_special` adds the vocabulary's BOS, EOS, CLS and SEP tokens.
    pub fn encode(&self, text: &str, special: Special, add_special: bool) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        self.encode_into(text, special, add_special, &mut out);
        out
    }

    /// As [`encode`](Self::encode), appended to `out`.
    pub fn encode_into(&self, text: &str, special: Special, add_special: bool, out: &mut Vec<u32>) {
        self.encode_bytes_into(text.as_bytes(), special, add_special, out);
    }

    /// As [`encode_into`](Self::encode_into) for text with invalid UTF-8. Byte-level vocabularies encode any bytes; the
    /// others replace invalid bytes by U+FFFD.
    pub fn encode_bytes_into(&self, text: &[u8], special: Special, add_special: bool, out: &mut Vec<u32>) {
        if add_special {
            out.extend_from_slice(&self.prefix);
        }
        let all = 0..text.len();
        let trusted = if special == Special::Parse { std::slice::from_ref(&all) } else { &[] };
        self.encode_fragments(text, trusted, &mut Position::Start, out);
        if add_special {
            out.extend_from_slice(&self.suffix);
        }
    }

    /// Encodes a prompt in parts. Consecutive text parts are encoded as one text, but a control token is matched only
    /// within a single part with [`Special::Parse`].
    pub fn encode_parts<'a>(&self, parts: impl IntoIterator<Item = Part<'a>>) -> Vec<u32> {
        let mut out = Vec::new();
        let mut text = String::new();
        let mut trusted: Vec<Range<usize>> = Vec::new();
        let mut position = Position::Start;
        for part in parts {
            match part {
                Part::Text(part, special) => {
                    if special == Special::Parse {
                        trusted.push(text.len()..text.len() + part.len());
                    }
                    text.push_str(part);
                }
                Part::Ids(ids) => {
                    self.encode_fragments(text.as_bytes(), &trusted, &mut position, &mut out);
                    text.clear();
                    trusted.clear();
                    out.extend_from_slice(ids);
                    position = match ids.last() {
                        Some(&id) if self.is_special(id) => Position::AfterSpecial,
                        Some(_) => Position::Inside,
                        None => position,
                    };
                }
            }
        }
        self.encode_fragments(text.as_bytes(), &trusted, &mut position, &mut out);
        out
    }

    /// Appends the ids of `text`. Control tokens are matched within the `trusted` ranges only.
    fn encode_fragments(
        &self,
        text: &[u8],
        trusted: &[Range<usize>],
        position: &mut Position,
        out: &mut Vec<u32>,
    ) {
        let mut buffers = Buffers::default();
        self.special.split(text, trusted, |fragment| match fragment {
            Fragment::Token(id) => {
                out.push(id);
                *position = Position::AfterSpecial;
            }
            Fragment::Text(bytes) => self.encode_text(bytes, position, &mut buffers, out),
        });
    }

    /// Appends the ids of text without special tokens, except those that are matched in normalised text.
    fn encode_text(&self, text: &[u8], position: &mut Position, buffers: &mut Buffers, out: &mut Vec<u32>) {
        let Buffers { text: normal, bytes, merge, spm } = buffers;
        let prefix = *position != Position::Inside;
        let lossy;
        let text = if let Encoder::ByteLevel(_) = self.encoder {
            self.normalizers.apply_bytes(text, prefix, bytes)
        } else {
            lossy = String::from_utf8_lossy(text);
            self.normalizers.apply(&lossy, prefix, normal).as_bytes()
        };
        let mut encode = |fragment: Fragment<'_>| match fragment {
            Fragment::Token(id) => {
                out.push(id);
                *position = Position::AfterSpecial;
            }
            Fragment::Text(text) => {
                self.splitter.split(text, *position, &mut |piece| self.encode_piece(piece, merge, spm, out));
                *position = Position::Inside;
            }
        };
        match &self.normalized {
            None if text.is_empty() => {}
            None => encode(Fragment::Text(text)),
            Some(finder) => finder.split(text, &[], encode),
        }
    }

    #[inline]
    fn encode_piece(&self, piece: &[u8], merge: &mut Scratch, spm: &mut SpmScratch, out: &mut Vec<u32>) {
        if let Encoder::ByteLevel(bpe) = &self.encoder {
            return bpe.encode_piece(piece, merge, out);
        }
        let piece = &String::from_utf8_lossy(piece);
        match &self.encoder {
            Encoder::ByteLevel(_) => {}
            Encoder::Characters(bpe) => bpe.encode(&self.vocab, piece, merge, out),
            Encoder::Spm(model) => model.encode(&self.vocab, piece, spm, out),
            Encoder::WordPiece(wordpiece) => wordpiece.encode(piece, out),
            Encoder::Unigram(unigram) => unigram.encode(piece, out),
        }
    }

    /// Decodes `ids`. `render_special` renders control tokens as text, else they are skipped. Invalid UTF-8 becomes
    /// U+FFFD.
    pub fn decode(&self, ids: &[u32], render_special: bool) -> String {
        let mut stream = Detokenizer::new(self, render_special);
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// As [`decode`](Self::decode), without the replacement of invalid UTF-8.
    pub fn decode_bytes(&self, ids: &[u32], render_special: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut start = self.start;
        for &id in ids {
            bytes.extend_from_slice(&self.next_bytes(id, render_special, &mut start));
        }
        bytes
    }

    /// The bytes of a token; empty for an id outside the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.vocab.bytes(id)
    }

    /// The text of a token in the vocabulary.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocab.tokens.get(id as usize).map(String::as_str)
    }

    /// The kind of a token.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.vocab.kind(id)
    }

    /// The id of the token with this text in the vocabulary.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocab.id_of(text)
    }

    /// The number of tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab.len()
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// The end-of-sequence token. Other tokens may end a generation too: see [`end_tokens`](Self::end_tokens).
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// The ids of the special tokens.
    pub fn special_ids(&self) -> &SpecialIds {
        &self.ids
    }

    /// The tokens that end a generation, in ascending order.
    pub fn end_tokens(&self) -> impl Iterator<Item = u32> + '_ {
        self.ends.iter().copied()
    }

    /// Whether a token ends a generation.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// All tokens that end a generation.
    pub fn ends(&self) -> impl Iterator<Item = u32> + '_ {
        self.ends.iter().copied()
    }

    /// Whether `encode` with `add_special` adds the BOS token.
    pub fn adds_bos(&self) -> bool {
        [self.ids.bos, self.ids.cls].iter().flatten().any(|id| self.prefix.contains(id))
    }

    /// What is to be removed at the start of decoded text.
    pub(crate) fn text_start(&self) -> TextStart {
        self.start
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        matches!(self.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// The bytes of the next token of a text. `start` is what is still to be removed.
    pub(crate) fn next_bytes(&self, id: u32, render_special: bool, start: &mut TextStart) -> Cow<'_, [u8]> {
        if !render_special && self.is_special(id) {
            return Cow::Borrowed(&[]);
        }
        let bytes = self.vocab.bytes(id);
        // A space after special tokens is one that the encoder added.
        let pending = matches!(start, TextStart::Spaces(_)) && self.is_special(id);
        if *start == TextStart::Keep || bytes.is_empty() || pending {
            return Cow::Borrowed(bytes);
        }
        let text = self.vocab.tokens[id as usize].as_str();
        match std::mem::replace(start, TextStart::Keep) {
            TextStart::Keep => Cow::Borrowed(bytes),
            TextStart::Spaces(most) => {
                let spaces = bytes.iter().take(most).take_while(|&&byte| byte == b' ').count();
                if spaces == bytes.len() && spaces < most {
                    *start = TextStart::Spaces(most - spaces);
                }
                Cow::Borrowed(&bytes[spaces..])
            }
            TextStart::Markers if self.kind(id) == Some(TokenKind::Byte) => Cow::Borrowed(bytes),
            TextStart::Markers => Cow::Owned(text.replace(ESCAPED_SPACE, "").into_bytes()),
            TextStart::Verbatim => Cow::Borrowed(text.as_bytes()),
        }
    }
}

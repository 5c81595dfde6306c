//! The tokenizer, for all tokenizer families.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::bpe::{ByteLevelBpe, CharBpe};
use crate::data::{SpecialIds, TokenKind, TokenizerData};
use crate::detokenizer::Detokenizer;
use crate::end_tokens::{end_tokens, is_end_name};
use crate::error::TokenizerError;
use crate::merge::Scratch;
use crate::pretokenizer;
use crate::special::{Fragment, SpecialFinder, Strip};
use crate::spm::{Spm, SpmScratch};
use crate::unigram::{Spaces, Unigram};
use crate::vocab::{Spelling, Vocab};
use crate::wordpiece::WordPiece;

/// The tokenizer families, by their `tokenizer.ggml.model` names in GGUF.
pub const MODEL_NAMES: &[&str] = &["bert", "gemma4", "gpt2", "llama", "t5"];

/// Pre-tokenizers of the `gpt2` family that are character-level BPE like `gemma4`.
const CHARACTER_PRE_TOKENIZERS: &[&str] = &["gemma4", "granite-embed-multi-311m", "sarvam-moe"];

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

enum Family {
    ByteLevel(Box<ByteLevelBpe>),
    Characters(Box<CharBpe>),
    Spm(Box<Spm>),
    WordPiece(WordPiece),
    Unigram(Box<Unigram>),
}

/// Encodes text to token ids and decodes ids to text. It is immutable, so all threads can share it.
pub struct Tokenizer {
    vocab: Vocab,
    family: Family,
    special: SpecialFinder,
    ids: SpecialIds,
    ends: BTreeSet<u32>,
    first: Option<u32>,
    last: Option<u32>,
    space_prefix: bool,
    strip_space: bool,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let family = match self.family {
            Family::ByteLevel(_) => "byte-level BPE",
            Family::Characters(_) => "character BPE",
            Family::Spm(_) => "SentencePiece BPE",
            Family::WordPiece(_) => "WordPiece",
            Family::Unigram(_) => "Unigram",
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
        let model = data.model.as_str();
        let pre = data.pre.as_deref().filter(|pre| !pre.is_empty());
        if !MODEL_NAMES.contains(&model) {
            return Err(TokenizerError::UnknownModel { name: data.model, known: MODEL_NAMES.join(", ") });
        }
        let characters = model == "gemma4"
            || model == "gpt2" && pre.is_some_and(|pre| CHARACTER_PRE_TOKENIZERS.contains(&pre));
        let pre_tokenizer = match model {
            "gpt2" if !characters => Some(pretokenizer::pre_tokenizer(pre.unwrap_or("default"))?),
            _ => None,
        };
        let spelling = if pre_tokenizer.is_some() { Spelling::ByteLevel } else { Spelling::Escaped };
        let has_kinds = !data.kinds.is_empty();
        let mut vocab = Vocab::new(data.tokens, data.kinds, data.scores.clone(), spelling)?;
        let mut ids = data.ids;
        for (name, id) in ids.named() {
            if let Some(id) = id.filter(|&id| id as usize >= vocab.len()) {
                return Err(TokenizerError::IdRange { name, id, tokens: vocab.len() });
            }
        }
        fill_defaults(model, &vocab, has_kinds, &mut ids);

        let require = |list: &'static str, present: bool| {
            let model = model.to_owned();
            if present { Ok(()) } else { Err(TokenizerError::Missing { model, list }) }
        };
        let family = match (model, pre_tokenizer) {
            ("gpt2", Some(pre_tokenizer)) => {
                require("merges", !data.merges.is_empty())?;
                Family::ByteLevel(Box::new(ByteLevelBpe::new(&vocab, &data.merges, pre_tokenizer)?))
            }
            ("gpt2" | "gemma4", _) => {
                require("merges", !data.merges.is_empty())?;
                Family::Characters(Box::new(CharBpe::new(&vocab, &data.merges, ids.unk)?))
            }
            ("bert", _) => {
                let lowercase = data.lowercase.unwrap_or(true);
                let strip_accents = data.strip_accents.unwrap_or(lowercase);
                Family::WordPiece(WordPiece::new(&vocab, ids.unk, lowercase, strip_accents))
            }
            ("t5", _) => {
                require("scores", !data.scores.is_empty())?;
                let spaces = Spaces {
                    add_prefix: data.add_space_prefix.unwrap_or(false),
                    remove_extra: data.remove_extra_whitespaces.unwrap_or(false),
                    as_suffix: data.treat_whitespace_as_suffix.unwrap_or(false),
                };
                Family::Unigram(Box::new(Unigram::new(&vocab, ids.unk, &data.precompiled_charsmap, spaces)?))
            }
            _ => {
                require("scores", !data.scores.is_empty())?;
                Family::Spm(Box::new(Spm::new(&vocab, ids.unk)))
            }
        };

        let ends = end_tokens(&vocab, &ids, |id| match &family {
            Family::ByteLevel(bpe) => bpe.has_merge_into(&vocab, id),
            _ => has_kinds,
        });
        // Untrusted text must not contain a token that ends the generation, so end tokens become control tokens. If the
        // file does not mark an end token as a control token, its name identifies it.
        for &id in &ends {
            let kind = &mut vocab.kinds[id as usize];
            let unmarked = *kind == TokenKind::Normal && is_end_name(&vocab.tokens[id as usize]);
            if *kind == TokenKind::UserDefined || unmarked {
                *kind = TokenKind::Control;
            }
        }
        let strips = strips(&vocab, pre, data.general_name.as_deref());
        let special = SpecialFinder::new(&vocab, strips)?;

        // The tokens added before and after a text. The file's flag overrides the family's default.
        let by_family = |flag: Option<bool>, default: bool| flag.unwrap_or(default);
        let add_bos = match model {
            "bert" | "llama" => by_family(data.add_bos, true),
            // Some files of this family say no, but the model needs the BOS token.
            "gemma4" => true,
            _ => by_family(data.add_bos, pre_tokenizer.is_some_and(|pre_tokenizer| pre_tokenizer.add_bos)),
        };
        let add_eos = by_family(data.add_eos, model == "t5");
        let add_sep = by_family(data.add_sep, model == "bert");
        let need = |flag, name, add: bool, id: Option<u32>| match id {
            None if add => Err(TokenizerError::NoId { flag, name }),
            id => Ok(id.filter(|_| add)),
        };
        let (first, last) = if model == "bert" {
            (
                need("add_bos", "cls", add_bos, ids.cls.or(ids.bos))?,
                need("add_sep", "separator", add_sep, ids.sep)?,
            )
        } else {
            (need("add_bos", "bos", add_bos, ids.bos)?, need("add_eos", "eos", add_eos, ids.eos)?)
        };
        let space_prefix = model == "llama" && data.add_space_prefix.unwrap_or(true);
        let strip_space = match model {
            "bert" => true,
            "t5" => data.add_space_prefix.unwrap_or(false) || data.remove_extra_whitespaces.unwrap_or(false),
            _ => space_prefix,
        };
        Ok(Self { vocab, family, special, ids, ends, first, last, space_prefix, strip_space })
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
            out.extend(self.first);
        }
        let all = 0..text.len();
        let trusted = if special == Special::Parse { std::slice::from_ref(&all) } else { &[] };
        // The start of a text counts as a special token: a space prefix is added after both.
        self.encode_fragments(text, trusted, &mut true, out);
        if add_special {
            out.extend(self.last);
        }
    }

    /// Encodes a prompt in parts. Consecutive text parts are encoded as one text, but a control token is matched only
    /// within a single part with [`Special::Parse`].
    pub fn encode_parts<'a>(&self, parts: impl IntoIterator<Item = Part<'a>>) -> Vec<u32> {
        let mut out = Vec::new();
        let mut text = String::new();
        let mut trusted: Vec<Range<usize>> = Vec::new();
        let mut after_special = true;
        for part in parts {
            match part {
                Part::Text(part, special) => {
                    if special == Special::Parse {
                        trusted.push(text.len()..text.len() + part.len());
                    }
                    text.push_str(part);
                }
                Part::Ids(ids) => {
                    self.encode_fragments(text.as_bytes(), &trusted, &mut after_special, &mut out);
                    text.clear();
                    trusted.clear();
                    out.extend_from_slice(ids);
                    after_special = ids.last().map_or(after_special, |&id| self.is_special(id));
                }
            }
        }
        self.encode_fragments(text.as_bytes(), &trusted, &mut after_special, &mut out);
        out
    }

    /// Appends the ids of `text`. Control tokens are matched within the `trusted` ranges only.
    fn encode_fragments(
        &self,
        text: &[u8],
        trusted: &[Range<usize>],
        after_special: &mut bool,
        out: &mut Vec<u32>,
    ) {
        let mut scratch = Scratch::default();
        let mut spm_scratch = SpmScratch::default();
        self.special.split(text, trusted, |fragment| match fragment {
            Fragment::Token(id) => {
                out.push(id);
                *after_special = true;
            }
            Fragment::Text(bytes) => {
                if let Family::ByteLevel(bpe) = &self.family {
                    return bpe.encode(bytes, &mut scratch, out);
                }
                let text = String::from_utf8_lossy(bytes);
                match &self.family {
                    Family::ByteLevel(_) => {}
                    Family::Characters(bpe) => bpe.encode(&self.vocab, &text, &mut scratch, out),
                    Family::Spm(spm) => {
                        let prefix = self.space_prefix && *after_special;
                        spm.encode(&self.vocab, &text, prefix, &mut spm_scratch, out);
                    }
                    Family::WordPiece(wordpiece) => wordpiece.encode(&text, out),
                    Family::Unigram(unigram) => unigram.encode(&text, out),
                }
                *after_special = false;
            }
        });
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
        let mut at_start = self.strip_space;
        for &id in ids {
            let mut piece = self.rendered(id, render_special);
            if at_start && !piece.is_empty() && !self.is_special(id) {
                at_start = false;
                piece = piece.strip_prefix(b" ").unwrap_or(piece);
            }
            bytes.extend_from_slice(piece);
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

    /// Whether `encode` with `add_special` adds the BOS token.
    pub fn adds_bos(&self) -> bool {
        self.first.is_some()
    }

    pub(crate) fn strips_leading_space(&self) -> bool {
        self.strip_space
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        matches!(self.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// The bytes that a token is rendered as.
    pub(crate) fn rendered(&self, id: u32, render_special: bool) -> &[u8] {
        if !render_special && self.is_special(id) { &[] } else { self.vocab.bytes(id) }
    }
}

/// Fills in the special ids that old files omit because they are constant in the family.
fn fill_defaults(model: &str, vocab: &Vocab, has_kinds: bool, ids: &mut SpecialIds) {
    let fill = |slot: &mut Option<u32>, id: u32| {
        // Only if the token is a special token, as far as the file has token types.
        let fits = match vocab.kind(id) {
            Some(TokenKind::Control | TokenKind::Unknown) => true,
            Some(_) => !has_kinds,
            None => false,
        };
        if slot.is_none() && fits {
            *slot = Some(id);
        }
    };
    match model {
        "llama" => {
            fill(&mut ids.unk, 0);
            fill(&mut ids.bos, 1);
            fill(&mut ids.eos, 2);
        }
        "bert" => {
            fill(&mut ids.pad, 0);
            fill(&mut ids.unk, 100);
            if ids.bos.is_none() {
                fill(&mut ids.cls, 101);
            }
            fill(&mut ids.sep, 102);
            fill(&mut ids.mask, 103);
        }
        "t5" => {
            fill(&mut ids.pad, 0);
            fill(&mut ids.eos, 1);
            fill(&mut ids.unk, 2);
        }
        _ => {}
    }
}

/// Special tokens that strip white space next to them. Files do not contain this property, so it is listed here.
fn strips(vocab: &Vocab, pre: Option<&str>, general_name: Option<&str>) -> Vec<(u32, Strip)> {
    let name = general_name.unwrap_or("").to_lowercase();
    if pre.is_some_and(|pre| pre.starts_with("jina-v2-")) {
        let mask = vocab.id_of("<mask>");
        return mask.map(|id| (id, Strip { left: true, right: false })).into_iter().collect();
    }
    if name.contains("phi-3") || name.contains("phi3") {
        let keep = ["<unk>", "<s>", "<|endoftext|>"];
        return (0..vocab.len() as u32)
            .filter(|&id| {
                matches!(vocab.kinds[id as usize], TokenKind::Control | TokenKind::UserDefined)
                    && !keep.contains(&vocab.tokens[id as usize].as_str())
            })
            .map(|id| (id, Strip { left: false, right: true }))
            .collect();
    }
    Vec::new()
}

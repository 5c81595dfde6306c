//! Tokenizers in GGUF files. The strings that name a family and a pre-tokenizer are resolved here.

use crate::data::{
    BertOptions, Bpe, Decoder, Form, Matching, MergeRule, Model, Normalizer, PairTokens, Pattern,
    PreTokenizer, Spaces, SpecialIds, Spelling, TextStart, TokenKind, TokenizerData, WordMarks,
};
use crate::error::TokenizerError;
use crate::pretokenizer::{self, NamedPreTokenizer};
use crate::vocab::ESCAPED_SPACE;

/// The tokenizer families, by their `tokenizer.ggml.model` names.
pub const MODEL_NAMES: &[&str] = &["bert", "gemma4", "gpt2", "llama", "t5"];

/// Pre-tokenizers of the `gpt2` family that are character-level BPE like `gemma4`.
const CHARACTER_PRE_TOKENIZERS: &[&str] = &["gemma4", "granite-embed-multi-311m", "sarvam-moe"];

/// Longer words are the unknown token of BERT.
const LONGEST_WORD: usize = 100;

/// The keys under `tokenizer.ggml.` of a GGUF file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Vocabulary {
    /// Tokenizer family: one of [`MODEL_NAMES`].
    pub model: String,
    /// Name of the pre-tokenizer of byte-level BPE.
    pub pre: Option<String>,
    /// Text of each token; the position is the id.
    pub tokens: Vec<String>,
    /// Kind of each token, or empty: all normal.
    pub kinds: Vec<TokenKind>,
    /// Score of each token (merge priority, or log-probability), or empty: all zero.
    pub scores: Vec<f32>,
    /// Merges in order of priority, each two token texts separated by a space.
    pub merges: Vec<String>,
    /// Ids of the special tokens.
    pub ids: SpecialIds,
    /// Add the BOS token before every text; absent: the family's default.
    pub add_bos: Option<bool>,
    /// Add the EOS token after every text; absent: the family's default.
    pub add_eos: Option<bool>,
    /// Add the separator after every text; absent: the family's default.
    pub add_sep: Option<bool>,
    /// Add a space before the text; absent: the family's default.
    pub add_space_prefix: Option<bool>,
    /// Collapse runs of spaces and trim the ends; absent: no.
    pub remove_extra_whitespaces: Option<bool>,
    /// Put the escaped space after words instead of before them; absent: no.
    pub treat_whitespace_as_suffix: Option<bool>,
    /// SentencePiece's compiled normaliser, or empty: none.
    pub precompiled_charsmap: Vec<u8>,
    /// Lower-case the text first (WordPiece); absent: yes.
    pub lowercase: Option<bool>,
    /// Drop accents first (WordPiece); absent: as `lowercase`.
    pub strip_accents: Option<bool>,
    /// The model's name (`general.name`). No other field identifies the models whose special tokens strip the white
    /// space after them.
    pub general_name: Option<String>,
}

/// The tokenizer families.
#[derive(Clone, Copy)]
enum Family {
    ByteLevel(NamedPreTokenizer),
    Characters {
        /// Some files of this family say that no BOS token is added, but the model needs it.
        always_bos: bool,
    },
    SentencePiece,
    WordPiece,
    Unigram,
}

impl Vocabulary {
    /// Resolves the names and the defaults of the family.
    pub fn into_data(mut self) -> Result<TokenizerData, TokenizerError> {
        let family = self.family()?;
        if let Family::SentencePiece | Family::Unigram = family
            && self.scores.is_empty()
        {
            return Err(TokenizerError::Missing { model: self.model, list: "scores" });
        }
        self.fill_defaults(family);
        let (prefix, suffix) = self.added_tokens(family)?;
        let matching = self.matching();
        let space_prefix = self.add_space_prefix;
        let spaces = Spaces {
            add_prefix: space_prefix.unwrap_or(false),
            remove_extra: self.remove_extra_whitespaces.unwrap_or(false),
            as_suffix: self.treat_whitespace_as_suffix.unwrap_or(false),
        };
        let space_prefix = space_prefix.unwrap_or(true);
        let strip = |strips: bool| if strips { TextStart::Spaces(1) } else { TextStart::Keep };
        let start = match family {
            Family::ByteLevel(_) | Family::Characters { .. } => TextStart::Keep,
            Family::SentencePiece => strip(space_prefix),
            Family::WordPiece => strip(true),
            Family::Unigram => strip(spaces.add_prefix || spaces.remove_extra),
        };
        let spelling = match family {
            Family::ByteLevel(_) => Spelling::ByteLevel,
            _ => Spelling::Text(vec![(ESCAPED_SPACE.into(), " ".into())]),
        };
        let escape =
            Normalizer::Replace { pattern: Pattern::Literal(" ".into()), with: ESCAPED_SPACE.into() };
        let normalizers = match family {
            Family::ByteLevel(pre) if pre.nfc => vec![Normalizer::Unicode(Form::Nfc)],
            Family::ByteLevel(_) => Vec::new(),
            Family::Characters { .. } => vec![escape],
            Family::SentencePiece if space_prefix => vec![Normalizer::Prepend(ESCAPED_SPACE.into()), escape],
            Family::SentencePiece => vec![escape],
            Family::WordPiece => {
                let lowercase = self.lowercase.unwrap_or(true);
                let strip_accents = self.strip_accents.unwrap_or(lowercase);
                let bert = BertOptions { clean: true, ideographs: true, strip_accents, lowercase };
                vec![Normalizer::Bert(bert)]
            }
            Family::Unigram => {
                let charsmap = std::mem::take(&mut self.precompiled_charsmap);
                vec![Normalizer::SentencePiece { charsmap, spaces }]
            }
        };
        let pre_tokenizers = match family {
            Family::ByteLevel(pre) => pre.scanners().map(PreTokenizer::isolated).collect(),
            Family::WordPiece => PreTokenizer::bert(),
            _ => Vec::new(),
        };
        let unknown = self.ids.unk;
        let model = match family {
            Family::ByteLevel(pre) => Model::ByteLevelBpe(Bpe {
                merges: self.merges()?,
                ignore_merges: pre.ignore_merges,
                ..Bpe::default()
            }),
            Family::Characters { .. } => Model::CharacterBpe(Bpe {
                merges: self.merges()?,
                ignore_merges: false,
                fuse_unknown: true,
                unknown,
            }),
            Family::SentencePiece => Model::SentencePieceBpe,
            Family::WordPiece => Model::WordPiece { words: WordMarks::Beginning, longest_word: LONGEST_WORD },
            // A vocabulary without all byte tokens has no byte fallback.
            Family::Unigram => {
                Model::Unigram { byte_fallback: true, double_precision: false, pieces: usize::MAX }
            }
        };
        let pair = pair(family, &self.ids, &prefix, &suffix);
        Ok(TokenizerData {
            pair,
            tokens: self.tokens,
            kinds: self.kinds,
            scores: self.scores.into_iter().map(f64::from).collect(),
            model,
            normalizers,
            pre_tokenizers,
            decoder: Decoder { spelling, start },
            matching,
            ids: self.ids,
            ends: Vec::new(),
            prefix,
            suffix,
        })
    }

    fn family(&self) -> Result<Family, TokenizerError> {
        let pre = self.pre.as_deref().filter(|pre| !pre.is_empty());
        Ok(match self.model.as_str() {
            "gpt2" if pre.is_some_and(|pre| CHARACTER_PRE_TOKENIZERS.contains(&pre)) => {
                Family::Characters { always_bos: false }
            }
            "gpt2" => Family::ByteLevel(pretokenizer::named(pre.unwrap_or("default"))?),
            "gemma4" => Family::Characters { always_bos: true },
            "llama" => Family::SentencePiece,
            "bert" => Family::WordPiece,
            "t5" => Family::Unigram,
            name => {
                return Err(TokenizerError::UnknownModel {
                    name: name.into(),
                    known: MODEL_NAMES.join(", "),
                });
            }
        })
    }

    fn merges(&mut self) -> Result<Vec<MergeRule>, TokenizerError> {
        if self.merges.is_empty() {
            return Err(TokenizerError::Missing { model: self.model.clone(), list: "merges" });
        }
        let parse =
            |(index, rule)| MergeRule::parse(rule).map_err(|rule| TokenizerError::MergeForm { index, rule });
        std::mem::take(&mut self.merges).into_iter().enumerate().map(parse).collect()
    }

    /// Fills in the special ids that old files omit because they are constant in the family.
    fn fill_defaults(&mut self, family: Family) {
        let (kinds, count) = (&self.kinds, self.tokens.len());
        let fill = |slot: &mut Option<u32>, id: u32| {
            // Only if the token is a special token, as far as the file has token types.
            let fits = match kinds.get(id as usize) {
                Some(kind) => matches!(kind, TokenKind::Control | TokenKind::Unknown),
                None => kinds.is_empty() && (id as usize) < count,
            };
            if slot.is_none() && fits {
                *slot = Some(id);
            }
        };
        let ids = &mut self.ids;
        match family {
            Family::SentencePiece => {
                fill(&mut ids.unk, 0);
                fill(&mut ids.bos, 1);
                fill(&mut ids.eos, 2);
            }
            Family::WordPiece => {
                fill(&mut ids.pad, 0);
                fill(&mut ids.unk, 100);
                if ids.bos.is_none() {
                    fill(&mut ids.cls, 101);
                }
                fill(&mut ids.sep, 102);
                fill(&mut ids.mask, 103);
            }
            Family::Unigram => {
                fill(&mut ids.pad, 0);
                fill(&mut ids.eos, 1);
                fill(&mut ids.unk, 2);
            }
            Family::ByteLevel(_) | Family::Characters { .. } => {}
        }
    }

    /// The tokens added before and after a text. The file's flag overrides the family's default.
    fn added_tokens(&self, family: Family) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
        let add_bos = match family {
            Family::WordPiece | Family::SentencePiece => self.add_bos.unwrap_or(true),
            Family::Characters { always_bos } => always_bos || self.add_bos.unwrap_or(false),
            Family::ByteLevel(pre) => self.add_bos.unwrap_or(pre.add_bos),
            Family::Unigram => self.add_bos.unwrap_or(false),
        };
        let need = |flag, name, add: bool, id: Option<u32>| match id {
            None if add => Err(TokenizerError::NoId { flag, name }),
            id => Ok(id.filter(|_| add).into_iter().collect()),
        };
        let ids = &self.ids;
        if let Family::WordPiece = family {
            let prefix = need("add_bos", "cls", add_bos, ids.cls.or(ids.bos))?;
            return Ok((prefix, need("add_sep", "separator", self.add_sep.unwrap_or(true), ids.sep)?));
        }
        let add_eos = self.add_eos.unwrap_or(matches!(family, Family::Unigram));
        Ok((need("add_bos", "bos", add_bos, ids.bos)?, need("add_eos", "eos", add_eos, ids.eos)?))
    }

    /// Special tokens that strip white space next to them. Files do not contain this property, so it is listed here.
    fn matching(&self) -> Vec<(u32, Matching)> {
        let name = self.general_name.as_deref().unwrap_or("").to_lowercase();
        if self.pre.as_deref().is_some_and(|pre| pre.starts_with("jina-v2-")) {
            let mask = self.tokens.iter().position(|token| token == "<mask>");
            let strip_left = Matching { strip_left: true, ..Matching::default() };
            return mask.map(|id| (id as u32, strip_left)).into_iter().collect();
        }
        if name.contains("phi-3") || name.contains("phi3") {
            let keep = ["<unk>", "<s>", "<|endoftext|>"];
            let strip_right = Matching { strip_right: true, ..Matching::default() };
            return (0_u32..)
                .zip(self.tokens.iter().zip(&self.kinds))
                .filter(|(_, (token, kind))| {
                    matches!(kind, TokenKind::Control | TokenKind::UserDefined)
                        && !keep.contains(&token.as_str())
                })
                .map(|(id, _)| (id, strip_right))
                .collect();
        }
        Vec::new()
    }
}

/// The tokens of a pair of texts: those of BERT, and of RoBERTa with SentencePiece's vocabularies.
fn pair(family: Family, ids: &SpecialIds, prefix: &[u32], suffix: &[u32]) -> Option<PairTokens> {
    let (between, types) = match family {
        Family::WordPiece => (suffix.to_vec(), [0, 1]),
        Family::Unigram => {
            let separator: Vec<u32> = ids.sep.or(ids.eos).into_iter().collect();
            ([suffix, &separator].concat(), [0, 0])
        }
        _ => return None,
    };
    Some(PairTokens { prefix: prefix.to_vec(), between, suffix: suffix.to_vec(), types })
}

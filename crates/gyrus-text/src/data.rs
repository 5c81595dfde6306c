//! A tokenizer as plain data.

use crate::pretokenizer::Scanner;

/// The type of a token. The order of the variants is that of GGUF's `token_type`, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TokenKind {
    /// A piece of text.
    #[default]
    Normal,
    /// Stands for text that the vocabulary cannot encode.
    Unknown,
    /// Controls the model and is not text, such as BOS, EOS and end-of-turn tokens.
    Control,
    /// Text that is always one token; it is matched before pre-tokenization.
    UserDefined,
    /// An unused id.
    Unused,
    /// One raw byte, written `<0xHH>`.
    Byte,
}

impl TokenKind {
    /// The kind of a GGUF `token_type`; 0 (undefined) and others have none.
    pub fn from_gguf(number: i32) -> Option<Self> {
        Some(match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// Ids of the special tokens; `None` if the file does not define one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "each field is the role it names")]
pub struct SpecialIds {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    pub unk: Option<u32>,
    pub sep: Option<u32>,
    pub pad: Option<u32>,
    pub mask: Option<u32>,
    pub cls: Option<u32>,
    /// Fill in the middle: the text before the gap.
    pub fim_prefix: Option<u32>,
    /// Fill in the middle: the text after the gap.
    pub fim_suffix: Option<u32>,
    /// Fill in the middle: the gap.
    pub fim_middle: Option<u32>,
    pub fim_pad: Option<u32>,
    /// Repository name.
    pub fim_repo: Option<u32>,
    /// File separator.
    pub fim_separator: Option<u32>,
}

impl SpecialIds {
    /// Every id with its name, for checks and listings.
    pub fn named(&self) -> [(&'static str, Option<u32>); 15] {
        [
            ("bos", self.bos),
            ("eos", self.eos),
            ("eot", self.eot),
            ("eom", self.eom),
            ("unknown", self.unk),
            ("separator", self.sep),
            ("padding", self.pad),
            ("mask", self.mask),
            ("cls", self.cls),
            ("fim_prefix", self.fim_prefix),
            ("fim_suffix", self.fim_suffix),
            ("fim_middle", self.fim_middle),
            ("fim_pad", self.fim_pad),
            ("fim_repo", self.fim_repo),
            ("fim_separator", self.fim_separator),
        ]
    }
}

/// A tokenizer as plain data, not validated: [`gguf::Vocabulary`](crate::gguf::Vocabulary) and
/// [`hugging_face::read`](crate::hugging_face::read) fill it, [`Tokenizer::new`](crate::Tokenizer::new) validates it.
///
/// Text passes the normalisers, then the pre-tokenizers, which split it into pieces, then the model, which encodes each
/// piece.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerData {
    /// Text of each token; the position is the id. An empty text is an unused id.
    pub tokens: Vec<String>,
    /// Kind of each token, or empty: all normal.
    pub kinds: Vec<TokenKind>,
    /// Score of each token (merge priority, or log-probability), or empty: all zero.
    pub scores: Vec<f64>,
    /// The algorithm that encodes a piece.
    pub model: Model,
    /// Applied to the text between special tokens, in order.
    pub normalizers: Vec<Normalizer>,
    /// Applied to normalised text, in order.
    pub pre_tokenizers: Vec<PreTokenizer>,
    /// How tokens become text again.
    pub decoder: Decoder,
    /// How special tokens are matched, for those with other than the default options.
    pub matching: Vec<(u32, Matching)>,
    /// Ids of the special tokens.
    pub ids: SpecialIds,
    /// Tokens that end a generation, besides the end tokens that `ids` names.
    pub ends: Vec<u32>,
    /// Tokens added before every text.
    pub prefix: Vec<u32>,
    /// Tokens added after every text.
    pub suffix: Vec<u32>,
    /// Tokens added to a pair of texts, if there are pairs.
    pub pair: Option<PairTokens>,
}

/// The tokens that are added to a pair of texts: a query and a document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PairTokens {
    /// Tokens before the first text.
    pub prefix: Vec<u32>,
    /// Tokens between them.
    pub between: Vec<u32>,
    /// Tokens after the second.
    pub suffix: Vec<u32>,
    /// The types of the first text, with what is before and after it, and of the second.
    pub types: [u32; 2],
}

/// The algorithm that encodes a piece of text.
#[derive(Debug, Clone, PartialEq)]
pub enum Model {
    /// BPE over bytes; token texts are written in GPT-2's byte alphabet.
    ByteLevelBpe(Bpe),
    /// BPE over characters.
    CharacterBpe(Bpe),
    /// SentencePiece BPE: merges by the scores of the pieces, with byte fallback.
    SentencePieceBpe,
    /// The segmentation with the highest sum of scores.
    Unigram {
        /// Unknown characters become byte tokens.
        byte_fallback: bool,
        /// Add scores as `f64` (Hugging Face) instead of `f32` (SentencePiece): the result differs in near ties.
        double_precision: bool,
        /// Text is segmented into tokens with lower ids than this. User-defined tokens among them have their own scores
        /// if the sum is an `f64`, else they beat any other segmentation.
        pieces: usize,
    },
    /// The longest matching pieces from the left.
    WordPiece {
        /// How the vocabulary tells the first piece of a word from the others.
        words: WordMarks,
        /// Longer words, in characters, are encoded as the unknown token.
        longest_word: usize,
    },
}

/// The merges and options of BPE.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bpe {
    /// The merges in order of priority.
    pub merges: Vec<MergeRule>,
    /// A piece that is a token is encoded as that token, without merges.
    pub ignore_merges: bool,
    /// One unknown token stands for a run of unknown characters.
    pub fuse_unknown: bool,
    /// The unknown token; without one, unknown characters are dropped.
    pub unknown: Option<u32>,
}

/// Two tokens that merge into one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeRule {
    joined: String,
    left: usize,
}

impl MergeRule {
    /// A merge of two token texts.
    pub fn new(left: &str, right: &str) -> Self {
        Self { joined: [left, right].concat(), left: left.len() }
    }

    /// A merge written as two token texts separated by a space. The first one may itself start with a space, but
    /// neither is empty. A text of another form is returned.
    pub fn parse(mut rule: String) -> Result<Self, String> {
        let space = rule.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
        match space.filter(|at| at + 1 < rule.len()) {
            Some(left) => {
                rule.remove(left);
                Ok(Self { joined: rule, left })
            }
            None => Err(rule),
        }
    }

    /// The text of the token that the two become.
    pub fn joined(&self) -> &str {
        &self.joined
    }

    /// The texts of the two tokens.
    pub fn parts(&self) -> (&str, &str) {
        self.joined.split_at(self.left)
    }
}

/// How a WordPiece vocabulary is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WordMarks {
    /// The first piece of a word starts with U+2581, as in GGUF files.
    Beginning,
    /// The other pieces start with this text, `##` in BERT.
    Continuation(String),
}

/// A change to text before it is split.
#[derive(Debug, Clone, PartialEq)]
pub enum Normalizer {
    /// A Unicode normalization form.
    Unicode(Form),
    /// Lower-case every character.
    Lowercase,
    /// Drop combining marks.
    StripAccents,
    /// Trim white space.
    Strip {
        /// At the start.
        left: bool,
        /// At the end.
        right: bool,
    },
    /// Replace all matches.
    Replace {
        /// What to replace.
        pattern: Pattern,
        /// The replacement.
        with: String,
    },
    /// Add text at the start and after special tokens.
    Prepend(String),
    /// The rules of SentencePiece's `nmt`: drop control characters, replace separators by spaces.
    Nmt,
    /// SentencePiece's compiled rules as Hugging Face applies them: to grapheme clusters, then to characters.
    Charsmap(Vec<u8>),
    /// SentencePiece's own normaliser: compiled rules, then rules for spaces.
    SentencePiece {
        /// The compiled rules, or empty: none.
        charsmap: Vec<u8>,
        /// The rules for spaces, which become U+2581.
        spaces: Spaces,
    },
    /// BERT's cleaning.
    Bert(BertOptions),
    /// Write the text's bytes in GPT-2's byte alphabet.
    ByteAlphabet,
}

/// A Unicode normalization form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the standard")]
pub enum Form {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

/// What BERT's normaliser does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BertOptions {
    /// Drop control characters and make all white space spaces.
    pub clean: bool,
    /// Put spaces around Chinese characters.
    pub ideographs: bool,
    /// Decompose the text and drop accents.
    pub strip_accents: bool,
    /// Lower-case the text.
    pub lowercase: bool,
}

/// White-space rules of SentencePiece's normaliser.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spaces {
    /// Add a space before the text (or after it, with `as_suffix`).
    pub add_prefix: bool,
    /// Collapse runs of spaces and trim the ends.
    pub remove_extra: bool,
    /// Put the escaped space after words instead of before them.
    pub as_suffix: bool,
}

/// A step of pre-tokenization.
#[derive(Debug, Clone, PartialEq)]
pub enum PreTokenizer {
    /// Split at the matches of a pattern.
    Split {
        /// The pattern.
        pattern: Pattern,
        /// What becomes of the matches.
        behavior: Behavior,
        /// Swap matches and the text between them.
        invert: bool,
    },
    /// Add a space at the start and after special tokens, unless one is there.
    PrefixSpace,
    /// Replace spaces by a character, and split before it.
    Metaspace {
        /// The character, U+2581 in most models.
        replacement: char,
        /// Where to add the character in front of the text, unless it is there.
        prepend: Prepend,
        /// Split the text.
        split: bool,
    },
    /// Write the bytes in GPT-2's byte alphabet.
    ByteAlphabet,
}

/// Where a prefix is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepend {
    /// Nowhere.
    Never,
    /// At the start of the text.
    First,
    /// At the start of the text and after special tokens.
    Always,
}

/// What becomes of the matches of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behavior {
    /// They are dropped.
    Removed,
    /// Each is a piece.
    Isolated,
    /// Each ends the piece before it.
    MergedWithPrevious,
    /// Each starts the piece after it.
    MergedWithNext,
    /// A run of matches is a piece.
    Contiguous,
}

/// What to look for in a text.
#[derive(Debug, Clone, PartialEq)]
pub enum Pattern {
    /// A hand-written scanner.
    Scanner(Scanner),
    /// A text.
    Literal(String),
    /// A regular expression in Oniguruma's syntax.
    Regex(String),
    /// One character of white space.
    Whitespace,
    /// One character of ASCII punctuation or of a Unicode punctuation category.
    Punctuation,
    /// One character of a Unicode number category.
    Number,
}

/// How tokens become text.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoder {
    /// How token texts are written.
    pub spelling: Spelling,
    /// What is removed at the start of the text.
    pub start: TextStart,
}

/// How token texts are written. Byte tokens are bytes in all of them.
#[derive(Debug, Clone, PartialEq)]
pub enum Spelling {
    /// In GPT-2's byte alphabet.
    ByteLevel,
    /// As text after these replacements, U+2581 by a space in most models.
    Text(Vec<(String, String)>),
    /// With a space before each token that does not start with the prefix of continuations, which is removed.
    Words {
        /// The prefix of continuations, or empty: a space before each token.
        continuation: String,
        /// Remove the space before punctuation and English contractions.
        cleanup: bool,
    },
}

/// What is removed at the start of decoded text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextStart {
    /// Nothing.
    Keep,
    /// Up to this many spaces, also after special tokens.
    Spaces(usize),
    /// Every U+2581 of the first token.
    Markers,
    /// The first token is shown as it is written.
    Verbatim,
}

/// How a special token is matched in text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Matching {
    /// White space before it belongs to it.
    pub strip_left: bool,
    /// White space after it belongs to it.
    pub strip_right: bool,
    /// It is not matched next to a letter, digit, mark or underscore.
    pub single_word: bool,
    /// It is matched in normalised text. Control tokens are always matched in the text itself.
    pub normalized: bool,
}

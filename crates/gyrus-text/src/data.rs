//! A vocabulary as plain data, as in a model file.

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

/// The tokenizer's data in a model file, not validated. In GGUF these are the keys under `tokenizer.ggml.`;
/// [`Tokenizer::new`](crate::Tokenizer::new) validates them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenizerData {
    /// Tokenizer family: `gpt2`, `llama`, `bert`, `t5`, `gemma4`.
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

//! A vocabulary as plain data: what a model file says about its tokens.

/// What a token is for, numbered in GGUF as the variants stand here, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TokenKind {
    /// A piece of text.
    #[default]
    Normal,
    /// Stands for text the vocabulary cannot write.
    Unknown,
    /// Steers the model and is not text: begin, end, turn markers.
    Control,
    /// Text that is always one token, found before any other rule is applied.
    UserDefined,
    /// A row without a use.
    Unused,
    /// One raw byte, written `<0xHH>`.
    Byte,
}

impl TokenKind {
    /// The kind that GGUF's `token_type` number stands for; 0 (undefined) and others have none.
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

/// Ids of tokens with a role, each absent where the file does not name it.
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
    /// Fill in the middle: text before the gap.
    pub fim_prefix: Option<u32>,
    /// Fill in the middle: text behind the gap.
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
    /// Every role with its name, for checks and listings.
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

/// Everything a model file says about its tokenizer, unchecked. In GGUF these are the keys under
/// `tokenizer.ggml.`; [`Tokenizer::new`](crate::Tokenizer::new) checks it all.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenizerData {
    /// Tokenizer family: `gpt2`, `llama`, `bert`, `t5`, `gemma4`.
    pub model: String,
    /// Name of the rule that splits text before byte-level merges are applied.
    pub pre: Option<String>,
    /// Text of each token; the position is the id.
    pub tokens: Vec<String>,
    /// Kind of each token, or empty: all normal.
    pub kinds: Vec<TokenKind>,
    /// Score of each token (merge priority, or log-probability), or empty: all zero.
    pub scores: Vec<f32>,
    /// Merge rules in order of priority, each two token texts with a space between.
    pub merges: Vec<String>,
    /// Tokens with a role.
    pub ids: SpecialIds,
    /// Put the begin token in front of every text; absent: as the family does.
    pub add_bos: Option<bool>,
    /// Put the end token behind every text; absent: as the family does.
    pub add_eos: Option<bool>,
    /// Put the separator behind every text; absent: as the family does.
    pub add_sep: Option<bool>,
    /// Treat text as if a space stood in front of it; absent: as the family does.
    pub add_space_prefix: Option<bool>,
    /// Collapse runs of spaces and trim the ends; absent: no.
    pub remove_extra_whitespaces: Option<bool>,
    /// Put the escaped space behind words instead of in front of them; absent: no.
    pub treat_whitespace_as_suffix: Option<bool>,
    /// SentencePiece's compiled normaliser, or empty: none.
    pub precompiled_charsmap: Vec<u8>,
    /// Lower-case the text first (WordPiece); absent: yes.
    pub lowercase: Option<bool>,
    /// Drop accents first (WordPiece); absent: as `lowercase`.
    pub strip_accents: Option<bool>,
    /// The model's own name (`general.name`): no other field tells the family whose special tokens
    /// swallow the white space behind them.
    pub general_name: Option<String>,
}

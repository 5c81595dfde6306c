//! Errors in a vocabulary.

use thiserror::Error;

/// Why a [`TokenizerData`](crate::TokenizerData) is invalid.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The tokenizer family is not supported.
    #[error("unknown tokenizer model {name:?}; known: {known}")]
    UnknownModel {
        /// The name in the file.
        name: String,
        /// The supported names.
        known: String,
    },
    /// The pre-tokenizer is not supported. A guess could encode to wrong ids without notice.
    #[error("unknown pre-tokenizer {name:?}; known: {known}")]
    UnknownPre {
        /// The name in the file.
        name: String,
        /// The supported names.
        known: String,
    },
    /// The vocabulary is empty or has too many tokens for 32-bit ids.
    #[error("a vocabulary of {count} tokens is not usable (1 to {max})")]
    TokenCount {
        /// Tokens in the data.
        count: usize,
        /// The largest count accepted.
        max: usize,
    },
    /// A list has another length than the list of tokens.
    #[error("{list} has {len} entries for {tokens} tokens")]
    Length {
        /// The list.
        list: &'static str,
        /// Its length.
        len: usize,
        /// The number of tokens.
        tokens: usize,
    },
    /// A list that the tokenizer family needs is empty.
    #[error("tokenizer model {model:?} needs {list}, which the data lacks")]
    Missing {
        /// The tokenizer family.
        model: String,
        /// The list.
        list: &'static str,
    },
    /// A special token id is outside the vocabulary.
    #[error("{name} token id {id} is outside the vocabulary of {tokens} tokens")]
    IdRange {
        /// The special token, such as `bos`.
        name: &'static str,
        /// Its id.
        id: u32,
        /// The number of tokens.
        tokens: usize,
    },
    /// A token is to be added to every text, but the file does not define it.
    #[error("{flag} is set but there is no {name} token")]
    NoId {
        /// The flag that enables it.
        flag: &'static str,
        /// The special token.
        name: &'static str,
    },
    /// Two ids have the same text, so the encoding would be ambiguous.
    #[error("token {text:?} has two ids, {first} and {second}")]
    DuplicateToken {
        /// The text.
        text: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// A merge is not two tokens separated by a space.
    #[error("merge {index} ({rule:?}) is not two tokens separated by a space")]
    MergeForm {
        /// The index in the list of merges.
        index: usize,
        /// The merge.
        rule: String,
    },
    /// A merge contains or produces a token that the vocabulary does not have.
    #[error("merge {index} ({rule:?}) needs token {token:?}, which the vocabulary lacks")]
    MergeToken {
        /// The index in the list of merges.
        index: usize,
        /// The merge.
        rule: String,
        /// The missing token.
        token: String,
    },
    /// A token of kind byte is not written as `<0xHH>`.
    #[error("byte token {id} is {text:?}, not of the form <0xHH>")]
    ByteToken {
        /// The id.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A score is NaN or infinite, so pieces cannot be ordered by it.
    #[error("the score of token {id} is {score}, it must be finite")]
    Score {
        /// The id.
        id: u32,
        /// Its score.
        score: f64,
    },
    /// The precompiled character map of a SentencePiece normaliser is malformed.
    #[error("precompiled character map of {len} bytes: {what}")]
    Charsmap {
        /// Size of the map.
        len: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The search automaton for the special tokens could not be built.
    #[error("the search automaton for the special tokens could not be built: {what}")]
    SpecialSearch {
        /// The automaton's error.
        what: String,
    },
    /// A pattern of a normaliser or a pre-tokenizer is invalid.
    #[error("the pattern {pattern:?} is not usable: {what}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        what: String,
    },
    /// A part of a tokenizer.json is missing, malformed or not supported.
    #[error("{file}: {path}: {what}")]
    Json {
        /// The file.
        file: &'static str,
        /// Where in the file, such as `pre_tokenizer.pretokenizers[1].type`.
        path: String,
        /// What is wrong there.
        what: String,
    },
}

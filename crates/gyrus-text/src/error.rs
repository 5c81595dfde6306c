//! What can be wrong with a vocabulary.

use thiserror::Error;

/// Why a [`TokenizerData`](crate::TokenizerData) is not a usable vocabulary.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The tokenizer family is not one this crate implements.
    #[error("unknown tokenizer model {name:?}; known: {known}")]
    UnknownModel {
        /// The name as the file has it.
        name: String,
        /// The names that would be understood.
        known: String,
    },
    /// The splitting rule is not one this crate knows; guessing would give wrong ids in silence.
    #[error("unknown pre-tokenizer {name:?}; known: {known}")]
    UnknownPre {
        /// The name as the file has it.
        name: String,
        /// The names that would be understood.
        known: String,
    },
    /// There is no token at all, or more than ids can count.
    #[error("a vocabulary of {count} tokens is not usable (1 to {max})")]
    TokenCount {
        /// Tokens in the data.
        count: usize,
        /// The largest count accepted.
        max: usize,
    },
    /// A list that runs parallel to the tokens has another length.
    #[error("{list} has {len} entries for {tokens} tokens")]
    Length {
        /// Which list.
        list: &'static str,
        /// Its length.
        len: usize,
        /// The number of tokens.
        tokens: usize,
    },
    /// A list the tokenizer family cannot do without is empty.
    #[error("tokenizer model {model:?} needs {list}, which the data lacks")]
    Missing {
        /// The tokenizer family.
        model: String,
        /// Which list.
        list: &'static str,
    },
    /// A named token id lies outside the vocabulary.
    #[error("{name} token id {id} is outside the vocabulary of {tokens} tokens")]
    IdRange {
        /// The role of the token, as in `bos`.
        name: &'static str,
        /// The id given.
        id: u32,
        /// The number of tokens.
        tokens: usize,
    },
    /// A token shall be added to every text but is not named.
    #[error("{flag} is set but there is no {name} token")]
    NoId {
        /// The flag that asks for the token.
        flag: &'static str,
        /// The role of the token.
        name: &'static str,
    },
    /// Two ids have the same text, so text does not decide the id.
    #[error("token {text:?} stands at both id {first} and id {second}")]
    DuplicateToken {
        /// The text.
        text: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// A merge rule is not two tokens with one space between.
    #[error("merge {index} ({rule:?}) is not two tokens separated by a space")]
    MergeForm {
        /// Position in the list of merges.
        index: usize,
        /// The rule.
        rule: String,
    },
    /// A merge rule names or makes a token that the vocabulary does not have.
    #[error("merge {index} ({rule:?}) needs token {token:?}, which the vocabulary lacks")]
    MergeToken {
        /// Position in the list of merges.
        index: usize,
        /// The rule.
        rule: String,
        /// The token that is absent.
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
    /// A score is not a finite number, so pieces cannot be ordered by it.
    #[error("score of token {id} is {score}")]
    Score {
        /// The id.
        id: u32,
        /// Its score.
        score: f32,
    },
    /// The compiled character map of a SentencePiece normaliser is damaged.
    #[error("precompiled character map of {len} bytes: {what}")]
    Charsmap {
        /// Size of the map.
        len: usize,
        /// What is wrong with it.
        what: String,
    },
    /// Something else failed while the special tokens were compiled for search.
    #[error("special tokens cannot be searched for: {what}")]
    SpecialSearch {
        /// The reason given by the search automaton's builder.
        what: String,
    },
}

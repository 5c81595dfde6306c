//! Tokenizers and chat templates.
//!
//! [`Tokenizer`] is built from plain data ([`TokenizerData`]), which comes from the metadata of a GGUF file ([`gguf`]) or
//! from a `tokenizer.json` ([`hugging_face`]). It encodes text to the same token ids as the model's reference
//! tokenizer. [`Detokenizer`] decodes a stream of ids and never splits a
//! character.
//!
//! [`template`] renders a conversation to a prompt with the model's chat template.
//!
//! The crate knows nothing of files, tensors or devices: the caller reads the model file and fills in the data.
//!
//! ```
//! use gyrus_text::gguf::Vocabulary;
//! use gyrus_text::{Special, TokenKind, Tokenizer};
//!
//! let pieces = ["<unk>", "▁", "a", "b", "ab", "▁ab"];
//! let mut data = Vocabulary { model: "llama".into(), ..Vocabulary::default() };
//! data.tokens = pieces.map(String::from).to_vec();
//! data.kinds = vec![TokenKind::Normal; pieces.len()];
//! data.kinds[0] = TokenKind::Unknown;
//! data.scores = vec![0.0, -4.0, -5.0, -6.0, -2.0, -1.0];
//! data.ids.unk = Some(0);
//! data.add_bos = Some(false);
//!
//! let tokenizer = Tokenizer::new(data.into_data()?)?;
//! assert_eq!(tokenizer.encode("ab ab", Special::Literal, false), [5, 5]);
//! assert_eq!(tokenizer.decode(&[5, 5], false), "ab ab");
//! # Ok::<(), gyrus_text::TokenizerError>(())
//! ```

#![forbid(unsafe_code)]

mod bpe;
mod byte_level;
mod charsmap;
mod data;
mod detokenizer;
mod end_tokens;
mod error;
pub mod gguf;
pub mod hugging_face;
mod matcher;
mod merge;
mod normalizer;
mod pretokenizer;
mod special;
mod spm;
mod table;
pub mod template;
mod tokenizer;
mod unicode;
mod unigram;
mod vocab;
mod wordpiece;

pub use data::{
    Behavior, BertOptions, Bpe, Decoder, Form, Matching, MergeRule, Model, Normalizer, PairTokens, Pattern,
    PreTokenizer, Prepend, Spaces, SpecialIds, Spelling, TextStart, TokenKind, TokenizerData, WordMarks,
};
pub use detokenizer::Detokenizer;
pub use error::TokenizerError;
pub use pretokenizer::{Scanner, pre_names, pretokenize};
pub use tokenizer::{Part, Special, Tokenizer};

//! The vocabulary of a GGUF file, to be written into another.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use gyrus_formats::gguf::{Gguf, Number, Value, ValueType, Writer};

/// The most tokens: as many as explicit dimensions may have.
const MOST_TOKENS: usize = 1 << 20;

/// A vocabulary: all keys about the tokenizer, and the chat template with them.
#[derive(Debug)]
pub(super) struct Vocabulary {
    file: Gguf,
    tokens: usize,
}

impl Vocabulary {
    /// Opens a file that has a vocabulary, with or without weights.
    pub(super) fn read(path: &Path) -> Result<Vocabulary> {
        let file = Gguf::open(path)?;
        let tokens = match file.metadata().value("tokenizer.ggml.tokens") {
            Some(Value::Array(tokens)) if tokens.kind() == ValueType::Str => Some(tokens.len()),
            _ => None,
        };
        let tokens = tokens.context("the file has no vocabulary (tokenizer.ggml.tokens)")?;
        ensure!((1..=MOST_TOKENS).contains(&tokens), "{tokens} tokens: 1 to {MOST_TOKENS} are allowed");
        Ok(Vocabulary { file, tokens })
    }

    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Copies its keys.
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        for (key, value) in self.file.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
            match value {
                Value::Number(Number::Unsigned(n)) => drop(writer.u64(key, n)),
                Value::Number(Number::Signed(n)) => drop(writer.raw(key, ValueType::I64, &n.to_le_bytes())),
                Value::Number(Number::Float(n)) => drop(writer.raw(key, ValueType::F64, &n.to_le_bytes())),
                Value::Number(Number::Bool(flag)) => drop(writer.bool(key, flag)),
                Value::Str(text) => {
                    let length = (text.len() as u64).to_le_bytes();
                    writer.raw(key, ValueType::Str, &[&length, text].concat());
                }
                Value::Array(array) => {
                    let head =
                        [&(array.kind() as u32).to_le_bytes()[..], &(array.len() as u64).to_le_bytes()]
                            .concat();
                    writer.raw(key, ValueType::Array, &[&head, array.bytes()].concat());
                }
            }
        }
    }
}

use std::collections::BTreeMap;

use gyrus_formats::Checkpoint;

use super::pooling::Pooling;
use super::{gguf_settings, sentence_transformers};
use crate::Error;

/// What a model's files say of its embeddings.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Settings {
    /// How rows become a vector, if the files say so.
    pub(super) pooling: Option<Pooling>,
    /// Whether vectors are scaled to length 1.
    pub(super) normalize: bool,
    /// Whether the tokens of a prompt are part of a mean.
    pub(super) include_prompt: bool,
    /// Prompts by name.
    pub(super) prompts: BTreeMap<String, String>,
    /// The prompt of texts without another one.
    pub(super) default_prompt: Option<String>,
    /// The most tokens of a text, if the files limit it.
    pub(super) max_tokens: Option<usize>,
}

impl Settings {
    pub(super) fn read(model: &Checkpoint) -> Result<Settings, Error> {
        match model.gguf() {
            Some(metadata) => gguf_settings::read(metadata),
            None => sentence_transformers::read(model),
        }
    }
}

//! Builds the tokenizer and the chat template of a model: from the metadata of a GGUF file, or from the files beside a
//! SafeTensors model.

use gyrus_formats::Checkpoint;
use gyrus_formats::gguf::{Metadata, MetadataError};
use gyrus_text::gguf::Vocabulary;
use gyrus_text::{SpecialIds, TokenKind, Tokenizer, TokenizerData, hugging_face};

use crate::Error;

/// The tokenizer of a model; `None` if it has no vocabulary.
pub fn read(checkpoint: &Checkpoint) -> Result<Option<Tokenizer>, Error> {
    let data = match checkpoint.gguf() {
        Some(metadata) => from_gguf(metadata)?,
        None => from_hugging_face(checkpoint)?,
    };
    Ok(data.map(Tokenizer::new).transpose()?)
}

/// The chat template of a model, if it has one.
pub fn template_source(checkpoint: &Checkpoint) -> Result<Option<String>, Error> {
    if let Some(metadata) = checkpoint.gguf() {
        return Ok(metadata.get::<&str>("tokenizer.chat_template")?.map(str::to_owned));
    }
    if let Some(template) = checkpoint.beside("chat_template.jinja")? {
        let text = std::str::from_utf8(&template)
            .map_err(|error| Error::Setting(format!("chat_template.jinja: not UTF-8: {error}")))?;
        return Ok(Some(text.to_owned()));
    }
    match checkpoint.beside("tokenizer_config.json")? {
        Some(config) => Ok(hugging_face::chat_template(&config)?),
        None => Ok(None),
    }
}

fn from_gguf(metadata: Metadata<'_>) -> Result<Option<TokenizerData>, Error> {
    // Converters mark a file without a vocabulary in one of these ways.
    if let None | Some("none" | "no_vocab") = metadata.get::<&str>("tokenizer.ggml.model")? {
        return Ok(None);
    }
    Ok(Some(vocabulary(metadata)?.into_data()?))
}

fn from_hugging_face(checkpoint: &Checkpoint) -> Result<Option<TokenizerData>, Error> {
    let Some(tokenizer) = checkpoint.beside("tokenizer.json")? else { return Ok(None) };
    let config = checkpoint.beside("tokenizer_config.json")?;
    let map = checkpoint.beside("special_tokens_map.json")?;
    let mut data = hugging_face::read(&hugging_face::Files {
        tokenizer: &tokenizer,
        config: config.as_deref(),
        special_tokens_map: map.as_deref(),
    })?;
    let count = data.tokens.len();
    let ids = &mut data.ids;
    // Multimodal models may name them in the language model's part.
    let nested = checkpoint.config().and_then(|config| config.get("text_config"));
    for config in [checkpoint.generation_config(), checkpoint.config(), nested].into_iter().flatten() {
        ids.bos = ids.bos.or(token_ids(config, "bos_token_id", count).next());
        // A model with several end tokens names them all here.
        ids.eos = ids.eos.or(token_ids(config, "eos_token_id", count).next());
        data.ends.extend(token_ids(config, "eos_token_id", count));
    }
    Ok(Some(data))
}

/// The token ids of a field, which has one or a list; those outside the vocabulary are left out.
fn token_ids(config: &serde_json::Value, key: &str, count: usize) -> impl Iterator<Item = u32> {
    let value = config.get(key);
    let list = value.and_then(|value| value.as_array()).map_or(&[][..], Vec::as_slice);
    let ids = value.into_iter().chain(list).filter_map(|id| u32::try_from(id.as_u64()?).ok());
    ids.filter(move |&id| (id as usize) < count)
}

fn vocabulary(metadata: Metadata<'_>) -> Result<Vocabulary, MetadataError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let strings = |name: &str| -> Result<Vec<String>, MetadataError> {
        let all: Option<Vec<&str>> = metadata.get(&key(name))?;
        Ok(all.unwrap_or_default().into_iter().map(str::to_owned).collect())
    };
    let id = |name: &str| metadata.get::<u32>(&key(name));
    let flag = |name: &str| metadata.get::<bool>(&key(name));
    let kinds: Vec<i32> = metadata.get(&key("token_type"))?.unwrap_or_default();
    Ok(Vocabulary {
        model: metadata.require::<&str>(&key("model"))?.to_owned(),
        pre: metadata.get::<&str>(&key("pre"))?.map(str::to_owned),
        tokens: strings("tokens")?,
        // An unknown kind is a normal token, which is also the default without kinds.
        kinds: kinds.into_iter().map(|k| TokenKind::from_gguf(k).unwrap_or_default()).collect(),
        scores: metadata.get(&key("scores"))?.unwrap_or_default(),
        merges: strings("merges")?,
        ids: SpecialIds {
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            eot: id("eot_token_id")?,
            eom: id("eom_token_id")?,
            unk: id("unknown_token_id")?,
            sep: id("seperator_token_id")?.or(id("separator_token_id")?),
            pad: id("padding_token_id")?,
            mask: id("mask_token_id")?,
            cls: id("cls_token_id")?,
            fim_prefix: id("fim_pre_token_id")?.or(id("prefix_token_id")?),
            fim_suffix: id("fim_suf_token_id")?.or(id("suffix_token_id")?),
            fim_middle: id("fim_mid_token_id")?.or(id("middle_token_id")?),
            fim_pad: id("fim_pad_token_id")?,
            fim_repo: id("fim_rep_token_id")?,
            fim_separator: id("fim_sep_token_id")?,
        },
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_sep: flag("add_sep_token")?,
        add_space_prefix: flag("add_space_prefix")?,
        remove_extra_whitespaces: flag("remove_extra_whitespaces")?,
        treat_whitespace_as_suffix: flag("treat_whitespace_as_suffix")?,
        precompiled_charsmap: metadata.get(&key("precompiled_charsmap"))?.unwrap_or_default(),
        lowercase: None,
        strip_accents: None,
        general_name: metadata.get::<&str>("general.name")?.map(str::to_owned),
    })
}

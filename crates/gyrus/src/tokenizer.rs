//! Builds the tokenizer and the chat template from the metadata of a GGUF file.

use gyrus_formats::gguf::{Metadata, MetadataError};
use gyrus_text::gguf::Vocabulary;
use gyrus_text::{SpecialIds, TokenKind, Tokenizer};

use crate::Error;

/// The tokenizer of a GGUF file; `None` if the file has no vocabulary.
pub fn from_gguf(metadata: Metadata<'_>) -> Result<Option<Tokenizer>, Error> {
    // Converters mark a file without a vocabulary in one of these ways.
    if let None | Some("none" | "no_vocab") = metadata.get::<&str>("tokenizer.ggml.model")? {
        return Ok(None);
    }
    Ok(Some(Tokenizer::new(vocabulary(metadata)?.into_data()?)?))
}

/// The chat template of a GGUF file, if it has one.
pub fn template_source<'a>(metadata: Metadata<'a>) -> Result<Option<&'a str>, Error> {
    Ok(metadata.get("tokenizer.chat_template")?)
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

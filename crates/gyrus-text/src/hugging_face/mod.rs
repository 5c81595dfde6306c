//! Tokenizers in the `tokenizer.json` of Hugging Face, with the `tokenizer_config.json` beside it.
//!
//! Each part of the file becomes plain data of the same meaning. A part that is not supported is an error that names it
//! and its place. Settings for padding and truncation are ignored.

mod config;
mod decoder;
mod model;
mod node;
mod normalizer;
mod post_processor;
mod pre_tokenizer;

pub use config::chat_template;

use serde::Deserialize;
use serde_json::Value;

use crate::data::{Matching, Model, Normalizer, PreTokenizer, TokenKind, TokenizerData};
use crate::error::TokenizerError;
use crate::vocab::byte_of;
use model::{ModelJson, ModelParts};
use node::Node;

const FILE: &str = "tokenizer.json";

/// The most steps in a list of normalisers or pre-tokenizers.
const MAX_STEPS: usize = 64;

/// The contents of a tokenizer's files.
#[derive(Debug, Clone, Copy, Default)]
pub struct Files<'a> {
    /// `tokenizer.json`
    pub tokenizer: &'a [u8],
    /// `tokenizer_config.json`, which names the special tokens.
    pub config: Option<&'a [u8]>,
    /// `special_tokens_map.json`, which names those that the configuration does not.
    pub special_tokens_map: Option<&'a [u8]>,
}

#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: ModelJson,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u64,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

/// Reads a tokenizer.
pub fn read(files: &Files<'_>) -> Result<TokenizerData, TokenizerError> {
    let json: TokenizerJson = parse(FILE, files.tokenizer)?;
    let mut normalizers = Vec::new();
    normalizer::read(&Node::new(FILE, "normalizer", &json.normalizer), &mut normalizers)?;
    let mut pre_tokenizers = Vec::new();
    pre_tokenizer::read(&Node::new(FILE, "pre_tokenizer", &json.pre_tokenizer), &mut pre_tokenizers)?;
    for (path, count) in [("normalizer", normalizers.len()), ("pre_tokenizer", pre_tokenizers.len())] {
        if count > MAX_STEPS {
            return Err(problem(path, format!("{count} steps; at most {MAX_STEPS} are supported")));
        }
    }
    let ModelParts { mut tokens, mut scores, mut model, unknown, byte_fallback } = json.model.read()?;
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    if byte_fallback {
        for (kind, _) in kinds.iter_mut().zip(&tokens).filter(|(_, text)| byte_of(text).is_some()) {
            *kind = TokenKind::Byte;
        }
    }
    let matching = add_tokens(&json.added_tokens, unknown.as_deref(), &mut tokens, &mut kinds)?;
    if !scores.is_empty() {
        scores.resize(tokens.len(), 0.0);
    }
    let id_of = |text: &str| tokens.iter().position(|token| token == text).map(|id| id as u32);
    let unknown = match &unknown {
        Some(text) => Some(id_of(text).ok_or_else(|| {
            problem("model.unk_token", format!("the unknown token {text:?} is not in the vocabulary"))
        })?),
        None => None,
    };
    if let Model::ByteLevelBpe(bpe) | Model::CharacterBpe(bpe) = &mut model {
        bpe.unknown = unknown;
    }
    let model = by_bytes(model, &normalizers, &mut pre_tokenizers);
    let post_processor = Node::new(FILE, "post_processor", &json.post_processor);
    let (prefix, suffix) = post_processor::read(&post_processor, &id_of)?;
    let pair = post_processor::read_pair(&post_processor, &id_of)?;
    let decoder = decoder::read(&Node::new(FILE, "decoder", &json.decoder))?;
    let mut data = TokenizerData {
        tokens,
        kinds,
        scores,
        model,
        normalizers,
        pre_tokenizers,
        decoder,
        matching,
        ids: Default::default(),
        ends: Vec::new(),
        prefix,
        suffix,
        pair,
    };
    data.ids.unk = unknown;
    config::apply(files, &mut data)?;
    Ok(data)
}

/// BPE over the byte alphabet is BPE over bytes if nothing looks at the alphabet in between. The latter is faster.
fn by_bytes(model: Model, normalizers: &[Normalizer], pre_tokenizers: &mut Vec<PreTokenizer>) -> Model {
    let alphabets = pre_tokenizers.iter().filter(|step| **step == PreTokenizer::ByteAlphabet).count();
    match model {
        Model::CharacterBpe(bpe)
            if alphabets == 1
                && pre_tokenizers.last() == Some(&PreTokenizer::ByteAlphabet)
                && !normalizers.contains(&Normalizer::ByteAlphabet) =>
        {
            pre_tokenizers.pop();
            Model::ByteLevelBpe(bpe)
        }
        model => model,
    }
}

/// Puts the added tokens into the vocabulary. Returns how they are matched.
fn add_tokens(
    added: &[AddedToken],
    unknown: Option<&str>,
    tokens: &mut Vec<String>,
    kinds: &mut Vec<TokenKind>,
) -> Result<Vec<(u32, Matching)>, TokenizerError> {
    let mut matching = Vec::new();
    let most = model::most_ids(tokens.len() + added.len());
    for (index, token) in added.iter().enumerate() {
        let AddedToken { id, ref content, single_word, lstrip, rstrip, normalized, special } = *token;
        let fail = |what: String| problem(&format!("added_tokens[{index}]"), what);
        let slot = usize::try_from(id).ok().filter(|&id| id < most);
        let slot =
            slot.ok_or_else(|| fail(format!("token {content:?} has id {id}; ids must be below {most}")))?;
        if content.is_empty() {
            return Err(fail(format!("the token with id {id} is empty")));
        }
        if tokens.len() <= slot {
            tokens.resize(slot + 1, String::new());
            kinds.resize(slot + 1, TokenKind::Unused);
        }
        if !tokens[slot].is_empty() && tokens[slot] != *content {
            return Err(fail(format!("id {id} is {content:?} here and {:?} elsewhere", tokens[slot])));
        }
        tokens[slot].clone_from(content);
        kinds[slot] = match special {
            true if unknown == Some(content) => TokenKind::Unknown,
            true => TokenKind::Control,
            false => TokenKind::UserDefined,
        };
        let options = Matching { strip_left: lstrip, strip_right: rstrip, single_word, normalized };
        if options != Matching::default() {
            matching.push((slot as u32, options));
        }
    }
    for (kind, text) in kinds.iter_mut().zip(tokens.iter()) {
        if text.is_empty() {
            *kind = TokenKind::Unused;
        }
    }
    Ok(matching)
}

fn parse<'a, T: Deserialize<'a>>(file: &'static str, bytes: &'a [u8]) -> Result<T, TokenizerError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let what = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        TokenizerError::Json {
            file,
            path: format!("line {}, column {}", error.line(), error.column()),
            what: what.strip_suffix(&place).unwrap_or(&what).to_owned(),
        }
    })
}

fn problem(path: &str, what: String) -> TokenizerError {
    TokenizerError::Json { file: FILE, path: path.to_owned(), what }
}

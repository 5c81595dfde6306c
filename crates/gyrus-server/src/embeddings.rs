//! Embeddings and rerank: what all wire formats have in common.

use axum::response::Response;
use gyrus::{EmbedOptions, EmbedPrompt, Embeddings, Ranked, RerankOptions};
use serde_json::Value;

use crate::failure::{Failure, Kind, json_bytes};
use crate::fields::Fields;
use crate::keep_alive::KeepAlive;
use crate::models::{Lease, Served};
use crate::routes::Call;
use crate::work::{Progress, run};

/// The most texts of a request.
pub(crate) const MOST_TEXTS: usize = 4096;

/// Texts, or their tokens.
#[derive(Debug)]
pub(crate) enum Inputs {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

impl Inputs {
    /// Takes a field: a text, a list of texts, a list of token ids, or a list of such lists.
    pub(crate) fn take(fields: &mut Fields, name: &str) -> Result<Inputs, Failure> {
        let wrong =
            |fields: &Fields| fields.wrong(name, "it must be a string, token ids, or a list of either");
        let list = match fields.require(name)? {
            Value::String(text) => return Ok(Inputs::Texts(vec![text])),
            Value::Array(list) => list,
            _ => return Err(wrong(fields)),
        };
        if list.len() > MOST_TEXTS && !list[0].is_u64() {
            let message = format!("it has {} entries, at most {MOST_TEXTS} are allowed", list.len());
            return Err(fields.wrong(name, message));
        }
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = |values: &[Value]| values.iter().map(id).collect::<Option<Vec<u32>>>();
        let inputs = match list.first() {
            None => return Err(fields.wrong(name, "it is empty")),
            Some(Value::String(_)) => {
                let texts = list.into_iter().map(|text| match text {
                    Value::String(text) => Some(text),
                    _ => None,
                });
                texts.collect::<Option<Vec<String>>>().map(Inputs::Texts)
            }
            Some(Value::Number(_)) => ids(&list).map(|ids| Inputs::Tokens(vec![ids])),
            Some(Value::Array(_)) => {
                let all = list.iter().map(|one| one.as_array().and_then(|one| ids(one)));
                all.collect::<Option<Vec<_>>>().map(Inputs::Tokens)
            }
            Some(_) => None,
        };
        inputs.ok_or_else(|| wrong(fields))
    }
}

/// Computes the vectors of a request, and responds with the JSON that `write` makes of them and the model's name. Both run on
/// a thread for CPU work: large answers take time to write.
pub(crate) async fn embed(
    call: &Call,
    model: &str,
    inputs: Inputs,
    options: EmbedOptions,
    keep_alive: Option<KeepAlive>,
    write: impl FnOnce(&str, &Embeddings) -> Vec<u8> + Send + 'static,
) -> Result<Response, Failure> {
    if matches!(inputs, Inputs::Tokens(_)) {
        let of_texts =
            [("prompt_name", options.prompt != EmbedPrompt::Default), ("truncate", options.truncate)];
        if let Some((name, _)) = of_texts.iter().find(|(_, is_set)| *is_set) {
            let failure = Failure::field(*name, "it changes texts, and the input has token ids");
            return Err(failure.with_code("unsupported_parameter"));
        }
    }
    let work = move |lease: &Lease, progress: &Progress| {
        let Served::Embedder(embedder) = lease.served() else { return Err(wrong_kind(lease, "embeddings")) };
        let goes_on = |tokens: usize| progress.read(tokens);
        let found = match &inputs {
            Inputs::Texts(texts) => embedder.embed_while(texts, &options, &goes_on)?,
            Inputs::Tokens(tokens) => embedder.embed_ids_while(tokens, &options, &goes_on)?,
        };
        Ok(write(lease.name(), &found))
    };
    run(call, model, keep_alive, work).await.map(json_bytes)
}

/// Ranks the documents of a request, the most relevant first, and responds with the JSON that `write` makes of them, the
/// documents and the model's name.
pub(crate) async fn rank(
    call: &Call,
    model: &str,
    query: String,
    documents: Vec<String>,
    options: RerankOptions,
    write: impl FnOnce(&str, &[Ranked], &[String]) -> Vec<u8> + Send + 'static,
) -> Result<Response, Failure> {
    let work = move |lease: &Lease, progress: &Progress| {
        let Served::Reranker(reranker) = lease.served() else { return Err(wrong_kind(lease, "ranks")) };
        let ranked = reranker.rank_while(&query, &documents, &options, &|tokens| progress.read(tokens))?;
        Ok(write(lease.name(), &ranked, &documents))
    };
    run(call, model, None, work).await.map(json_bytes)
}

pub(crate) fn wrong_kind(lease: &Lease, wanted: &str) -> Failure {
    let (name, served) = (lease.name(), lease.served());
    let message = format!("{name} {}, no {wanted}: see {}", served.does(), served.routes());
    Failure { param: Some("model".to_owned()), ..Failure::new(Kind::Invalid, message) }
        .with_code("unsupported_model")
}

/// Little-endian f32 as base64.
pub(crate) fn base64(values: &[f32]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut word = [0u8; 3];
        word[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, word[0], word[1], word[2]]);
        for place in 0..4 {
            let digit = (bits >> (18 - 6 * place)) as usize & 63;
            text.push(if place <= chunk.len() { ALPHABET[digit] as char } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_is_that_of_the_standard() {
        let of = |bytes: [u8; 4]| base64(&[f32::from_le_bytes(bytes)]);
        assert_eq!(of(*b"Manu"), "TWFudQ==");
        assert_eq!(base64(&[f32::from_le_bytes(*b"ManM"), f32::from_le_bytes(*b"anMa")]), "TWFuTWFuTWE=");
        assert_eq!(base64(&[1.0, 2.0, 3.0]), "AACAPwAAAEAAAEBA");
        assert_eq!(base64(&[]), "");
    }
}

//! Embeddings and rerank: what all wire formats have in common.

use std::sync::Arc;

use gyrus::{EmbedOptions, Embeddings, Ranked, RerankOptions};
use serde_json::Value;

use crate::failure::{Failure, Kind};
use crate::fields::Fields;
use crate::keep_alive::KeepAlive;
use crate::models::{Lease, Served};
use crate::routes::Call;

/// The most texts of a request.
pub(crate) const MOST_TEXTS: usize = 4096;

/// Texts, or their tokens.
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

/// Computes the vectors of a request on a thread for CPU work. Returns the model's name, too.
pub(crate) async fn embed(
    call: &Call,
    model: &str,
    inputs: Inputs,
    options: EmbedOptions,
    keep_alive: Option<KeepAlive>,
) -> Result<(String, Embeddings), Failure> {
    run(call, model, keep_alive, move |lease| {
        let Served::Embedder(embedder) = lease.served() else { return Err(wrong_kind(lease, "embeddings")) };
        let found = match &inputs {
            Inputs::Texts(texts) => embedder.embed(texts, &options)?,
            Inputs::Tokens(tokens) => embedder.embed_ids(tokens, &options)?,
        };
        Ok((lease.name().to_owned(), found))
    })
    .await
}

/// Ranks the documents of a request on a thread for CPU work: the most relevant first. Returns the model's name, too.
pub(crate) async fn rank(
    call: &Call,
    model: &str,
    query: String,
    documents: Arc<Vec<String>>,
    options: RerankOptions,
) -> Result<(String, Vec<Ranked>), Failure> {
    run(call, model, None, move |lease| {
        let Served::Reranker(reranker) = lease.served() else { return Err(wrong_kind(lease, "ranks")) };
        Ok((lease.name().to_owned(), reranker.rank(&query, &documents, &options)?))
    })
    .await
}

/// Takes a model into use, and works with it on a thread for CPU work. The request has a place in the queue meanwhile.
pub(crate) async fn run<T: Send + 'static>(
    call: &Call,
    model: &str,
    keep_alive: Option<KeepAlive>,
    work: impl FnOnce(&Lease) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (state, caller) = (&call.state, &call.caller);
    let listed = state.find(caller, model).await?;
    let ticket = state.gate.enter(1).ok_or_else(|| state.full())?;
    let slot = caller.key.as_ref().map(|key| key.enter()).transpose()?;
    let lease = state.models.lease_any(&listed).await?.keep_alive(keep_alive);
    let work = move || {
        let _places = (ticket, slot);
        work(&lease)
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Failure::server(format!("the work did not end: {error}")))?
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

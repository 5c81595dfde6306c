//! `/api/embed`, and `/api/embeddings` of older clients.

use std::time::Instant;

use axum::response::Response;
use gyrus::{EmbedOptions, EmbedPrompt};
use serde::Serialize;

use crate::embeddings::{self, Inputs, MOST_TEXTS};
use crate::failure::{Failure, to_json};
use crate::fields::Fields;
use crate::keep_alive::KeepAlive;
use crate::routes::Call;

/// Vectors of a text or a list of texts. Texts that are too long are shortened unless the client forbids it.
pub(crate) async fn embed(call: Call) -> Result<Response, Failure> {
    let started = Instant::now();
    let mut fields = Fields::parse(&call.body)?;
    let model = fields.string("model")?.ok_or_else(|| fields.wrong("model", "it is missing"))?;
    let texts = fields.strings("input", MOST_TEXTS)?.filter(|texts| !texts.is_empty());
    let texts = texts.ok_or_else(|| fields.wrong("input", "it is missing"))?;
    let options = EmbedOptions {
        dimensions: fields.count("dimensions")?,
        truncate: fields.boolean("truncate")?.unwrap_or(true),
        prompt: EmbedPrompt::Default,
        normalize: None,
    };
    let keep_alive = keep_alive(&mut fields)?;
    fields.ignore(&["options"]);
    fields.finish()?;
    let inputs = Inputs::Texts(texts);
    embeddings::embed(&call, &model, inputs, options, keep_alive, move |model, found| {
        to_json(&Vectors {
            model,
            embeddings: found.vectors().collect(),
            total_duration: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            load_duration: 0,
            prompt_eval_count: found.tokens,
        })
    })
    .await
}

/// The answer. It borrows the vectors: as values of JSON they would take many times their memory.
#[derive(Serialize)]
struct Vectors<'a> {
    model: &'a str,
    embeddings: Vec<&'a [f32]>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

#[derive(Serialize)]
struct OneVector<'a> {
    embedding: &'a [f32],
}

/// The vector of one text.
pub(crate) async fn embeddings(call: Call) -> Result<Response, Failure> {
    let mut fields = Fields::parse(&call.body)?;
    let model = fields.string("model")?.ok_or_else(|| fields.wrong("model", "it is missing"))?;
    let text = fields.string("prompt")?.ok_or_else(|| fields.wrong("prompt", "it is missing"))?;
    let keep_alive = keep_alive(&mut fields)?;
    fields.ignore(&["options"]);
    fields.finish()?;
    let options = EmbedOptions { truncate: true, ..EmbedOptions::default() };
    let inputs = Inputs::Texts(vec![text]);
    embeddings::embed(&call, &model, inputs, options, keep_alive, |_, found| {
        to_json(&OneVector { embedding: &found.values })
    })
    .await
}

fn keep_alive(fields: &mut Fields) -> Result<Option<KeepAlive>, Failure> {
    let Some(value) = fields.take("keep_alive") else { return Ok(None) };
    KeepAlive::from_json(&value).map(Some).map_err(|why| fields.wrong("keep_alive", why))
}

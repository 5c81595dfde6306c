//! The routes of text-embeddings-inference.

use axum::response::Response;
use gyrus::{EmbedOptions, EmbedPrompt, Ranked, RerankOptions};
use serde_json::{Value, json};

use crate::embeddings::{self, Inputs, MOST_TEXTS};
use crate::failure::{Failure, to_json};
use crate::fields::Fields;
use crate::routes::Call;

/// The request of vectors of a body: the model, the texts and what is wanted of them.
pub(crate) fn parse(body: &[u8]) -> Result<(String, Inputs, EmbedOptions), Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let inputs = Inputs::take(&mut fields, "inputs")?;
    check_direction(&mut fields)?;
    let prompt = fields.string("prompt_name")?;
    let options = EmbedOptions {
        dimensions: fields.count("dimensions")?,
        truncate: fields.boolean("truncate")?.unwrap_or(false),
        prompt: prompt.map_or(EmbedPrompt::Default, EmbedPrompt::Named),
        normalize: Some(fields.boolean("normalize")?.unwrap_or(true)),
    };
    fields.finish()?;
    Ok((model, inputs, options))
}

/// `/embed`: vectors of texts. Clients name no model, so that the default one is used.
pub(crate) async fn embed(call: Call) -> Result<Response, Failure> {
    let (model, inputs, options) = parse(&call.body)?;
    embeddings::embed(&call, &model, inputs, options, None, |_, found| {
        to_json(&found.vectors().collect::<Vec<&[f32]>>())
    })
    .await
}

/// A request of ranks.
#[derive(Debug)]
pub(crate) struct WantedRanks {
    model: String,
    query: String,
    texts: Vec<String>,
    raw: bool,
    with_text: bool,
    options: RerankOptions,
}

/// The request of ranks of a body.
pub(crate) fn parse_ranks(body: &[u8]) -> Result<WantedRanks, Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let query = fields.string("query")?.ok_or_else(|| fields.wrong("query", "it is missing"))?;
    let texts = fields.strings("texts", MOST_TEXTS)?;
    let texts = texts.filter(|texts| !texts.is_empty());
    let texts = texts.ok_or_else(|| fields.wrong("texts", "it is missing"))?;
    check_direction(&mut fields)?;
    let raw = fields.boolean("raw_scores")?.unwrap_or(false);
    let with_text = fields.boolean("return_text")?.unwrap_or(false);
    let options = RerankOptions { truncate: fields.boolean("truncate")?.unwrap_or(false), instruction: None };
    fields.finish()?;
    Ok(WantedRanks { model, query, texts, raw, with_text, options })
}

/// `/rerank`: texts in the order of their relevance.
pub(crate) async fn rerank(call: Call) -> Result<Response, Failure> {
    let WantedRanks { model, query, texts, raw, with_text, options } = parse_ranks(&call.body)?;
    embeddings::rank(&call, &model, query, texts, options, move |_, ranked, texts| {
        let result = |one: &Ranked| {
            let score = if raw { one.logit } else { one.score };
            let mut result = json!({ "index": one.index, "score": score });
            if with_text {
                result["text"] = texts[one.index].as_str().into();
            }
            result
        };
        to_json(&ranked.iter().map(result).collect::<Vec<Value>>())
    })
    .await
}

/// Texts are shortened at their end.
fn check_direction(fields: &mut Fields) -> Result<(), Failure> {
    match fields.string("truncation_direction")? {
        Some(direction) if !direction.eq_ignore_ascii_case("right") => {
            Err(fields.wrong("truncation_direction", "it must be Right"))
        }
        _ => Ok(()),
    }
}

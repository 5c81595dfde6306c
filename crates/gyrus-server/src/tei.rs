//! The routes of text-embeddings-inference.

use std::sync::Arc;

use axum::response::Response;
use gyrus::{EmbedOptions, EmbedPrompt, RerankOptions};
use serde_json::{Value, json};

use crate::embeddings::{self, Inputs, MOST_TEXTS};
use crate::failure::{Failure, json_response};
use crate::fields::Fields;
use crate::routes::Call;

/// `/embed`: vectors of texts. It names no model, so that the default one is used.
pub(crate) async fn embed(call: Call) -> Result<Response, Failure> {
    let mut fields = Fields::parse(&call.body)?;
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
    let (_, found) = embeddings::embed(&call, &model, inputs, options, None).await?;
    let vectors: Vec<&[f32]> = found.vectors().collect();
    Ok(json_response(&vectors))
}

/// `/rerank`: texts in the order of their relevance.
pub(crate) async fn rerank(call: Call) -> Result<Response, Failure> {
    let mut fields = Fields::parse(&call.body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let query = fields.string("query")?.ok_or_else(|| fields.wrong("query", "it is missing"))?;
    let texts = fields.strings("texts", MOST_TEXTS)?;
    let texts = texts.filter(|texts| !texts.is_empty());
    let texts = Arc::new(texts.ok_or_else(|| fields.wrong("texts", "it is missing"))?);
    check_direction(&mut fields)?;
    let raw = fields.boolean("raw_scores")?.unwrap_or(false);
    let with_text = fields.boolean("return_text")?.unwrap_or(false);
    let options = RerankOptions { truncate: fields.boolean("truncate")?.unwrap_or(false), instruction: None };
    fields.finish()?;
    let (_, ranked) = embeddings::rank(&call, &model, query, Arc::clone(&texts), options).await?;
    let results: Vec<Value> = ranked
        .iter()
        .map(|one| {
            let score = if raw { one.logit } else { one.score };
            let mut result = json!({ "index": one.index, "score": score });
            if with_text {
                result["text"] = texts[one.index].as_str().into();
            }
            result
        })
        .collect();
    Ok(json_response(&results))
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

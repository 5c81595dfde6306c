//! `/v1/embeddings`, and `/v1/rerank` as Jina and Cohere have it.

use axum::response::Response;
use gyrus::{EmbedOptions, EmbedPrompt, RerankOptions};
use serde::Serialize;
use serde_json::{Value, json};

use crate::embeddings::{self, Inputs, MOST_TEXTS};
use crate::failure::{Failure, to_json};
use crate::fields::Fields;
use crate::routes::Call;

/// A request of vectors.
#[derive(Debug)]
pub(crate) struct Wanted {
    model: String,
    inputs: Inputs,
    options: EmbedOptions,
    as_base64: bool,
}

/// The request of a body.
pub(crate) fn parse(body: &[u8]) -> Result<Wanted, Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let inputs = Inputs::take(&mut fields, "input")?;
    let as_base64 = match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(fields.wrong("encoding_format", "it must be float or base64")),
    };
    let prompt = fields.string("prompt_name")?;
    let options = EmbedOptions {
        dimensions: fields.count("dimensions")?,
        truncate: fields.boolean("truncate")?.unwrap_or(false),
        prompt: prompt.map_or(EmbedPrompt::Default, EmbedPrompt::Named),
        normalize: None,
    };
    fields.ignore(&["user", "safety_identifier"]);
    fields.finish()?;
    Ok(Wanted { model, inputs, options, as_base64 })
}

/// Vectors of texts or tokens.
pub(crate) async fn create(call: Call) -> Result<Response, Failure> {
    let Wanted { model, inputs, options, as_base64 } = parse(&call.body)?;
    embeddings::embed(&call, &model, inputs, options, None, move |model, found| {
        let vector = |(index, vector): (usize, _)| Vector {
            object: "embedding",
            index,
            embedding: if as_base64 {
                Numbers::Base64(embeddings::base64(vector))
            } else {
                Numbers::Floats(vector)
            },
        };
        let data = found.vectors().enumerate().map(vector).collect();
        let usage = json!({ "prompt_tokens": found.tokens, "total_tokens": found.tokens });
        to_json(&Vectors { object: "list", data, model, usage })
    })
    .await
}

/// The answer with all vectors. It borrows them: as values of JSON they would take many times their memory.
#[derive(Serialize)]
struct Vectors<'a> {
    object: &'static str,
    data: Vec<Vector<'a>>,
    model: &'a str,
    usage: Value,
}

#[derive(Serialize)]
struct Vector<'a> {
    object: &'static str,
    index: usize,
    embedding: Numbers<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Numbers<'a> {
    Floats(&'a [f32]),
    Base64(String),
}

/// A request of ranks.
#[derive(Debug)]
pub(crate) struct WantedRanks {
    model: String,
    query: String,
    documents: Vec<String>,
    top: Option<usize>,
    with_documents: bool,
    options: RerankOptions,
}

/// The request of ranks of a body.
pub(crate) fn parse_ranks(body: &[u8]) -> Result<WantedRanks, Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let query = fields.string("query")?.ok_or_else(|| fields.wrong("query", "it is missing"))?;
    let documents = documents(&mut fields)?;
    let top = fields.count("top_n")?;
    let with_documents = fields.boolean("return_documents")?.unwrap_or(false);
    let options = RerankOptions {
        truncate: fields.boolean("truncate")?.unwrap_or(false),
        instruction: fields.string("instruction")?,
    };
    fields.ignore(&["user"]);
    fields.finish()?;
    Ok(WantedRanks { model, query, documents, top, with_documents, options })
}

/// Documents in the order of their relevance.
pub(crate) async fn rerank(call: Call) -> Result<Response, Failure> {
    let WantedRanks { model, query, documents, top, with_documents, options } = parse_ranks(&call.body)?;
    embeddings::rank(&call, &model, query, documents, options, move |model, ranked, documents| {
        let results: Vec<Value> = ranked
            .iter()
            .take(top.unwrap_or(usize::MAX))
            .map(|one| {
                let mut result = json!({ "index": one.index, "relevance_score": one.score });
                if with_documents {
                    result["document"] = json!({ "text": documents[one.index] });
                }
                result
            })
            .collect();
        to_json(&json!({ "object": "list", "model": model, "results": results }))
    })
    .await
}

/// Texts, or objects with a text.
fn documents(fields: &mut Fields) -> Result<Vec<String>, Failure> {
    let list = fields.list("documents")?.ok_or_else(|| fields.wrong("documents", "it is missing"))?;
    if list.is_empty() || list.len() > MOST_TEXTS {
        return Err(
            fields.wrong("documents", format!("from 1 to {MOST_TEXTS} are allowed, not {}", list.len()))
        );
    }
    let text = |value: &Value| {
        let text = value.as_str().or_else(|| value.get("text").and_then(Value::as_str));
        text.map(str::to_owned)
            .ok_or_else(|| fields.wrong("documents", "each must be a string, or have a text"))
    };
    list.iter().map(text).collect()
}

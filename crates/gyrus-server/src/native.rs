//! Routes of this server's own: tokens, models, metrics.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use gyrus::text::Special;
use serde_json::json;

use crate::failure::{Failure, json_response};
use crate::fields::Fields;
use crate::routes::Call;

/// `/v1/tokenize`.
pub(crate) async fn tokenize(call: Call) -> Result<Response, Failure> {
    let mut fields = Fields::parse(&call.body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let text = fields.string("text")?.ok_or_else(|| Failure::field("text", "it is missing"))?;
    let special = fields.boolean("special")?.unwrap_or(false);
    fields.finish()?;
    let tokens = encode(&call, &model, text, special, special).await?;
    Ok(json_response(&json!({ "count": tokens.len(), "tokens": tokens })))
}

/// Encodes text on a thread for CPU work.
pub(crate) async fn encode(
    call: &Call,
    model: &str,
    text: String,
    special: bool,
    add_special: bool,
) -> Result<Vec<u32>, Failure> {
    let listed = call.state.find(&call.caller, model).await?;
    let lease = call.state.lease(&call.caller, &listed).await?;
    let encode = move || -> Result<Vec<u32>, Failure> {
        let tokenizer = lease.model().tokenizer().ok_or(gyrus::Error::NoTokenizer)?;
        let special = if special { Special::Parse } else { Special::Literal };
        Ok(tokenizer.encode(&text, special, add_special))
    };
    let encoded = tokio::task::spawn_blocking(encode).await;
    encoded.map_err(|error| Failure::server(format!("the text could not be encoded: {error}")))?
}

/// `/v1/models/load`.
pub(crate) async fn load(call: Call) -> Result<Response, Failure> {
    call.state.check_managed()?;
    let mut fields = Fields::parse(&call.body)?;
    let name = fields.string("model")?.ok_or_else(|| Failure::field("model", "it is missing"))?;
    fields.finish()?;
    let listed = call.state.find(&call.caller, &name).await?;
    let deadline = call.state.deadline(&call.caller, None);
    let lease = call.state.within(deadline, call.state.models.lease_any(&listed)).await?;
    let tokens = lease.served().tokens();
    Ok(json_response(&json!({ "id": lease.name(), "status": "ready", "context": tokens })))
}

/// `/v1/models/unload`.
pub(crate) async fn unload(call: Call) -> Result<Response, Failure> {
    call.state.check_managed()?;
    let mut fields = Fields::parse(&call.body)?;
    let name = fields.string("model")?.ok_or_else(|| Failure::field("model", "it is missing"))?;
    fields.finish()?;
    let listed = call.state.find(&call.caller, &name).await?;
    let before = call.state.models.unload(&listed.name).await;
    Ok(json_response(&json!({ "id": listed.name, "status": "unloaded", "before": before })))
}

/// `/v1/metrics`.
pub(crate) async fn metrics(call: Call) -> Result<Response, Failure> {
    let state = Arc::clone(&call.state);
    let mut metrics = state.metrics.to_json(&state.now(&call.caller), &|model| call.caller.may_use(model));
    metrics["in_flight"] = state.gate.taken().into();
    metrics["parallel"] = state.config.parallel.into();
    metrics["queue"] = state.config.queue.into();
    metrics["version"] = env!("CARGO_PKG_VERSION").into();
    Ok(json_response(&metrics))
}

/// `/metrics`.
pub(crate) async fn prometheus(call: Call) -> Result<Response, Failure> {
    let (state, caller) = (&call.state, &call.caller);
    let now = state.now(caller);
    let text = state.metrics.to_text(&now, state.gate.taken(), &|model| caller.may_use(model));
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

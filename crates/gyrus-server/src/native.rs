//! Routes of this server's own: tokens, models, metrics.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use serde_json::json;

use crate::encoding::encode;
use crate::failure::{Failure, json_response};
use crate::fields::Fields;
use crate::routes::Call;

/// The request of tokens of a body: the model, the text, and whether special tokens are parsed and added.
pub(crate) fn parse_tokenize(body: &[u8]) -> Result<(String, String, bool), Failure> {
    let mut fields = Fields::parse(body)?;
    let model = fields.string("model")?.unwrap_or_default();
    let text = fields.string("text")?.ok_or_else(|| Failure::field("text", "it is missing"))?;
    let special = fields.boolean("special")?.unwrap_or(false);
    fields.finish()?;
    Ok((model, text, special))
}

/// `/v1/tokenize`.
pub(crate) async fn tokenize(call: Call) -> Result<Response, Failure> {
    let (model, text, special) = parse_tokenize(&call.body)?;
    let tokens = encode(&call, &model, text, special, special).await?;
    Ok(json_response(&json!({ "count": tokens.len(), "tokens": tokens })))
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

//! Whether the server lives, and whether it takes requests.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::failure::{Failure, json_response};
use crate::routes::Call;
use crate::state::{Loading, Phase};

/// `/health`, as llama.cpp has it: 200 once requests are taken.
pub(crate) async fn health(call: Call) -> Result<Response, Failure> {
    ready(call).await
}

/// `/health/live`: the process answers.
pub(crate) async fn live(_: Call) -> Result<Response, Failure> {
    Ok(json_response(&json!({ "status": "ok" })))
}

/// `/health/ready`: new requests are taken. They are not while the models of the start are loaded, nor if that has failed, nor
/// once the server drains. Models that are loaded and unloaded later change nothing: requests wait for them.
pub(crate) async fn ready(call: Call) -> Result<Response, Failure> {
    let status = match (call.state.phase(), call.state.preload.worst(&call.state.models)) {
        (Phase::Serving, Loading::Done) => "ok",
        (Phase::Serving, Loading::Pending) => "loading model",
        (Phase::Serving, Loading::Failed) => "the model could not be loaded",
        (Phase::Draining | Phase::Ending, _) => "shutting down",
    };
    let mut response = json_response(&json!({ "status": status }));
    if status != "ok" {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    Ok(response)
}

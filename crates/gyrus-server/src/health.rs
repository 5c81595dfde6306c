//! Whether the server lives, and whether it takes requests.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::failure::{Failure, json_response};
use crate::models::StateName;
use crate::routes::Call;
use crate::state::Phase;

/// `/health`, as llama.cpp has it: 200 once requests are taken.
pub(crate) async fn health(call: Call) -> Result<Response, Failure> {
    ready(call).await
}

/// `/health/live`: the process answers.
pub(crate) async fn live(_: Call) -> Result<Response, Failure> {
    Ok(json_response(&json!({ "status": "ok" })))
}

/// `/health/ready`: new requests are taken. While a model is loaded for the first time they are not.
pub(crate) async fn ready(call: Call) -> Result<Response, Failure> {
    let states: Vec<StateName> = call.state.models.all().iter().map(|entry| entry.name_of_state()).collect();
    let is_loading = states.contains(&StateName::Loading) && !states.contains(&StateName::Ready);
    let status = match call.state.phase() {
        Phase::Serving if is_loading => "loading model",
        Phase::Serving => "ok",
        Phase::Draining | Phase::Ending => "shutting down",
    };
    let mut response = json_response(&json!({ "status": status }));
    if status != "ok" {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    Ok(response)
}

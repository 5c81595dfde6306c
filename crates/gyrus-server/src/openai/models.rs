//! `/v1/models`.

use std::time::UNIX_EPOCH;

use axum::response::Response;
use serde_json::{Value, json};

use crate::failure::{Failure, json_response};
use crate::models::{Listed, StateName};
use crate::routes::Call;
use crate::state::State;

/// Lists the models that can be used without a download.
pub(crate) async fn list(call: Call) -> Result<Response, Failure> {
    let listed = call.state.models.list().await?;
    let allowed =
        |one: &&Listed| one.is_present && call.caller.key.as_ref().is_none_or(|key| key.allows(&one.name));
    let mut data: Vec<Value> =
        listed.iter().filter(allowed).map(|one| describe(&call.state, one, &one.name)).collect();
    for (alias, name) in call.state.models.aliases() {
        if let Some(one) = listed.iter().filter(allowed).find(|one| one.name == *name) {
            data.push(describe(&call.state, one, alias));
        }
    }
    Ok(json_response(&json!({ "object": "list", "data": data })))
}

/// Describes a model.
pub(crate) async fn show(call: Call) -> Result<Response, Failure> {
    let listed = call.state.find(&call.caller, &call.parameter).await?;
    Ok(json_response(&describe(&call.state, &listed, &call.parameter)))
}

fn describe(state: &State, listed: &Listed, id: &str) -> Value {
    let entry = state.models.known(&listed.name);
    let status = entry.as_ref().map_or(StateName::Unloaded, |entry| entry.name_of_state());
    let created = listed.modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let mut value = json!({
        "id": id,
        "object": "model",
        "created": created.map_or(0, |time| time.as_secs()),
        "owned_by": "gyrus",
        "status": status,
        "size": listed.bytes,
        "description": listed.description,
    });
    let loaded = entry.as_ref().and_then(|entry| entry.served());
    if let Some((served, bytes)) = &loaded
        && served.model().is_none()
    {
        value["memory"] = (*bytes).into();
        value["context"] = served.tokens().into();
        value["architecture"] = served.architecture().into();
        value["device"] = served.device().to_string().into();
        value["does"] = served.does().into();
    }
    if let Some((model, bytes)) = entry.and_then(|entry| entry.model()) {
        value["meta"] = json!({ "n_vocab": model.plan().vocab, "n_ctx_train": model.context().model });
        value["memory"] = bytes.into();
        value["context"] = model.context().tokens.into();
        value["architecture"] = model.config().architecture.clone().into();
        value["device"] = model.device().to_string().into();
        value["has_chat_template"] = model.has_chat_template().into();
    }
    value
}

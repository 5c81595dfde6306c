//! `/v1/models`.

use std::time::UNIX_EPOCH;

use axum::response::Response;
use serde_json::{Value, json};

use crate::failure::{Failure, json_response};
use crate::models::{Details, Listed, StateName};
use crate::routes::Call;
use crate::state::State;

/// Lists the models that can be used without a download.
pub(crate) async fn list(call: Call) -> Result<Response, Failure> {
    let listed = call.state.models.list().await?;
    let allowed =
        |one: &&Listed| one.is_present && call.caller.key.as_ref().is_none_or(|key| key.allows(&one.name));
    let listed: Vec<&Listed> = listed.iter().filter(allowed).collect();
    let details = call.state.models.details(listed.iter().map(|one| one.name.clone()).collect()).await?;
    let mut data: Vec<Value> = Vec::new();
    for (one, details) in listed.iter().zip(&details) {
        data.push(describe(&call.state, one, details, &one.name));
    }
    for (alias, name) in call.state.models.aliases() {
        if let Some((one, details)) = listed.iter().zip(&details).find(|(one, _)| one.name == *name) {
            data.push(describe(&call.state, one, details, alias));
        }
    }
    // Whoever sends a file learns here how large it may be: a body that is too long may only see a closed connection.
    Ok(json_response(&json!({ "object": "list", "data": data, "max_body": call.state.config.max_body })))
}

/// Describes a model.
pub(crate) async fn show(call: Call) -> Result<Response, Failure> {
    let listed = call.state.find(&call.caller, &call.parameter).await?;
    let details = call.state.models.details(vec![listed.name.clone()]).await?;
    let details = details.into_iter().next().unwrap_or_default();
    Ok(json_response(&describe(&call.state, &listed, &details, &call.parameter)))
}

fn describe(state: &State, listed: &Listed, details: &Details, id: &str) -> Value {
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
    let purpose = loaded.as_ref().map(|(served, _)| served.purpose()).or(details.purpose);
    if let Some(purpose) = purpose {
        value["does"] = purpose.does().into();
    }
    if let Some((served, bytes)) = &loaded
        && served.model().is_none()
    {
        value["memory"] = (*bytes).into();
        value["context"] = served.tokens().into();
        value["architecture"] = served.architecture().into();
        value["device"] = served.device().to_string().into();
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

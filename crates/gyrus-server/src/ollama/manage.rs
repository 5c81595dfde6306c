//! Models over Ollama's API: lists, descriptions, downloads.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::failure::{Failure, Wire, json_response};
use crate::fields::Fields;
use crate::models::{Listed, Pulled};
use crate::routes::Call;
use crate::stream::json_line;
use crate::time;

/// The version of Ollama's API that is followed. Clients compare it.
const API_VERSION: &str = "0.12.0";

/// `/api/version`.
pub(crate) async fn version(_: Call) -> Result<Response, Failure> {
    Ok(json_response(&json!({ "version": API_VERSION })))
}

/// `/api/tags`.
pub(crate) async fn tags(call: Call) -> Result<Response, Failure> {
    let listed = call.state.models.list().await?;
    let allowed =
        |one: &&Listed| one.is_present && call.caller.key.as_ref().is_none_or(|key| key.allows(&one.name));
    let models: Vec<Value> = listed
        .iter()
        .filter(allowed)
        .map(|one| {
            let mut value = describe(&call, one);
            value["modified_at"] = time::of(one.modified.unwrap_or(UNIX_EPOCH)).into();
            value
        })
        .collect();
    Ok(json_response(&json!({ "models": models })))
}

/// `/api/ps`.
pub(crate) async fn ps(call: Call) -> Result<Response, Failure> {
    let listed = call.state.models.list().await?;
    let mut models = Vec::new();
    for entry in call.state.models.all() {
        let Some((model, bytes)) = entry.model() else { continue };
        let Some(one) = listed.iter().find(|one| one.name == entry.name) else { continue };
        let mut value = describe(&call, one);
        value["size"] = bytes.into();
        value["size_vram"] = match model.device() {
            gyrus::DeviceInfo::Gpu { .. } => bytes.into(),
            _ => 0.into(),
        };
        value["context_length"] = model.context().tokens.into();
        let left = entry.expires().map(|at| at.saturating_duration_since(Instant::now()));
        value["expires_at"] =
            left.map_or("9999-12-31T23:59:59Z".to_owned(), |left| time::of(SystemTime::now() + left)).into();
        models.push(value);
    }
    Ok(json_response(&json!({ "models": models })))
}

/// `/api/show`.
pub(crate) async fn show(call: Call) -> Result<Response, Failure> {
    let mut fields = Fields::parse(&call.body)?;
    let old = fields.string("name")?;
    let name = fields.string("model")?.or(old).ok_or_else(|| fields.wrong("model", "it is missing"))?;
    fields.ignore(&["verbose"]);
    fields.finish()?;
    let listed = call.state.find(&call.caller, &name).await?;
    let described = describe(&call, &listed);
    let mut value = json!({
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": described["details"],
        "model_info": { "general.size": listed.bytes, "general.description": listed.description },
        "capabilities": ["completion", "tools"],
        "modified_at": time::of(listed.modified.unwrap_or(UNIX_EPOCH)),
    });
    let loaded = call.state.models.known(&listed.name).and_then(|entry| entry.model());
    if let Some((model, _)) = loaded {
        let architecture = model.config().architecture.clone();
        value["template"] = model.chat_format().map_or(Value::Null, |format| format.source().into());
        value["model_info"]["general.architecture"] = architecture.clone().into();
        value["model_info"][format!("{architecture}.context_length")] = model.context().model.into();
    }
    Ok(json_response(&value))
}

fn describe(call: &Call, listed: &Listed) -> Value {
    let loaded = call.state.models.known(&listed.name).and_then(|entry| entry.model());
    let family = loaded.map_or(String::new(), |(model, _)| model.config().architecture.clone());
    json!({
        "name": listed.name,
        "model": listed.name,
        "size": listed.bytes,
        "digest": "",
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": family,
            "families": if family.is_empty() { Vec::new() } else { vec![family.clone()] },
            "parameter_size": "",
            "quantization_level": "",
        },
    })
}

/// `/api/embed` and `/api/embeddings`.
pub(crate) async fn embed(_: Call) -> Result<Response, Failure> {
    Err(Failure::field("model", "no model of this server makes embeddings"))
}

/// `/api/pull`: downloads a model of the catalogue, with its progress.
pub(crate) async fn pull(call: Call) -> Result<Response, Failure> {
    call.state.check_managed()?;
    let mut fields = Fields::parse(&call.body)?;
    let old = fields.string("name")?;
    let name = fields.string("model")?.or(old).ok_or_else(|| fields.wrong("model", "it is missing"))?;
    let stream = fields.boolean("stream")?.unwrap_or(true);
    fields.refuse(&["insecure"])?;
    fields.finish()?;
    let listed = call.state.find(&call.caller, &name).await?;
    let (send, lines) = mpsc::channel::<Value>(64);
    let (source, models) = (call.state.models.source(), std::sync::Arc::clone(&call.state.models));
    let task = tokio::task::spawn_blocking(move || {
        let status = |status: &str| json!({ "status": status });
        let _ = send.blocking_send(status("pulling manifest"));
        let layer = format!("pulling {}", listed.name);
        let mut progress = |Pulled { done, total }: Pulled| {
            let mut line = json!({ "status": layer, "digest": listed.name, "completed": done });
            if let Some(total) = total {
                line["total"] = total.into();
            }
            // A client that is slow misses steps; one that has gone ends the download.
            !matches!(send.try_send(line), Err(mpsc::error::TrySendError::Closed(_)))
        };
        let pulled = if listed.is_present { Ok(()) } else { source.pull(&listed.name, &mut progress) };
        models.forget_list();
        let last = match pulled {
            Ok(()) => {
                info!(model = %listed.name, "pulled");
                status("success")
            }
            Err(error) => {
                warn!(model = %listed.name, "not pulled: {error}");
                Failure::server(error.message).to_json(Wire::Ollama)
            }
        };
        let _ = send.blocking_send(last.clone());
        last
    });
    if stream {
        let mut response = Response::new(Body::new(Progress { lines }));
        let kind = HeaderValue::from_static("application/x-ndjson");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        return Ok(response);
    }
    // Taken until the end, so that nobody waits for the channel.
    let mut lines = lines;
    while lines.recv().await.is_some() {}
    let last = task.await.map_err(|error| Failure::server(format!("the download failed: {error}")))?;
    match last.get("error").and_then(Value::as_str) {
        None => Ok(json_response(&last)),
        Some(message) => Err(Failure::server(message)),
    }
}

/// A body of lines.
struct Progress {
    lines: mpsc::Receiver<Value>,
}

impl http_body::Body for Progress {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.lines.poll_recv(context).map(|line| {
            line.map(|line| {
                let mut out = Vec::new();
                json_line(&mut out, &line);
                Ok(Frame::data(Bytes::from(out)))
            })
        })
    }
}

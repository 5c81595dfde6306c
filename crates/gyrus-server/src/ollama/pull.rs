//! `/api/pull`: downloads of models of the catalogue.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::manage::{digest, take_name};
use crate::failure::{Failure, Wire, json_response};
use crate::fields::Fields;
use crate::models::{PullStep, Pulled};
use crate::routes::Call;
use crate::stream::json_line;

/// Lines that wait for a slow client. With more it misses steps.
const LINES: usize = 4;

/// Downloads a model with its progress. Clients that want the same model share a download, which ends when all have gone.
pub(crate) async fn pull(call: Call) -> Result<Response, Failure> {
    call.state.check_managed()?;
    let mut fields = Fields::parse(&call.body)?;
    let name = take_name(&mut fields)?;
    let stream = fields.boolean("stream")?.unwrap_or(true);
    fields.refuse(&["insecure", "username", "password"])?;
    fields.finish()?;
    let listed = call.state.find(&call.caller, &name).await?;
    let steps = match listed.is_present {
        true => watch::channel(PullStep::Ended(Ok(()))).1,
        false => call.state.models.pull(&listed.name),
    };
    if !stream {
        return whole(call, steps).await;
    }
    let details = call.state.models.details(vec![listed.name.clone()]).await?;
    // Clients tell the layers of a model apart by it.
    let digest = format!("sha256:{}", digest(&listed, &details.into_iter().next().unwrap_or_default()));
    let layer = Layer { status: format!("pulling {}", listed.name), digest };
    let (send, lines) = mpsc::channel(LINES);
    tokio::spawn(async move {
        tokio::select! {
            () = tell(steps, &layer, &send) => {}
            () = send.closed() => {}
            () = call.state.ending() => {
                let failure = Failure::server("the server is shutting down");
                let _ = send.try_send(failure.to_json(Wire::Ollama));
            }
        }
    });
    let mut response = Response::new(Body::new(Progress { lines }));
    let kind = HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    Ok(response)
}

/// Waits for the end of a download.
async fn whole(call: Call, mut steps: watch::Receiver<PullStep>) -> Result<Response, Failure> {
    let ended = tokio::select! {
        ended = steps.wait_for(|step| matches!(step, PullStep::Ended(_))) => ended.map(|step| step.clone()),
        () = call.state.ending() => return Err(Failure::server("the server is shutting down")),
    };
    match ended {
        Ok(PullStep::Ended(Err(message))) => Err(Failure::server(message)),
        Ok(_) => Ok(json_response(&json!({ "status": "success" }))),
        Err(_) => Err(Failure::server("the download did not end")),
    }
}

/// What a download is called in its lines.
struct Layer {
    status: String,
    digest: String,
}

/// Writes a line for each step that the client has time for.
async fn tell(mut steps: watch::Receiver<PullStep>, layer: &Layer, send: &mpsc::Sender<Value>) {
    let _ = send.send(json!({ "status": "pulling manifest" })).await;
    loop {
        let step = steps.borrow_and_update().clone();
        let line = match &step {
            PullStep::Waiting => None,
            PullStep::Came(Pulled { done, total }) => {
                let mut line = json!({ "status": layer.status, "digest": layer.digest, "completed": done });
                if let Some(total) = total {
                    line["total"] = (*total).into();
                }
                Some(line)
            }
            PullStep::Ended(Ok(())) => Some(json!({ "status": "success" })),
            PullStep::Ended(Err(message)) => Some(Failure::server(message.as_str()).to_json(Wire::Ollama)),
        };
        if let Some(line) = line {
            let _ = send.send(line).await;
        }
        if matches!(step, PullStep::Ended(_)) || steps.changed().await.is_err() {
            return;
        }
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

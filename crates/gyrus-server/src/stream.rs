//! Answers as they come: server-sent events, or lines of JSON.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use gyrus::{Event, Model};
use http_body::Frame;
use serde::Serialize;
use tokio::time::{Instant, Sleep, sleep};

use crate::failure::Failure;
use crate::running::Running;

/// Bytes after which a piece is sent, even if more could be added.
const PIECE_BYTES: usize = 16 << 10;
/// Silence after which a sign of life is sent, so that proxies keep the connection.
const SILENCE: Duration = Duration::from_secs(10);

/// How a wire format writes an answer that streams.
pub(crate) trait Format: Send + Unpin + 'static {
    /// The type of the body.
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }

    /// Writes what comes before all events.
    fn begin(&mut self, _out: &mut Vec<u8>) {}

    /// Writes an event.
    fn event(&mut self, event: &Event<'_>, model: &Model, out: &mut Vec<u8>);

    /// Writes the end of an answer that is complete.
    fn end(&mut self, out: &mut Vec<u8>);

    /// Writes the end of an answer that failed.
    fn fail(&mut self, failure: &Failure, out: &mut Vec<u8>);

    /// What is sent in silence.
    fn sign_of_life(&self) -> &'static [u8] {
        b": \n\n"
    }
}

/// The response that streams a generation.
pub(crate) fn respond(running: Running, format: impl Format) -> Response {
    let content_type = format.content_type();
    let body =
        Streaming { running: Some(running), format, has_begun: false, silence: Box::pin(sleep(SILENCE)) };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies such as nginx would wait for more.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Writes a server-sent event.
pub(crate) fn sse(out: &mut Vec<u8>, name: Option<&str>, data: &impl Serialize) {
    // Memory can always be written to, and all keys are strings.
    sse_with(out, name, |out| drop(serde_json::to_writer(out, data)));
}

/// Writes a server-sent event whose data, a single line, `write` adds.
pub(crate) fn sse_with(out: &mut Vec<u8>, name: Option<&str>, write: impl FnOnce(&mut Vec<u8>)) {
    if let Some(name) = name {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"data: ");
    write(out);
    out.extend_from_slice(b"\n\n");
}

/// Writes a line of JSON.
pub(crate) fn json_line(out: &mut Vec<u8>, data: &impl Serialize) {
    let _ = serde_json::to_writer(&mut *out, data);
    out.push(b'\n');
}

/// A body that takes events when the client can take bytes.
struct Streaming<F> {
    /// `None` after the end.
    running: Option<Running>,
    format: F,
    has_begun: bool,
    silence: Pin<Box<Sleep>>,
}

impl<F: Format> http_body::Body for Streaming<F> {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Streaming { running: slot, format, has_begun, silence } = self.get_mut();
        let Some(running) = slot else { return Poll::Ready(None) };
        let mut out = Vec::new();
        if !std::mem::replace(has_begun, true) {
            format.begin(&mut out);
        }
        let model = running.model().clone();
        let mut is_over = false;
        // Everything that has come is sent in one piece.
        while out.len() < PIECE_BYTES && !is_over {
            match running.poll_event(context) {
                Poll::Pending => break,
                Poll::Ready(Ok(Some(event))) => format.event(&event, &model, &mut out),
                Poll::Ready(Ok(None)) => {
                    format.end(&mut out);
                    is_over = true;
                }
                Poll::Ready(Err(failure)) => {
                    format.fail(&failure, &mut out);
                    is_over = true;
                }
            }
        }
        if is_over {
            *slot = None;
        }
        if out.is_empty() {
            if slot.is_none() {
                return Poll::Ready(None);
            }
            if silence.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            out.extend_from_slice(format.sign_of_life());
        }
        silence.as_mut().reset(Instant::now() + SILENCE);
        if out.is_empty() {
            // The format has no sign of life: the timer was set again and must be looked at once more.
            let _ = silence.as_mut().poll(context);
            return Poll::Pending;
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(out)))))
    }
}

/// Gives all events of an answer to a format that also adds them up, for a client that wants the whole answer. What it
/// writes for streams is dropped.
pub(crate) async fn collect(running: &mut Running, format: &mut impl Format) -> Result<(), Failure> {
    let model = running.model().clone();
    let mut pieces = Vec::new();
    poll_fn(|context| {
        loop {
            pieces.clear();
            match running.poll_event(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                Poll::Ready(Ok(None)) => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(Some(event))) => format.event(&event, &model, &mut pieces),
            }
        }
    })
    .await?;
    format.end(&mut pieces);
    Ok(())
}

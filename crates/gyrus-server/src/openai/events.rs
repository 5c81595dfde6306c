//! Server-sent events that wait for their client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::stream::sse;

/// The most bytes of events that wait for a slow client. Nobody waits for it: with more its request fails.
const MOST_BYTES: usize = 1 << 20;

/// A queue of events, and the body that takes them.
pub(super) fn channel() -> (Sender, Events) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    (Sender { sender, waiting: Arc::clone(&waiting) }, Events { receiver, waiting, is_over: false })
}

/// An event, and whether it is the last one.
type Item = (Bytes, bool);

/// The end of the queue that the work has.
#[derive(Clone)]
pub(super) struct Sender {
    sender: mpsc::UnboundedSender<Item>,
    waiting: Arc<AtomicUsize>,
}

impl Sender {
    /// Adds an event unless too many wait. Returns whether it was added.
    pub(super) fn send(&self, data: &Value) -> bool {
        self.waiting.load(Ordering::Acquire) <= MOST_BYTES && self.add(data, false)
    }

    /// Adds the last event, however many wait. The body ends with it, even if the work has not noticed its end yet. Returns
    /// whether there still is a client.
    pub(super) fn send_last(&self, data: &Value) -> bool {
        self.add(data, true)
    }

    fn add(&self, data: &Value, is_last: bool) -> bool {
        let mut event = Vec::new();
        sse(&mut event, None, data);
        self.waiting.fetch_add(event.len(), Ordering::AcqRel);
        self.sender.send((Bytes::from(event), is_last)).is_ok()
    }

    /// Ready when the client has gone.
    pub(super) async fn closed(&self) {
        self.sender.closed().await;
    }
}

/// A body of events as they come.
pub(super) struct Events {
    receiver: mpsc::UnboundedReceiver<Item>,
    waiting: Arc<AtomicUsize>,
    is_over: bool,
}

impl Events {
    /// The response that streams them.
    pub(super) fn response(self) -> Response {
        let mut response = Response::new(Body::new(self));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Proxies such as nginx would wait for more.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }
}

impl http_body::Body for Events {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let Some((event, is_last)) = std::task::ready!(self.receiver.poll_recv(context)) else {
            return Poll::Ready(None);
        };
        self.is_over = is_last;
        self.waiting.fetch_sub(event.len(), Ordering::AcqRel);
        Poll::Ready(Some(Ok(Frame::data(event))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_takes_nothing_ends_its_own_request_only() {
        let (sender, mut events) = channel();
        let event = Value::from("a".repeat(1000));
        let sent = (0..10_000).take_while(|_| sender.send(&event)).count();
        assert!((1000..1100).contains(&sent), "{sent}");
        assert!(sender.send_last(&event));
        let mut taken = 0;
        while let Ok((event, _)) = events.receiver.try_recv() {
            taken += event.len();
        }
        assert_eq!(taken, sender.waiting.load(Ordering::Acquire));
        drop(events);
        assert!(!sender.send_last(&event));
    }

    #[tokio::test]
    async fn a_body_ends_with_its_last_event() {
        use http_body_util::BodyExt;
        let (sender, events) = channel();
        let of_work = sender.clone();
        assert!(sender.send(&Value::from("a")) && sender.send_last(&Value::from("b")));
        of_work.send(&Value::from("c"));
        let all = events.collect().await.unwrap().to_bytes();
        assert_eq!(all, "data: \"a\"\n\ndata: \"b\"\n\n");
    }
}

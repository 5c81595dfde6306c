//! One connection.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt;
use tracing::debug;

use super::patient::Patient;
use crate::front::Peer;
use crate::state::{Phase, State};

/// Bytes that the headers of a request may take.
const HEADER_BYTES: usize = 64 << 10;
/// The most headers of a request.
const MOST_HEADERS: usize = 100;

/// Serves a connection until its client or the server is done. One that was opened while the server drains ends with its first
/// answer, which says that it does.
pub(super) async fn serve<S>(stream: S, peer: SocketAddr, router: Router, state: Arc<State>, is_late: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = TokioIo::new(Patient::new(stream, state.config.write_timeout));
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer.ip()));
        router.clone().oneshot(request)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(state.config.header_timeout)
        .max_buf_size(HEADER_BYTES)
        .max_headers(MOST_HEADERS)
        .keep_alive(true);
    let mut connection = pin!(builder.serve_connection(stream, service));
    let mut phase = state.phase.subscribe();
    let draining = async {
        if is_late {
            return std::future::pending().await;
        }
        // The state outlives every connection.
        let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = draining => {
            // The request that runs is answered; then the connection is closed.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%peer, "connection: {error}");
    }
}

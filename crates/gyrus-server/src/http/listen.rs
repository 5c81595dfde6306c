//! Listens, accepts connections within limits, and shuts down.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::connection;
use crate::config::SetupError;
use crate::state::{Phase, State};

/// Time for requests that are ended to tell their clients.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Time for a TLS handshake.
#[cfg(feature = "tls")]
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A listening socket and what its connections need.
struct Listening {
    listener: TcpListener,
    router: Router,
    state: Arc<State>,
    places: Arc<Semaphore>,
    #[cfg(feature = "tls")]
    tls: Option<tokio_rustls::TlsAcceptor>,
}

/// Serves connections until `stop` is ready. Then running requests have some time to end.
pub(crate) async fn listen(
    listener: TcpListener,
    router: Router,
    state: Arc<State>,
    stop: impl Future<Output = ()>,
) -> Result<(), SetupError> {
    let listening = Listening {
        listener,
        router,
        places: Arc::new(Semaphore::new(state.config.connections)),
        #[cfg(feature = "tls")]
        tls: super::tls::acceptor(&state.config)?,
        state,
    };
    let mut connections = JoinSet::new();
    tokio::select! {
        never = listening.serve(&mut connections) => match never {},
        () = stop => {}
    }
    listening.state.phase.send_replace(Phase::Draining);
    // Whoever asks meanwhile whether the server is ready is told that it is not, and is not waited for.
    let mut late = JoinSet::new();
    tokio::select! {
        never = listening.serve(&mut late) => match never {},
        () = drain(&listening.state, connections) => {}
    }
    Ok(())
}

impl Listening {
    /// Accepts connections for ever.
    async fn serve(&self, connections: &mut JoinSet<()>) -> Infallible {
        loop {
            let accepted = self.listener.accept().await;
            while connections.try_join_next().is_some() {}
            let Some((stream, peer)) = checked(accepted).await else { continue };
            let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
                // Closed at once: a client can tell that from a server that is slow.
                self.state.metrics.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            // Tokens are small and must not wait for each other.
            let _ = stream.set_nodelay(true);
            let (router, state) = (self.router.clone(), Arc::clone(&self.state));
            let is_late = state.phase() != Phase::Serving;
            #[cfg(feature = "tls")]
            if let Some(tls) = self.tls.clone() {
                connections.spawn(async move {
                    let _open = Open::new(&state, place);
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
                        connection::serve(stream, peer, router, Arc::clone(&state), is_late).await;
                    }
                });
                continue;
            }
            connections.spawn(async move {
                let _open = Open::new(&state, place);
                connection::serve(stream, peer, router, Arc::clone(&state), is_late).await;
            });
        }
    }
}

/// A connection that was accepted. An error is that of one connection, or of too many open files; neither ends the server.
async fn checked(accepted: io::Result<(TcpStream, SocketAddr)>) -> Option<(TcpStream, SocketAddr)> {
    match accepted {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            warn!("a connection could not be accepted: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// Lets running requests end, then ends them.
async fn drain(state: &State, mut connections: JoinSet<()>) {
    info!(connections = connections.len(), sequences = state.gate.taken(), "shutting down");
    let all = async |connections: &mut JoinSet<()>| while connections.join_next().await.is_some() {};
    if tokio::time::timeout(state.config.drain, all(&mut connections)).await.is_err() {
        warn!(sequences = state.gate.taken(), "ending requests that still run");
        state.phase.send_replace(Phase::Ending);
        if tokio::time::timeout(LAST_WORDS, all(&mut connections)).await.is_err() {
            connections.abort_all();
            all(&mut connections).await;
        }
    }
    info!("shut down");
}

/// A connection that is counted.
struct Open<'a> {
    state: &'a State,
    #[allow(dead_code, reason = "the place is given back when it is dropped")]
    place: OwnedSemaphorePermit,
}

impl<'a> Open<'a> {
    fn new(state: &'a State, place: OwnedSemaphorePermit) -> Open<'a> {
        state.metrics.connections.fetch_add(1, Ordering::Relaxed);
        Open { state, place }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.state.metrics.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

//! Work that is no generation: embeddings, ranks, transcripts. A model does that of one request at a time; the others wait in
//! their order and hold no thread meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tracing::info;

use crate::failure::{Failure, Kind};
use crate::keep_alive::KeepAlive;
use crate::metrics::ModelCounts;
use crate::models::Lease;
use crate::places::Places;
use crate::routes::Call;
use crate::state::{Caller, State};

/// Takes a model into use, waits for its turn, and works with it on a thread for CPU work. The request has a place in the
/// queue until the work has ended. If the future is dropped, the time of the request is over or the server ends, the work is
/// told to stop.
pub(crate) async fn run<T: Send + 'static>(
    call: &Call,
    model: &str,
    keep_alive: Option<KeepAlive>,
    work: impl FnOnce(&Lease, &Progress) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let (state, caller) = (&call.state, &call.caller);
    let (started, deadline) = (Instant::now(), state.deadline(caller, None));
    let listed = state.find(caller, model).await?;
    let places = Places::take(state, caller, 1, "model")?;
    let lease = state.within(deadline, state.models.lease_any(&listed)).await?;
    let lease = lease.keep_alive(state.kept(keep_alive));
    let progress = Progress::new(state, caller, lease.name(), started, places);
    let stop = StopOnDrop(Arc::clone(&progress));
    let part = async move {
        let turn = lease.turn().await?;
        let work = move || {
            let _turn = turn;
            let done = work(&lease, &progress);
            progress.end(if done.is_ok() { "finished" } else { "failed" });
            done
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.map_err(|error| Failure::server(format!("the work did not end: {error}")))?
    };
    let done = state.within(deadline, part).await;
    if let Err(failure) = &done {
        stop.0.end(match failure.kind {
            Kind::Timeout => "timeout",
            Kind::Unavailable => "ended",
            _ => "failed",
        });
    }
    done
}

/// How far the work of a request is, and whether it goes on. Its counts are written when it is dropped.
pub(crate) struct Progress {
    state: Arc<State>,
    caller: Arc<Caller>,
    model: String,
    counts: Arc<ModelCounts>,
    started: Instant,
    /// Tokens of texts that were read.
    read: AtomicUsize,
    /// Tokens of text that was written.
    written: AtomicUsize,
    /// How it ended.
    outcome: OnceLock<&'static str>,
    /// Given back when the counts are written, so that whoever sees the places free sees the counts.
    #[allow(dead_code, reason = "places are given back when they are dropped")]
    places: Arc<Places>,
}

impl Progress {
    fn new(
        state: &Arc<State>,
        caller: &Arc<Caller>,
        model: &str,
        started: Instant,
        places: Arc<Places>,
    ) -> Arc<Progress> {
        Arc::new(Progress {
            counts: state.metrics.of(model),
            state: Arc::clone(state),
            caller: Arc::clone(caller),
            model: model.to_owned(),
            started,
            read: AtomicUsize::new(0),
            written: AtomicUsize::new(0),
            outcome: OnceLock::new(),
            places,
        })
    }

    /// Whether somebody still waits for the result.
    pub(crate) fn goes_on(&self) -> bool {
        self.outcome.get().is_none()
    }

    /// Counts tokens of texts that are read. Returns whether to go on.
    pub(crate) fn read(&self, tokens: usize) -> bool {
        if !self.goes_on() {
            return false;
        }
        self.read.fetch_add(tokens, Ordering::Relaxed);
        self.counts.prompt_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        true
    }

    /// Counts tokens of text that was written.
    pub(crate) fn wrote(&self, tokens: usize) {
        self.written.fetch_add(tokens, Ordering::Relaxed);
        self.counts.completion_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    /// Ends the work. The first of several ends is the one that is logged.
    fn end(&self, outcome: &'static str) {
        let _ = self.outcome.set(outcome);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let outcome = self.outcome.get().copied().unwrap_or("disconnected");
        let metrics = &self.state.metrics;
        if outcome == "disconnected" {
            metrics.disconnected.fetch_add(1, Ordering::Relaxed);
        }
        let time = self.started.elapsed();
        metrics.duration.add(time);
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        let (read, written) = (self.read.load(Ordering::Relaxed), self.written.load(Ordering::Relaxed));
        if let Some(key) = &self.caller.key {
            key.count(read + written);
        }
        info!(
            id = %self.caller.id,
            client = %self.caller.client(),
            model = %self.model,
            prompt_tokens = read,
            completion_tokens = written,
            ms = time.as_millis() as u64,
            "{outcome}"
        );
    }
}

/// Ends the work of a request that nobody waits for any more.
struct StopOnDrop(Arc<Progress>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.end("disconnected");
    }
}

//! Clients: threads that send the requests of a load and note when events come.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gyrus::{Cancel, Error, Event, Model, Request, Sampler, StopReason};

use super::load::Load;

/// A client's stack: it does nothing but wait for events.
const STACK_BYTES: usize = 256 << 10;
/// How long a client sleeps before it looks whether the user interrupted.
const NAP: Duration = Duration::from_millis(20);

/// What became of a request. Times are since the start of the load.
#[derive(Debug, Clone, Default)]
pub(super) struct Served {
    /// When it arrived, whether or not a client was free.
    pub(super) arrival: Duration,
    /// When the scheduler gave it a place.
    pub(super) admitted: Option<Duration>,
    /// When each token came.
    pub(super) tokens: Vec<Duration>,
    pub(super) end: Duration,
    pub(super) prompt: usize,
    pub(super) failure: Option<Failure>,
}

/// Why a request was not completed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: &'static str,
    pub(super) message: String,
}

/// Sends requests and waits until all have ended. At most `concurrency` are sent and not ended at any time.
///
/// `run` runs the request of a number, which has arrived at a time after the start.
pub(super) fn serve(
    load: &Load,
    Clients { concurrency, in_turn, cancel, ended }: Clients<'_>,
    run: &(dyn Fn(usize, Instant, Duration) -> Served + Sync),
) -> Result<Vec<Served>> {
    let next = AtomicUsize::new(0);
    let served = Mutex::new(vec![Served::default(); load.requests.len()]);
    let clients = if in_turn { 1 } else { concurrency.min(load.requests.len()) };
    let start = Instant::now();
    let client = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(planned) = load.requests.get(index).filter(|_| !cancel.is_cancelled()) else { break };
            let arrival = if in_turn { start.elapsed() } else { planned.arrival };
            if !sleep_until(start + arrival, cancel) {
                break;
            }
            let one = Served { prompt: planned.prompt, ..run(index, start, arrival) };
            if let Ok(mut served) = served.lock() {
                served[index] = one;
                ended();
            }
        }
    };
    thread::scope(|scope| {
        for number in 0..clients {
            let builder = thread::Builder::new().name(format!("client-{number}")).stack_size(STACK_BYTES);
            if let Err(error) = builder.spawn_scoped(scope, client) {
                // The others send no further request.
                next.store(load.requests.len(), Ordering::Relaxed);
                return Err(error)
                    .with_context(|| format!("client {} of {clients} could not be started", number + 1));
            }
        }
        anyhow::Ok(())
    })?;
    served.into_inner().context("a client panicked")
}

/// How a load is sent.
pub(super) struct Clients<'a> {
    pub(super) concurrency: usize,
    /// Each request is sent when the one before it has ended.
    pub(super) in_turn: bool,
    pub(super) cancel: &'a Cancel,
    /// Called when a request has ended.
    pub(super) ended: &'a (dyn Fn() + Sync),
}

/// Runs a request to its end.
/// Runs a request of a load in the library.
pub(super) fn run(
    model: &Model,
    load: &Load,
    index: usize,
    (sampler, cancel): (&Sampler, &Cancel),
    (start, arrival): (Instant, Duration),
) -> Served {
    let sampler = Sampler { seed: index as u64, ..sampler.clone() };
    let ids = load.prompt(index, model.plan().vocab);
    let request = Request::ids(ids).max_tokens(load.requests[index].output).ignore_end(true);
    let request = request.sampler(sampler).cancel(cancel.clone());
    let mut served = Served { arrival, ..Served::default() };
    let sent = start.elapsed();
    let mut session = model.session();
    let generate = || -> Result<Option<Failure>, Error> {
        let mut generation = session.generate(request)?;
        while let Some(event) = generation.next()? {
            match event {
                Event::Token { .. } => served.tokens.push(start.elapsed()),
                Event::Stop { reason, usage, .. } => {
                    served.admitted = (usage.generated_tokens > 0).then_some(sent + usage.queue_time);
                    return Ok(stopped(&reason));
                }
                _ => {}
            }
        }
        Ok(None)
    };
    served.failure = generate().unwrap_or_else(|error| Some(failed(&error)));
    served.end = start.elapsed();
    served
}

/// A stop before all tokens were generated.
fn stopped(reason: &StopReason) -> Option<Failure> {
    let kind = match reason {
        StopReason::MaxTokens => return None,
        StopReason::ContextFull => "context full",
        StopReason::TimeLimit => "time limit",
        StopReason::Cancelled => "cancelled",
        _ => "stopped early",
    };
    Some(Failure { kind, message: format!("stopped early: {reason:?}") })
}

fn failed(error: &Error) -> Failure {
    let kind = match error {
        Error::CacheFull { .. } => "KV cache full",
        Error::QueueFull { .. } => "queue full",
        Error::PromptTooLong { .. } => "prompt too long",
        Error::NotFinite { .. } => "not finite",
        Error::DeviceGone(_) | Error::Backend(_) => "device",
        Error::Panicked(_) => "panic",
        _ => "other",
    };
    Failure { kind, message: error.to_string() }
}

/// Sleeps; `false` if the user interrupted.
fn sleep_until(time: Instant, cancel: &Cancel) -> bool {
    while !cancel.is_cancelled() {
        let left = time.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(NAP));
    }
    false
}

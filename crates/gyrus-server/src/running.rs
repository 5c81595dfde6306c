//! A generation that runs for a client.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use gyrus::{Answer, Event, Model, Speculation, StopReason, Usage};
use tracing::info;

use crate::failure::{Failure, Kind};
use crate::metrics::ModelCounts;
use crate::models::{Lease, Listed};
use crate::places::Places;
use crate::state::{Caller, State};
use crate::wanted::{Wanted, WantedPrompt};

/// A running generation. When it is dropped, also while it waits, the engine frees what it used.
pub(crate) struct Running {
    // Dropped first, so that its jobs have ended when the model is given back.
    answer: Answer,
    meter: Meter,
    lease: Lease,
    #[allow(dead_code, reason = "the draft model is given back when it is dropped")]
    draft: Option<Lease>,
    /// Ready when the server ends running requests.
    ending: Pin<Box<dyn Future<Output = ()> + Send>>,
    #[allow(dead_code, reason = "places are given back when they are dropped")]
    places: Arc<Places>,
}

/// Starts a generation: finds the model, enters the queue, loads the model if needed, and prepares the prompt on a thread
/// for CPU work. The time of the request covers all of that.
pub(crate) async fn start(
    state: &Arc<State>,
    caller: &Arc<Caller>,
    wanted: Wanted,
) -> Result<Running, Failure> {
    let started = start_all(state, caller, vec![wanted]).await?.pop();
    started.ok_or_else(|| Failure::server("nothing was started"))
}

/// Starts the generations of a request, of the same model. They enter the queue together: all of them, or none.
pub(crate) async fn start_all(
    state: &Arc<State>,
    caller: &Arc<Caller>,
    all: Vec<Wanted>,
) -> Result<Vec<Running>, Failure> {
    let Some(first) = all.first() else { return Ok(Vec::new()) };
    let listed = state.find(caller, &first.model).await?;
    let draft = match &first.draft_model {
        Some(name) => Some(find_draft(state, caller, name, &listed).await?),
        None => None,
    };
    if let Some(key) = &caller.key {
        key.check_priority(first.priority)?;
    }
    let sequences = all.iter().map(|wanted| wanted.choices).sum();
    let places = Places::take(state, caller, sequences, if all.len() > 1 { "prompt" } else { "n" })?;
    let deadline = state.deadline(caller, first.time_limit);
    let prepared = async {
        let mut running = Vec::new();
        for wanted in all {
            if state.config.log_prompts {
                log_prompt(&caller.id, &wanted.prompt);
            }
            let places = Arc::clone(&places);
            running.push(prepare(state, caller, wanted, (&listed, draft.as_ref()), places, deadline).await?);
        }
        Ok::<_, Failure>(running)
    };
    state.within(deadline, prepared).await
}

/// The smaller model that guesses for a model.
async fn find_draft(
    state: &Arc<State>,
    caller: &Arc<Caller>,
    name: &str,
    listed: &Listed,
) -> Result<Listed, Failure> {
    let draft = state.find(caller, name).await.map_err(of_draft)?;
    if draft.name == listed.name {
        return Err(Failure::field("draft_model", "it is the model that answers; a smaller one is needed"));
    }
    Ok(draft)
}

/// A failure of the draft model.
fn of_draft(failure: Failure) -> Failure {
    Failure { param: Some("draft_model".to_owned()), ..failure }
}

/// Loads the model if needed, and prepares the prompt. `listed`: the model, and the smaller one that guesses.
async fn prepare(
    state: &Arc<State>,
    caller: &Arc<Caller>,
    mut wanted: Wanted,
    (listed, draft): (&Listed, Option<&Listed>),
    places: Arc<Places>,
    deadline: Instant,
) -> Result<Running, Failure> {
    let started = Instant::now();
    let kept = state.kept(wanted.keep_alive);
    let lease = state.models.lease(listed).await?.keep_alive(kept);
    let draft = match draft {
        Some(draft) => Some(state.models.lease(draft).await.map_err(of_draft)?.keep_alive(kept)),
        None => None,
    };
    let longest = state.config.max_tokens;
    let (of_thread, config_state) = (Arc::clone(caller), Arc::clone(state));
    let prepare = move || -> Result<Running, Failure> {
        // What is left when the generation begins.
        wanted.time_limit = Some(deadline.saturating_duration_since(Instant::now()));
        let request = wanted.request(lease.model(), longest)?;
        let (client, tenant) = (of_thread.client(), of_thread.tenant());
        let mut request = request.client(client).tenant(tenant);
        if let Some(draft) = &draft {
            let guessing = Speculation::model_for(lease.model(), draft.model().clone(), client, tenant);
            request = request.speculation(guessing.map_err(|error| of_draft(error.into()))?);
        }
        let answer = lease.model().answer(request)?;
        let of_end = Arc::clone(&config_state);
        let ending = Box::pin(async move { of_end.ending().await });
        let meter = Meter::new(config_state, of_thread, lease.name(), started);
        Ok(Running { answer, meter, lease, draft, ending, places })
    };
    // If nobody waits any more, the thread's result is dropped, and with it the generation.
    let prepared = tokio::task::spawn_blocking(prepare).await;
    prepared.map_err(|error| Failure::server(format!("the prompt could not be prepared: {error}")))?
}

impl Running {
    pub(crate) fn model(&self) -> &Model {
        self.lease.model()
    }

    /// The name of the model that answers.
    pub(crate) fn name(&self) -> &str {
        self.lease.name()
    }

    /// The next event if it has come; `None` after the last one.
    pub(crate) fn poll_event(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Event<'_>>, Failure>> {
        if self.ending.as_mut().poll(context).is_ready() {
            self.meter.outcome = "ended";
            let failure = Failure::new(Kind::Unavailable, "the server is shutting down").with_retry(5);
            return Poll::Ready(Err(failure));
        }
        let event = match self.answer.poll_next(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(event) => event,
        };
        match event {
            Ok(Some(Event::Stop { reason: StopReason::TimeLimit, .. })) => {
                self.meter.outcome = "timeout";
                let failure = Failure::new(Kind::Timeout, "the time limit of the request has passed");
                Poll::Ready(Err(failure))
            }
            Ok(Some(event)) => {
                self.meter.see(&event);
                Poll::Ready(Ok(Some(event)))
            }
            Ok(None) => {
                self.meter.outcome = "finished";
                Poll::Ready(Ok(None))
            }
            Err(error) => {
                self.meter.outcome = "failed";
                Poll::Ready(Err(error.into()))
            }
        }
    }
}

/// Counts and times of a generation. They are written when it ends, however it ends.
struct Meter {
    state: Arc<State>,
    caller: Arc<Caller>,
    model: String,
    counts: Arc<ModelCounts>,
    started: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    prompt: usize,
    cached: usize,
    generated: usize,
    usage: Option<Usage>,
    outcome: &'static str,
}

impl Meter {
    fn new(state: Arc<State>, caller: Arc<Caller>, model: &str, started: Instant) -> Meter {
        Meter {
            counts: state.metrics.of(model),
            state,
            caller,
            model: model.to_owned(),
            started,
            first_token: None,
            last_token: None,
            prompt: 0,
            cached: 0,
            generated: 0,
            usage: None,
            outcome: "disconnected",
        }
    }

    fn see(&mut self, event: &Event<'_>) {
        match event {
            Event::Prompt { choice: 0, tokens, cached } => {
                (self.prompt, self.cached) = (*tokens, *cached);
                self.counts.prompt_tokens.fetch_add(*tokens as u64, Ordering::Relaxed);
                self.counts.cached_tokens.fetch_add(*cached as u64, Ordering::Relaxed);
            }
            Event::Token { choice, .. } => {
                self.generated += 1;
                self.counts.completion_tokens.fetch_add(1, Ordering::Relaxed);
                if *choice == 0 {
                    let now = Instant::now();
                    let metrics = &self.state.metrics;
                    match self.last_token.replace(now) {
                        None => {
                            self.first_token = Some(now);
                            metrics.first_token.add(now - self.started);
                        }
                        Some(last) => metrics.between_tokens.add(now - last),
                    }
                }
            }
            Event::Stop { choice: 0, usage, .. } => self.usage = Some(*usage),
            _ => {}
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let metrics = &self.state.metrics;
        if self.outcome == "disconnected" {
            metrics.disconnected.fetch_add(1, Ordering::Relaxed);
        }
        let time = self.started.elapsed();
        metrics.duration.add(time);
        if let Some(usage) = &self.usage {
            metrics.queue.add(usage.queue_time);
        }
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(key) = &self.caller.key {
            key.count(self.prompt + self.generated);
        }
        info!(
            id = %self.caller.id,
            client = %self.caller.client(),
            model = %self.model,
            prompt_tokens = self.prompt,
            cached_tokens = self.cached,
            completion_tokens = self.generated,
            first_token_ms = self.first_token.map(|at| (at - self.started).as_millis() as u64),
            ms = time.as_millis() as u64,
            "{}", self.outcome
        );
    }
}

/// Logs a prompt, which is done only if the server was asked to.
fn log_prompt(id: &str, prompt: &WantedPrompt) {
    match prompt {
        WantedPrompt::Messages(messages) => {
            info!(id = %id, messages = %serde_json::Value::from(messages.clone()), "prompt");
        }
        WantedPrompt::Text(text) => info!(id = %id, text = %text, "prompt"),
        WantedPrompt::Ids(ids) => info!(id = %id, tokens = ?ids, "prompt"),
        WantedPrompt::Infill(infill) => {
            info!(id = %id, prefix = %infill.prefix, suffix = %infill.suffix, "prompt");
        }
    }
}

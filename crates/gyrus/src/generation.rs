use std::sync::Arc;
use std::time::Instant;

use gyrus_text::Detokenizer;

use crate::Error;
use crate::event::{Event, StopReason, Usage};
use crate::model::Model;
use crate::repetition::Repetition;
use crate::request::Request;
use crate::serving::{Command, End, EventQueue, Handle, Job, JobEvent, SequenceId, Task};
use crate::stop_strings::StopStrings;

/// The initial capacity for a token's text in bytes; few tokens are longer.
const TOKEN_TEXT_BYTES: usize = 256;

/// A running generation: a stream of [`Event`]s, read with [`Generation::next`].
///
/// It may be dropped at any time: the session keeps the tokens that were emitted, and the scheduler frees what the
/// generation used. Dropping it does not wait for the device.
pub struct Generation<'a> {
    model: &'a Model,
    tokens: &'a mut Vec<u32>,
    job: RunningJob,
    request: Request,
    detokenizer: Option<Detokenizer<'a>>,
    stop_strings: StopStrings,
    repetition: Option<Repetition>,
    /// The text of the current token, and of the current event. The buffers are reused.
    token_text: String,
    visible_text: String,
    /// The most likely alternatives to the current token.
    top: Vec<(u32, f32)>,
    usage: Usage,
    /// When the request was sent, and when its events were first waited for.
    sent: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    state: State,
}

/// A sampled token and, if requested, its log-probability and those of alternatives.
#[derive(Debug)]
struct SampledToken {
    id: u32,
    logprob: Option<f32>,
    top: Vec<(u32, f32)>,
}

#[derive(Debug)]
enum State {
    /// The prompt is being computed, or there is nothing to compute for this reason.
    Prompt(Option<StopReason>),
    /// The first token is sampled and its event is pending.
    FirstToken(SampledToken),
    Tokens,
    Stop(StopReason),
    Done,
}

impl<'a> Generation<'a> {
    pub(crate) fn new(
        model: &'a Model,
        id: SequenceId,
        tokens: &'a mut Vec<u32>,
        mut request: Request,
    ) -> Generation<'a> {
        let stop_strings = StopStrings::new(std::mem::take(&mut request.stop));
        let detokenizer = model.tokenizer().map(|t| Detokenizer::continuing(t, false));
        let remaining = model.context().tokens.saturating_sub(tokens.len());
        let wanted = request.max_tokens.map_or(remaining, |n| n.min(remaining));
        // Capacity for the whole completion, so that steady decoding does not allocate.
        tokens.reserve(wanted);
        let events = Arc::new(EventQueue::new());
        let nothing = match (request.max_tokens, remaining) {
            (Some(0), _) => Some(StopReason::MaxTokens),
            _ if request.cancel.is_cancelled() => Some(StopReason::Cancelled),
            (_, 0) => Some(StopReason::ContextFull),
            _ => None,
        };
        if nothing.is_none() {
            let ends = match model.tokenizer() {
                Some(tokenizer) if !request.ignore_end => tokenizer.ends().collect(),
                _ => Vec::new(),
            };
            let job = Job {
                tokens: tokens.clone(),
                max_len: tokens.len() + wanted,
                task: Task::Generate { sampler: request.sampler.clone(), ends, logprobs: request.logprobs },
                client: request.client,
                priority: request.priority,
                deadline: request.time_limit.and_then(|limit| Instant::now().checked_add(limit)),
                tenant: request.tenant,
                events: Arc::clone(&events),
            };
            model.handle().start(id, job);
        }
        Generation {
            model,
            job: RunningJob { events, handle: model.shared_handle(), has_ended: false },
            detokenizer,
            stop_strings,
            repetition: request.stop_at_repetition.then(Repetition::new),
            request,
            token_text: String::with_capacity(TOKEN_TEXT_BYTES),
            visible_text: String::with_capacity(TOKEN_TEXT_BYTES),
            top: Vec::new(),
            usage: Usage { prompt_tokens: tokens.len(), ..Usage::default() },
            tokens,
            sent: Instant::now(),
            started: None,
            first_token: None,
            state: State::Prompt(nothing),
        }
    }

    /// The next event; `None` after the stop.
    ///
    /// On an error the session keeps the tokens that were emitted.
    #[allow(clippy::should_implement_trait, reason = "events borrow the generation's text")]
    pub fn next(&mut self) -> Result<Option<Event<'_>>, Error> {
        self.visible_text.clear();
        match std::mem::replace(&mut self.state, State::Done) {
            State::Prompt(nothing) => self.prompt(nothing),
            State::FirstToken(token) => self.token(token),
            State::Tokens => self.step(),
            State::Stop(reason) => self.stop(reason),
            State::Done => Ok(None),
        }
    }

    /// Waits until the prompt is computed and the first token sampled, or a chunk of it is computed.
    fn prompt(&mut self, nothing: Option<StopReason>) -> Result<Option<Event<'_>>, Error> {
        self.started.get_or_insert_with(Instant::now);
        let mut next = nothing.map(State::Stop);
        while next.is_none() {
            if self.request.cancel.is_cancelled() {
                next = Some(State::Stop(StopReason::Cancelled));
                break;
            }
            match self.job.next() {
                JobEvent::Admitted { cached } => {
                    self.usage.cached_tokens = cached;
                    self.usage.queue_time = self.sent.elapsed();
                }
                JobEvent::Progress { done } => {
                    self.state = State::Prompt(None);
                    return Ok(Some(Event::PrefillProgress { done, total: self.usage.prompt_tokens }));
                }
                JobEvent::Token { id, logprob, top } => {
                    self.usage.prompt_time = self.started.map(|t| t.elapsed()).unwrap_or_default();
                    next = Some(State::FirstToken(SampledToken { id, logprob, top }));
                }
                JobEvent::Done(end) => next = Some(State::Stop(self.reason(end))),
                JobEvent::Failed(error) => return Err(error),
                JobEvent::Logits { .. } => {}
            }
        }
        if let Some(next) = next {
            self.state = next;
        }
        self.first_token = Some(Instant::now());
        let Usage { prompt_tokens: tokens, cached_tokens: cached, .. } = self.usage;
        Ok(Some(Event::Prompt { tokens, cached }))
    }

    fn step(&mut self) -> Result<Option<Event<'_>>, Error> {
        if self.request.cancel.is_cancelled() {
            return self.stop(StopReason::Cancelled);
        }
        loop {
            match self.job.next() {
                JobEvent::Token { id, logprob, top } => return self.token(SampledToken { id, logprob, top }),
                JobEvent::Done(end) => return self.stop(self.reason(end)),
                JobEvent::Failed(error) => return Err(error),
                JobEvent::Admitted { .. } | JobEvent::Progress { .. } | JobEvent::Logits { .. } => {}
            }
        }
    }

    /// Why the scheduler has ended the job.
    fn reason(&self, end: End) -> StopReason {
        match end {
            End::Complete if self.request.max_tokens.is_some_and(|n| self.usage.generated_tokens >= n) => {
                StopReason::MaxTokens
            }
            End::Complete | End::Token => StopReason::ContextFull,
            End::Cancelled => StopReason::Cancelled,
            End::Deadline => StopReason::TimeLimit,
        }
    }

    fn token(&mut self, token: SampledToken) -> Result<Option<Event<'_>>, Error> {
        let ends = self.model.tokenizer().is_some_and(|t| t.is_end(token.id));
        if ends && !self.request.ignore_end {
            return self.stop(StopReason::EndToken(token.id));
        }
        self.tokens.push(token.id);
        self.usage.generated_tokens += 1;
        let repeats = self.repetition.as_mut().is_some_and(|repetition| repetition.push(token.id));
        self.state = if repeats { State::Stop(StopReason::Repetition) } else { State::Tokens };
        if let Some(detokenizer) = &mut self.detokenizer {
            self.token_text.clear();
            detokenizer.push_into(token.id, &mut self.token_text);
            if let Some(stop) = self.stop_strings.push(&self.token_text, &mut self.visible_text) {
                self.state = State::Stop(StopReason::StopString(stop.to_owned()));
                // An incomplete last character is part of the stop string.
                self.detokenizer = None;
            }
        }
        self.top = token.top;
        Ok(Some(Event::Token {
            id: token.id,
            logprob: token.logprob,
            top: &self.top,
            text: &self.visible_text,
        }))
    }

    fn stop(&mut self, mut reason: StopReason) -> Result<Option<Event<'_>>, Error> {
        self.state = State::Done;
        self.job.cancel();
        if let Some(detokenizer) = self.detokenizer.take() {
            let rest = detokenizer.finish();
            match self.stop_strings.push(&rest, &mut self.visible_text) {
                Some(stop) => reason = StopReason::StopString(stop.to_owned()),
                None => self.stop_strings.finish(&mut self.visible_text),
            }
        }
        self.usage.decode_time = self.first_token.map(|t| t.elapsed()).unwrap_or_default();
        Ok(Some(Event::Stop { reason, text: &self.visible_text, usage: self.usage }))
    }
}

/// The job of a generation. It is ended when the generation is dropped.
struct RunningJob {
    events: Arc<EventQueue>,
    handle: Arc<Handle>,
    has_ended: bool,
}

impl RunningJob {
    /// Waits for the next event.
    fn next(&mut self) -> JobEvent {
        let event = self.handle.next(&self.events);
        self.has_ended |= matches!(event, JobEvent::Done(_) | JobEvent::Failed(_));
        event
    }

    /// Ends the job, if it still runs. It does not wait.
    fn cancel(&mut self) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.events.cancel();
            self.handle.send(Command::Cancel);
        }
    }
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        self.cancel();
    }
}

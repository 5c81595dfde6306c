//! One completion of a request.

use std::sync::Arc;
use std::time::Instant;

use gyrus_dialog::Call;
use gyrus_kernels::Sampler;
use gyrus_text::Tokenizer;

use crate::Error;
use crate::cancel::Cancel;
use crate::event::{StopReason, Usage};
use crate::model::Model;
use crate::output::{Output, OutputPart};
use crate::prompt::Dialog;
use crate::repetition::Repetition;
use crate::request::Request;
use crate::serving::{Command, End, EventQueue, Handle, Job, JobEvent, SequenceId, Task, TokenMask};
use crate::speculation::{Speculation, Speculator};

/// The job of a completion, and what is known of it so far.
pub(crate) struct Choice {
    job: RunningJob,
    tokenizer: Option<Arc<Tokenizer>>,
    output: Output,
    repetition: Option<Repetition>,
    cancel: Cancel,
    max_tokens: Option<usize>,
    ignores_end: bool,
    /// The most likely alternatives to the current token.
    top: Vec<(u32, f32)>,
    usage: Usage,
    /// Tokens since the last part that was told.
    since_part: usize,
    /// When the request was sent, and when its events were first waited for.
    sent: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    /// What goes on when the context was shifted, if it may be.
    shift: Option<Shift>,
    state: State,
}

/// What a job needs to go on behind tokens that were dropped.
#[derive(Debug)]
struct Shift {
    id: SequenceId,
    /// Tokens that are kept at the beginning.
    keep: usize,
    sampler: Box<Sampler>,
    ends: Vec<u32>,
    logprobs: Option<usize>,
    client: u64,
    priority: i32,
    tenant: u64,
    deadline: Option<Instant>,
    speculation: Option<Speculation>,
}

/// What has happened to a choice. Texts and calls are those of the choice.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Happening {
    Progress { done: usize },
    Prompt,
    Token { id: u32, logprob: Option<f32> },
    Text,
    Reasoning,
    Call,
    Stop(StopReason),
}

#[derive(Debug)]
enum State {
    /// The prompt is being computed, or there is nothing to compute for this reason.
    Prompt(Option<StopReason>),
    /// The first token is sampled and its event is pending.
    FirstToken {
        id: u32,
        logprob: Option<f32>,
    },
    Tokens,
    /// A token may have completed parts that are to be told, before the completion stops for this reason.
    Parts(Option<StopReason>),
    /// The context is full and may be shifted.
    Full,
    Done,
}

impl Choice {
    /// Starts a completion of a sequence's tokens: that of this number, from 0.
    pub(crate) fn start(
        model: &Model,
        id: SequenceId,
        tokens: &[u32],
        (request, number): (&Request, usize),
        dialog: Option<Dialog>,
        constraint: Option<Box<dyn TokenMask>>,
    ) -> Choice {
        let remaining = model.context().tokens.saturating_sub(tokens.len());
        let wanted = request.max_tokens.map_or(remaining, |n| n.min(remaining));
        let nothing = match (request.max_tokens, remaining) {
            (Some(0), _) => Some(StopReason::MaxTokens),
            _ if request.cancel.is_cancelled() => Some(StopReason::Cancelled),
            (_, 0) => Some(StopReason::ContextFull),
            _ => None,
        };
        let events = Arc::new(EventQueue::new());
        let tokenizer = model.shared_tokenizer();
        let mut shift = None;
        if nothing.is_none() {
            let ends = match &tokenizer {
                Some(tokenizer) if !request.ignores_end() => tokenizer.ends().collect(),
                _ => Vec::new(),
            };
            let seed = request.sampler.seed.wrapping_add(number as u64);
            let sampler = Box::new(Sampler { seed, ..request.sampler.clone() });
            let deadline = request.time_limit.and_then(|limit| Instant::now().checked_add(limit));
            shift = request.context_shift.map(|keep| Shift {
                id,
                keep,
                sampler: sampler.clone(),
                ends: ends.clone(),
                logprobs: request.logprobs,
                client: request.client,
                priority: request.priority,
                tenant: request.tenant,
                deadline,
                speculation: request.speculation.clone(),
            });
            let speculator = speculator(request.speculation.as_ref(), tokens);
            let job = Job {
                tokens: tokens.to_vec(),
                max_len: tokens.len() + wanted,
                task: Task::Generate { sampler, ends, logprobs: request.logprobs, constraint, speculator },
                client: request.client,
                priority: request.priority,
                deadline,
                tenant: request.tenant,
                events: Arc::clone(&events),
            };
            model.handle().start(id, job);
        }
        Choice {
            job: RunningJob {
                events,
                handle: model.shared_handle(),
                // That of choice 0 is the session's.
                own_sequence: (number > 0).then_some(id),
                has_ended: false,
            },
            output: Output::new(tokenizer.clone(), dialog, request.stop.clone()),
            tokenizer,
            repetition: request.stop_at_repetition.then(Repetition::new),
            cancel: request.cancel.clone(),
            max_tokens: request.max_tokens,
            ignores_end: request.ignores_end(),
            top: Vec::new(),
            usage: Usage { prompt_tokens: tokens.len(), ..Usage::default() },
            since_part: 0,
            sent: Instant::now(),
            started: None,
            first_token: None,
            shift,
            state: State::Prompt(nothing),
        }
    }

    /// What has happened, if anything has. It does not wait.
    pub(crate) fn poll(&mut self) -> Result<Option<Happening>, Error> {
        match std::mem::replace(&mut self.state, State::Done) {
            State::Prompt(nothing) => self.prompt(nothing),
            State::FirstToken { id, logprob } => Ok(Some(self.token(id, logprob))),
            State::Tokens => self.step(),
            State::Parts(reason) => match self.part(reason) {
                Some(happening) => Ok(Some(happening)),
                None => self.step(),
            },
            State::Full => {
                self.state = State::Full;
                Ok(None)
            }
            State::Done => Ok(None),
        }
    }

    /// The prompt is computed and the first token sampled, or a chunk of it is computed.
    fn prompt(&mut self, nothing: Option<StopReason>) -> Result<Option<Happening>, Error> {
        self.started.get_or_insert_with(Instant::now);
        let mut next = nothing.map(|reason| self.ended(reason));
        while next.is_none() {
            if self.cancel.is_cancelled() {
                next = Some(self.ended(StopReason::Cancelled));
                break;
            }
            self.state = State::Prompt(None);
            let Some(event) = self.job.try_next() else { return Ok(None) };
            self.state = State::Done;
            match event {
                JobEvent::Admitted { cached } => {
                    self.usage.cached_tokens = cached;
                    self.usage.queue_time = self.sent.elapsed();
                }
                JobEvent::Progress { done } => {
                    self.state = State::Prompt(None);
                    return Ok(Some(Happening::Progress { done }));
                }
                JobEvent::Token { id, logprob, top } => {
                    self.usage.prompt_time = self.started.map(|t| t.elapsed()).unwrap_or_default();
                    self.top = top;
                    next = Some(State::FirstToken { id, logprob });
                }
                JobEvent::Done(end) => next = Some(self.ended(self.reason(end))),
                JobEvent::Failed(error) => return Err(error),
                JobEvent::Logits { .. } => {}
            }
        }
        self.state = next.unwrap_or(State::Done);
        self.first_token = Some(Instant::now());
        Ok(Some(Happening::Prompt))
    }

    fn step(&mut self) -> Result<Option<Happening>, Error> {
        loop {
            if self.cancel.is_cancelled() {
                return Ok(self.stop(StopReason::Cancelled));
            }
            let Some(event) = self.job.try_next() else {
                self.state = State::Tokens;
                return Ok(None);
            };
            match event {
                JobEvent::Token { id, logprob, top } => {
                    self.top = top;
                    return Ok(Some(self.token(id, logprob)));
                }
                JobEvent::Done(end) => {
                    let reason = self.reason(end);
                    if self.shift.is_some() && end == End::Complete && reason == StopReason::ContextFull {
                        self.state = State::Full;
                        return Ok(None);
                    }
                    return Ok(self.stop(reason));
                }
                JobEvent::Failed(error) => return Err(error),
                JobEvent::Admitted { .. } | JobEvent::Progress { .. } | JobEvent::Logits { .. } => {}
            }
        }
    }

    /// The sequence, and how many tokens it keeps, if the choice waits for its full context to be shifted.
    pub(crate) fn full(&self) -> Option<(SequenceId, usize)> {
        let shift = self.shift.as_ref().filter(|_| matches!(self.state, State::Full))?;
        Some((shift.id, shift.keep))
    }

    /// Goes on with these tokens after the context was shifted; without any it stops.
    pub(crate) fn go_on(&mut self, tokens: Option<&[u32]>, context: usize) {
        let (Some(tokens), Some(shift)) = (tokens, &mut self.shift) else {
            self.state = self.ended(StopReason::ContextFull);
            return;
        };
        // Positions come again, and their draws must be others.
        shift.sampler.seed = shift.sampler.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
        let left = self.max_tokens.map_or(usize::MAX, |n| n - self.usage.generated_tokens.min(n));
        let events = Arc::new(EventQueue::new());
        let job = Job {
            tokens: tokens.to_vec(),
            max_len: tokens.len().saturating_add(left).min(context),
            task: Task::Generate {
                sampler: shift.sampler.clone(),
                ends: shift.ends.clone(),
                logprobs: shift.logprobs,
                constraint: None,
                speculator: speculator(shift.speculation.as_ref(), tokens),
            },
            client: shift.client,
            priority: shift.priority,
            deadline: shift.deadline,
            tenant: shift.tenant,
            events: Arc::clone(&events),
        };
        (self.job.events, self.job.has_ended) = (events, false);
        self.job.handle.start(shift.id, job);
        self.state = State::Tokens;
    }

    /// Why the scheduler has ended the job.
    fn reason(&self, end: End) -> StopReason {
        match end {
            End::Complete if self.max_tokens.is_some_and(|n| self.usage.generated_tokens >= n) => {
                StopReason::MaxTokens
            }
            End::Complete | End::Token => StopReason::ContextFull,
            End::Cancelled => StopReason::Cancelled,
            End::Deadline => StopReason::TimeLimit,
        }
    }

    fn token(&mut self, id: u32, logprob: Option<f32>) -> Happening {
        let ends = !self.ignores_end && self.tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.is_end(id));
        if ends {
            // An end token is no part of the completion.
            let reason = StopReason::EndToken(id);
            return self.stop(reason.clone()).unwrap_or(Happening::Stop(reason));
        }
        self.usage.generated_tokens += 1;
        self.since_part += 1;
        let repeats = self.repetition.as_mut().is_some_and(|repetition| repetition.push(id));
        self.output.push(id);
        self.state = match repeats {
            true => self.ended(StopReason::Repetition),
            false => State::Parts(None),
        };
        Happening::Token { id, logprob }
    }

    /// The next part of what the tokens have completed; then the stop, if there is a reason.
    fn part(&mut self, reason: Option<StopReason>) -> Option<Happening> {
        let part = self.output.next();
        let stopped = self.output.stop_string().map(|stop| StopReason::StopString(stop.to_owned()));
        let has_stop_string = stopped.is_some();
        let reason = stopped.or(reason);
        if let Some(part) = part {
            self.state = State::Parts(reason);
            let tokens = std::mem::take(&mut self.since_part);
            if part == OutputPart::Reasoning {
                self.usage.reasoning_tokens += tokens;
            }
            return Some(match part {
                OutputPart::Text => Happening::Text,
                OutputPart::Reasoning => Happening::Reasoning,
                OutputPart::Call => Happening::Call,
            });
        }
        if has_stop_string {
            self.job.cancel();
        }
        let reason = reason?;
        // The end of the reasoning may be white space, which is no part.
        if self.output.ended_in_reasoning() {
            self.usage.reasoning_tokens += std::mem::take(&mut self.since_part);
        }
        self.usage.decode_time = self.first_token.map(|t| t.elapsed()).unwrap_or_default();
        self.state = State::Done;
        Some(Happening::Stop(reason))
    }

    /// Stops: what was held back is told first.
    fn stop(&mut self, reason: StopReason) -> Option<Happening> {
        let State::Parts(reason) = self.ended(reason) else { return None };
        self.part(reason)
    }

    /// Ends the job and the output.
    fn ended(&mut self, reason: StopReason) -> State {
        self.job.cancel();
        self.output.finish();
        State::Parts(Some(reason))
    }

    pub(crate) fn events(&self) -> &Arc<EventQueue> {
        &self.job.events
    }

    /// Whether there are events that were not taken.
    pub(crate) fn has_events(&self) -> bool {
        !self.is_done() && self.job.events.waiting() > 0
    }

    pub(crate) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Whether all that the last token has completed was told.
    pub(crate) fn is_between_tokens(&self) -> bool {
        !matches!(self.state, State::Parts(_))
    }

    pub(crate) fn usage(&self) -> Usage {
        let (drafted_tokens, accepted_tokens) = self.job.events.drafts();
        Usage { drafted_tokens, accepted_tokens, ..self.usage }
    }

    pub(crate) fn top(&self) -> &[(u32, f32)] {
        &self.top
    }

    pub(crate) fn text(&self) -> &str {
        self.output.text()
    }

    pub(crate) fn call(&self) -> Option<&Call> {
        self.output.call()
    }
}

/// The job of a completion. It is ended when the completion is dropped.
struct RunningJob {
    events: Arc<EventQueue>,
    handle: Arc<Handle>,
    /// The sequence, if it ends with the completion.
    own_sequence: Option<SequenceId>,
    has_ended: bool,
}

impl RunningJob {
    /// The next event, if it has come.
    fn try_next(&mut self) -> Option<JobEvent> {
        let event = self.events.pop()?;
        self.has_ended |= matches!(event, JobEvent::Done(_) | JobEvent::Failed(_));
        Some(event)
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
        if let Some(id) = self.own_sequence {
            self.handle.send(Command::Close(id));
        }
    }
}

/// What guesses the tokens that follow these.
fn speculator(speculation: Option<&Speculation>, tokens: &[u32]) -> Option<Box<Speculator>> {
    speculation.map(|how| Box::new(Speculator::new(how.drafter(tokens))))
}

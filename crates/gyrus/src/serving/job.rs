//! Jobs: what clients want of a sequence, and the events that they get.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use gyrus_kernels::Sampler;

use super::masks::TokenMask;
use crate::Error;
use crate::speculation::Speculator;

/// Events that wait for a client before its sequence holds.
pub(crate) const MAX_WAITING_EVENTS: usize = 512;

/// Identifies a sequence: tokens that several jobs continue one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SequenceId(pub(crate) u64);

/// What a client wants.
#[derive(Debug)]
pub(crate) struct Job {
    /// All tokens of the sequence. The cache of those that it had before is used again.
    pub(crate) tokens: Vec<u32>,
    /// The length that the sequence may reach.
    pub(crate) max_len: usize,
    pub(crate) task: Task,
    /// Clients share the device fairly.
    pub(crate) client: u64,
    /// Jobs of a higher priority are admitted first.
    pub(crate) priority: i32,
    /// When the job ends unfinished.
    pub(crate) deadline: Option<Instant>,
    /// Sequences of different tenants do not share cached prefixes.
    pub(crate) tenant: u64,
    pub(crate) events: Arc<EventQueue>,
}

impl Drop for Job {
    /// Whatever becomes of a job, its client is told of an end: it would wait for ever.
    fn drop(&mut self) {
        if !self.events.has_ended() {
            self.events.push(JobEvent::Failed(Error::Panicked("the job was dropped before its end".into())));
        }
    }
}

#[derive(Debug)]
pub(crate) enum Task {
    /// Sample tokens until an end token or the longest length.
    Generate {
        sampler: Box<Sampler>,
        ends: Vec<u32>,
        /// Whether log-probabilities are wanted, and of how many alternatives.
        logprobs: Option<usize>,
        /// What the tokens must keep to. The sequence takes it when the job starts.
        constraint: Option<Box<dyn TokenMask>>,
        /// Guesses tokens that are verified together. The sequence takes it when the job starts.
        speculator: Option<Box<Speculator>>,
    },
    /// Compute all tokens.
    Prefill,
    /// Compute the logits of all tokens.
    Score,
}

/// What a client is told.
#[derive(Debug)]
pub(crate) enum JobEvent {
    /// The job was admitted; this many tokens were cached.
    Admitted { cached: usize },
    /// This many tokens are computed.
    Progress { done: usize },
    /// A token was sampled.
    Token { id: u32, logprob: Option<f32>, top: Vec<(u32, f32)> },
    /// The logits of the tokens from this position on.
    Logits { first: usize, logits: Vec<f32> },
    /// The job has ended.
    Done(End),
    /// The job has failed.
    Failed(Error),
}

/// Why a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The sequence has its longest length, or the task is complete.
    Complete,
    /// An end token was sampled. It is the last token that was sent.
    Token,
    /// The client no longer wants it.
    Cancelled,
    /// Its deadline has passed.
    Deadline,
}

/// The events of one job, from the scheduler to its client.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    inner: Mutex<Waiting>,
    ready: Condvar,
    waiting: AtomicUsize,
    cancelled: AtomicBool,
    /// Whether the last event was sent.
    ended: AtomicBool,
    /// Guesses that were verified, and those that were right.
    drafted: AtomicUsize,
    accepted: AtomicUsize,
}

#[derive(Debug, Default)]
struct Waiting {
    events: VecDeque<JobEvent>,
    /// The task to wake when an event comes.
    waker: Option<Waker>,
}

impl EventQueue {
    /// A queue that does not allocate while the client keeps up.
    pub(crate) fn new() -> EventQueue {
        let events = VecDeque::with_capacity(MAX_WAITING_EVENTS / 4);
        EventQueue { inner: Mutex::new(Waiting { events, waker: None }), ..EventQueue::default() }
    }

    /// Ends the job. The client does not read further events.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// Events that the client has not taken.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts the guesses of a draft, and those that were right.
    pub(crate) fn count_drafts(&self, guesses: usize, right: usize) {
        self.drafted.fetch_add(guesses, Ordering::Relaxed);
        self.accepted.fetch_add(right, Ordering::Relaxed);
    }

    /// Guesses that were verified so far, and those that were right.
    pub(crate) fn drafts(&self) -> (usize, usize) {
        (self.drafted.load(Ordering::Relaxed), self.accepted.load(Ordering::Relaxed))
    }

    /// Whether the job has ended. The client may not have read it.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(crate) fn push(&self, event: JobEvent) {
        if matches!(event, JobEvent::Done(_) | JobEvent::Failed(_)) {
            self.ended.store(true, Ordering::Release);
        }
        let mut inner = self.lock();
        inner.events.push_back(event);
        self.waiting.store(inner.events.len(), Ordering::Relaxed);
        let waker = inner.waker.take();
        drop(inner);
        self.ready.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn pop(&self) -> Option<JobEvent> {
        let mut inner = self.lock();
        let event = inner.events.pop_front();
        self.waiting.store(inner.events.len(), Ordering::Relaxed);
        event
    }

    /// Wakes this task, instead of an earlier one, when the next event comes. `false` if an event waits already.
    pub(crate) fn register(&self, waker: &Waker) -> bool {
        let mut inner = self.lock();
        if !inner.events.is_empty() {
            return false;
        }
        if !inner.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            inner.waker = Some(waker.clone());
        }
        true
    }

    /// Waits until an event comes, [`EventQueue::wake`] is called, or the time is over.
    pub(crate) fn wait(&self, time: Duration) {
        let inner = self.lock();
        if inner.events.is_empty() {
            drop(self.ready.wait_timeout(inner, time));
        }
    }

    /// Ends a wait without an event.
    pub(crate) fn wake(&self) {
        // The lock makes sure that the client is either before its test or in its wait.
        drop(self.lock());
        self.ready.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

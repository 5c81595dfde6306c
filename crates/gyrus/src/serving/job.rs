//! Jobs: what clients want of a sequence, and the events that they get.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gyrus_kernels::Sampler;

use super::masks::TokenMask;
use crate::Error;

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
    events: Mutex<VecDeque<JobEvent>>,
    ready: Condvar,
    waiting: AtomicUsize,
    cancelled: AtomicBool,
}

impl EventQueue {
    /// A queue that does not allocate while the client keeps up.
    pub(crate) fn new() -> EventQueue {
        let events = Mutex::new(VecDeque::with_capacity(MAX_WAITING_EVENTS / 4));
        EventQueue { events, ..EventQueue::default() }
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

    pub(crate) fn push(&self, event: JobEvent) {
        let mut events = self.lock();
        events.push_back(event);
        self.waiting.store(events.len(), Ordering::Relaxed);
        drop(events);
        self.ready.notify_one();
    }

    pub(crate) fn pop(&self) -> Option<JobEvent> {
        let mut events = self.lock();
        let event = events.pop_front();
        self.waiting.store(events.len(), Ordering::Relaxed);
        event
    }

    /// Waits until an event comes, [`EventQueue::wake`] is called, or the time is over.
    pub(crate) fn wait(&self, time: Duration) {
        let events = self.lock();
        if events.is_empty() {
            drop(self.ready.wait_timeout(events, time));
        }
    }

    /// Ends a wait without an event.
    pub(crate) fn wake(&self) {
        // The lock makes sure that the client is either before its test or in its wait.
        drop(self.lock());
        self.ready.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<JobEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! A core with a fake backend, and jobs for it, for tests.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gyrus_kernels::{Backend, Sampler};

use super::core::{Command, Core};
use super::counters::Counters;
use super::fake::{Fake, limits, plan};
use super::fake_faults::{Faults, Log};
use super::job::{End, EventQueue, Job, JobEvent, MAX_WAITING_EVENTS, SequenceId, Task};
use super::scheduler::Settings;
use super::sequence::Sequence;
use crate::Error;

/// Rows of a submission.
pub(super) const CHUNK: usize = 48;

/// A core with a fake backend.
pub(super) struct Served {
    pub(super) core: Core,
    pub(super) commands: Vec<Command>,
    pub(super) counters: Arc<Counters>,
    pub(super) log: Arc<Log>,
}

/// How a job ended, and its tokens.
pub(super) type Ended = (Result<End, Error>, Vec<u32>);

impl Served {
    /// One KV group of this many blocks.
    pub(super) fn new(slots: usize, blocks: usize, records: usize) -> Served {
        Served::with(None, slots, blocks, records, |_| {})
    }

    /// One KV group with a window, or without, and other settings.
    pub(super) fn with(
        window: Option<u32>,
        slots: usize,
        blocks: usize,
        records: usize,
        set: impl Fn(&mut Settings),
    ) -> Served {
        let plan = Arc::new(plan(&[window], records > 0));
        let (counters, log) = (Arc::new(Counters::default()), Arc::new(Log::default()));
        let (of_fakes, of_log) = (Arc::clone(&plan), Arc::clone(&log));
        let open = move || {
            let size = (&[blocks][..], records);
            let plan = Arc::clone(&of_fakes);
            Fake::new(plan, size, limits(slots, 4, false), 1, Faults::default(), Arc::clone(&of_log))
        };
        let mut settings = Settings {
            chunk: CHUNK,
            steps_in_flight: 4,
            running: slots,
            unread_events: MAX_WAITING_EVENTS,
            queue: 100,
            prefix_cache: true,
            checkpoint_interval: 64,
            strict: false,
        };
        set(&mut settings);
        let (first, of_rebuild) = (Box::new(open()), Arc::clone(&log));
        let rebuild = Box::new(move || match of_rebuild.is_gone.load(Ordering::Relaxed) {
            true => Err(Error::Request("no device".into())),
            false => Ok(Box::new(open()) as Box<dyn Backend>),
        });
        let core = Core::new(first, plan, settings, Arc::clone(&counters), rebuild);
        Served { core, commands: Vec::new(), counters, log }
    }

    /// Starts a job that samples tokens, or reads its prompt only.
    pub(super) fn start(&mut self, id: u64, prompt: Vec<u32>, tokens: usize) -> Arc<EventQueue> {
        let (job, events) = job(prompt, tokens);
        self.commands.push(Command::Start(SequenceId(id), job));
        events
    }

    pub(super) fn tick(&mut self) {
        self.core.tick(&mut self.commands, Duration::ZERO);
    }

    /// Runs until a job ends.
    pub(super) fn end(&mut self, events: &EventQueue) -> Ended {
        let mut tokens = Vec::new();
        for _ in 0..10_000 {
            match events.pop() {
                None => self.tick(),
                Some(JobEvent::Token { id, .. }) => tokens.push(id),
                Some(JobEvent::Done(end)) => return (Ok(end), tokens),
                Some(JobEvent::Failed(error)) => return (Err(error), tokens),
                Some(_) => {}
            }
        }
        panic!("a job does not end");
    }

    /// Starts a job and runs it.
    pub(super) fn run(&mut self, id: u64, prompt: Vec<u32>, tokens: usize) -> Ended {
        let events = self.start(id, prompt, tokens);
        self.end(&events)
    }

    /// Runs until a job has given a token.
    pub(super) fn begin(&mut self, id: u64, prompt: Vec<u32>, tokens: usize) -> Arc<EventQueue> {
        let events = self.start(id, prompt, tokens);
        while !matches!(events.pop(), Some(JobEvent::Token { .. })) {
            assert!(!events.has_ended());
            self.tick();
        }
        events
    }

    /// The sequence of this name.
    pub(super) fn sequence(&self, id: u64) -> &Sequence {
        let at = self.core.scheduler.by_id[&SequenceId(id)];
        self.core.scheduler.sequences[at].as_ref().unwrap()
    }

    pub(super) fn rebuilds(&self) -> u64 {
        self.counters.read().rebuilds
    }
}

/// A job that samples tokens, or reads its prompt only.
pub(super) fn job(prompt: Vec<u32>, tokens: usize) -> (Job, Arc<EventQueue>) {
    let events = Arc::new(EventQueue::new());
    let sampler = Box::new(Sampler::default());
    let generate =
        Task::Generate { sampler, ends: Vec::new(), logprobs: None, constraint: None, speculator: None };
    let job = Job {
        max_len: prompt.len() + tokens,
        tokens: prompt,
        task: if tokens > 0 { generate } else { Task::Prefill },
        client: 0,
        priority: 0,
        deadline: None,
        tenant: 0,
        events: Arc::clone(&events),
    };
    (job, events)
}

pub(super) fn is_complete((ended, tokens): &Ended, expected: usize) -> bool {
    matches!(ended, Ok(End::Complete)) && tokens.len() == expected
}

pub(super) fn prompt(seed: u32, length: u32) -> Vec<u32> {
    (0..length).map(|i| (i * 7 + seed * 13) % 97).collect()
}

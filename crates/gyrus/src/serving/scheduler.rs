//! The scheduler: which sequences run, and what each submission computes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gyrus_kernels::{KV_BLOCK, Limits, LogitRows, MAX_ENDS, Plan, Slots};

use super::ahead::Lead;
use super::counters::Counters;
use super::drafts::FlightDraft;
use super::job::{End, Job, JobEvent, SequenceId, Task};
use super::kv::{KvCache, SequenceKv};
use super::masks::Masks;
use super::mirostat::MirostatTrail;
use super::pace::Pace;
use super::queue::Queue;
use super::records::{RecordPool, SequenceState};
use super::sequence::{Phase, Running, Sequence};
use crate::Error;

/// How a scheduler works.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// The most rows of prompts in a submission.
    pub(crate) chunk: usize,
    /// The most decode steps in flight.
    pub(crate) steps_in_flight: usize,
    /// The most sequences that run at once.
    pub(crate) running: usize,
    /// Events that a client leaves unread before its sequence holds.
    pub(crate) unread_events: usize,
    /// The most jobs that wait.
    pub(crate) queue: usize,
    /// Whether sequences share the cache of common prefixes.
    pub(crate) prefix_cache: bool,
    /// Positions from one checkpoint of a state to the next, a multiple of the block size.
    pub(crate) checkpoint_interval: usize,
    /// Whether a cached prefix is used only if its rows were computed as the sequence would compute them.
    pub(crate) strict: bool,
}

/// Decides what runs. It owns all sequences and the blocks of the KV cache, and is the only user of the backend's slots.
pub(crate) struct Scheduler {
    pub(super) plan: Arc<Plan>,
    pub(super) settings: Settings,
    pub(super) limits: Limits,
    pub(super) kv: KvCache,
    pub(super) records: RecordPool,
    pub(super) sequences: Vec<Option<Sequence>>,
    pub(super) by_id: HashMap<SequenceId, usize>,
    vacant: Vec<usize>,
    /// The sequence of each slot, an index into `sequences`.
    pub(super) slots: Vec<Option<usize>>,
    pub(super) queue: Queue,
    pub(super) flights: VecDeque<Flight>,
    pub(super) pace: Pace,
    pub(super) masks: Masks,
    pub(super) counters: Arc<Counters>,
    /// Jobs that were admitted, and admissions: a job that was preempted is admitted again.
    pub(super) admitted: u64,
    pub(super) epoch: u64,
    clock: u64,
    /// The sequence that is being admitted.
    pub(super) admitting: Option<usize>,
    /// How often the device was lost, and with it what the cache had.
    pub(super) losses: u64,
    /// How often a sequence was shifted.
    pub(super) shifts: u64,
    /// When the last submission was complete.
    pub(super) completed: Option<Instant>,
    /// Whether the device computes the rows of the next step.
    pub(super) ahead: bool,
    pub(super) lead: Lead,
}

/// Whether rows of a step without other work were computed before it was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ahead {
    No,
    Yes,
    /// They were complete when it was submitted, so that the device had nothing to do.
    Waited,
}

/// A submission that has not landed.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) submission: u64,
    pub(super) at: Instant,
    /// Whether the rows of its first step were computed before.
    pub(super) ahead: Ahead,
    pub(super) chunks: Vec<FlightChunk>,
    pub(super) chunks_landed: bool,
    pub(super) drafts: Vec<FlightDraft>,
    pub(super) drafts_landed: bool,
    /// Rows of chunks, and of drafts.
    pub(super) rows: usize,
    /// The mean position at which the rows of chunks begin.
    pub(super) position: usize,
    pub(super) draft_rows: usize,
    /// Sequences that take part in its steps.
    pub(super) decoding: usize,
    pub(super) steps: usize,
    pub(super) steps_left: usize,
    /// Those of them that come after the chunks.
    pub(super) steps_after: usize,
}

/// A chunk in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlightChunk {
    pub(super) sequence: usize,
    pub(super) epoch: u64,
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) logits: LogitRows,
    /// The record of the checkpoint at its end.
    pub(super) checkpoint: Option<u32>,
}

impl FlightChunk {
    /// The mean position at which the rows of chunks begin.
    pub(super) fn position<'c>(chunks: impl Iterator<Item = &'c FlightChunk>) -> usize {
        let add = |(rows, sum), chunk: &FlightChunk| (rows + chunk.count, sum + chunk.count * chunk.first);
        let (rows, sum) = chunks.fold((0, 0), add);
        sum.checked_div(rows).unwrap_or(0)
    }
}

impl Scheduler {
    pub(crate) fn new(
        plan: Arc<Plan>,
        (blocks, records): (&[usize], usize),
        limits: Limits,
        settings: Settings,
        counters: Arc<Counters>,
    ) -> Scheduler {
        let strict = settings.strict && limits.kinds_differ;
        Scheduler {
            kv: KvCache::new(plan.kv.clone(), blocks, settings.prefix_cache, strict),
            records: RecordPool::new(
                !plan.delta.is_empty(),
                records,
                limits.asynchronous,
                // Without the cache no checkpoint could be found.
                settings.prefix_cache.then_some(settings.checkpoint_interval),
            ),
            plan,
            settings,
            limits,
            sequences: Vec::new(),
            by_id: HashMap::new(),
            vacant: Vec::new(),
            slots: vec![None; limits.slots],
            queue: Queue::default(),
            // Steps in flight do not make it grow.
            flights: VecDeque::with_capacity(limits.steps + 4),
            pace: Pace::default(),
            masks: Masks::new(),
            counters,
            admitted: 0,
            epoch: 0,
            clock: 0,
            admitting: None,
            losses: 0,
            shifts: 0,
            completed: None,
            ahead: false,
            lead: Lead::default(),
        }
    }

    /// Whether there is nothing to compute.
    pub(crate) fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.queue.is_empty() && self.slots.iter().all(Option::is_none)
    }

    /// Steps and chunks in flight.
    pub(crate) fn has_flights(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Starts a job on a sequence, which is made if it does not exist. A job that it has is ended.
    pub(crate) fn start(&mut self, id: SequenceId, job: Job, slots: &mut dyn Slots) {
        let at = match self.by_id.get(&id) {
            Some(at) => *at,
            None => self.insert(id),
        };
        self.end(at, End::Cancelled, slots);
        self.clock += 1;
        let (longest, waiting) = (self.longest(), self.queue.len());
        let chunk = self.chunk();
        let Scheduler {
            sequences, kv, records, plan, queue, settings, counters, clock, masks, limits, ..
        } = self;
        let Some(sequence) = &mut sequences[at] else { return };
        (sequence.used, sequence.losses) = (*clock, 0);
        counters.requests(1);
        // Refused before anything is computed or dropped.
        let positions = job.tokens.len() + 1;
        let group = (0..kv.pools().len()).find(|group| {
            kv.most_held(*group, positions.min(job.max_len.max(1)), chunk) > kv.pools()[*group].len()
        });
        if let Some(group) = group {
            let needed = kv.most_held(group, positions, chunk);
            let error = Error::CacheFull { needed, free: kv.pools()[group].len() };
            job.events.push(JobEvent::Failed(error));
            return;
        }
        if waiting >= settings.queue {
            job.events.push(JobEvent::Failed(Error::QueueFull { waiting, most: settings.queue }));
            return;
        }
        let mut job = job;
        if let Task::Generate { constraint, logprobs, .. } = &mut job.task
            && let Some(state) = constraint.take()
        {
            // A token that is not sampled has no log-probability. A slot that decodes writes records of its state while it
            // holds, so that no chunk can go on from them.
            let forces = logprobs.is_none() && plan.delta.is_empty();
            match masks.begin(at, state, plan.vocab, forces) {
                Ok(mask) => sequence.mask = Some(mask),
                Err(error) => return job.events.push(JobEvent::Failed(error)),
            }
        }
        if let Task::Generate { speculator, sampler, .. } = &mut job.task {
            // A state cannot be taken back, neither a layer's nor a sampler's.
            let can_draft = plan.delta.is_empty() && sampler.is_plain();
            sequence.speculator = speculator.take().filter(|_| can_draft);
        }
        job.max_len = job.max_len.min(longest).max(job.tokens.len().min(longest));
        // The cache of the common prefix is kept. Some ropes choose their frequencies by the longest length: if they
        // differ, nothing is, so that the output depends on the request alone.
        let length = u32::try_from(job.max_len).unwrap_or(u32::MAX);
        let class = |len: u32| plan.ropes.iter().map(move |rope| rope.length_class(len as usize));
        let is_own = sequence.tenant == job.tenant || sequence.has_own_chain;
        let same = class(length).eq(class(sequence.length)) && is_own;
        if !same || sequence.kv.is_new() {
            kv.release(&mut sequence.kv);
            let salt = class(length).map(|class| class as u64).chain([job.tenant]);
            let capacity = job.max_len.max(job.tokens.len());
            sequence.kv = SequenceKv::new(kv.groups().len(), capacity, salt);
            sequence.length = length;
            sequence.has_own_chain = false;
        }
        sequence.tenant = job.tenant;
        let common = sequence.common(&job.tokens);
        let sampler = match &mut job.task {
            Task::Generate { sampler, .. } => Some(&mut **sampler),
            Task::Prefill | Task::Score => None,
        };
        sequence.mirostat.begin(sampler, common, job.tokens.len());
        // The last token is computed again, since its logits are needed.
        let keep = match job.task {
            Task::Generate { .. } => common.min(job.tokens.len().saturating_sub(1)),
            Task::Prefill => common,
            Task::Score => 0,
        };
        // The last token of a prompt is computed as those that follow it.
        sequence.generated_from = match job.task {
            Task::Generate { .. } if limits.kinds_differ => job.tokens.len().saturating_sub(1),
            _ => usize::MAX,
        };
        kv.truncate(&mut sequence.kv, keep);
        // A state cannot be shortened. A checkpoint is searched when the job is admitted.
        if !sequence.state.is_at(sequence.kv.len()) {
            records.release(&mut sequence.state);
        }
        sequence.kv.reserve_capacity(job.max_len.max(job.tokens.len()));
        sequence.tokens.truncate(common);
        sequence.tokens.extend_from_slice(&job.tokens[common..]);
        sequence.tokens.reserve(job.max_len.saturating_sub(sequence.tokens.len()));
        let cost = sequence.tokens.len() - sequence.kv.len();
        queue.push(id, job.client, job.priority, cost);
        job.tokens = Vec::new();
        sequence.job = Some(job);
        sequence.phase = Phase::Waiting { order: None, announced: false };
    }

    /// Removes a sequence and frees its blocks.
    pub(crate) fn close(&mut self, id: SequenceId, slots: &mut dyn Slots) {
        let Some(&at) = self.by_id.get(&id) else { return };
        if let Some(sequence) = &mut self.sequences[at] {
            sequence.closed = true;
        }
        self.end(at, End::Cancelled, slots);
        self.remove(at);
    }

    /// Adds a sequence without a job that has these blocks and this state, in place of one of this name. `length` and
    /// tenant are those that its blocks were computed for.
    pub(super) fn adopt_sequence(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        kv: SequenceKv,
        state: SequenceState,
        (length, tenant): (u32, u64),
        has_own_chain: bool,
    ) {
        if let Some(&at) = self.by_id.get(&id) {
            self.remove(at);
        }
        self.clock += 1;
        let at = self.insert(id);
        if let Some(sequence) = &mut self.sequences[at] {
            sequence.tokens.extend_from_slice(tokens);
            (sequence.kv, sequence.state) = (kv, state);
            (sequence.length, sequence.tenant, sequence.has_own_chain) = (length, tenant, has_own_chain);
        }
    }

    fn insert(&mut self, id: SequenceId) -> usize {
        let sequence = Sequence {
            id,
            tokens: Vec::new(),
            kv: SequenceKv::default(),
            state: SequenceState::default(),
            length: 0,
            tenant: 0,
            has_own_chain: false,
            job: None,
            phase: Phase::Idle,
            mask: None,
            mirostat: MirostatTrail::default(),
            speculator: None,
            generated_from: usize::MAX,
            used: self.clock,
            losses: 0,
            closed: false,
        };
        let at = self.vacant.pop().unwrap_or_else(|| {
            self.sequences.push(None);
            self.sequences.len() - 1
        });
        self.sequences[at] = Some(sequence);
        self.by_id.insert(id, at);
        at
    }

    pub(super) fn remove(&mut self, at: usize) {
        let Some(mut sequence) = self.sequences[at].take() else { return };
        self.kv.release(&mut sequence.kv);
        self.records.release(&mut sequence.state);
        self.by_id.remove(&sequence.id);
        self.vacant.push(at);
    }

    /// The most positions of a sequence that the cache can hold.
    pub(crate) fn longest(&self) -> usize {
        let pools = self.kv.pools().iter().zip(self.kv.groups());
        let unlimited =
            pools.filter(|(_, group)| group.window.is_none()).map(|(pool, _)| pool.len() * KV_BLOCK);
        unlimited.min().unwrap_or(usize::MAX)
    }

    pub(super) fn chunk(&self) -> usize {
        self.settings.chunk.min(self.limits.rows)
    }

    /// Ends the job of a sequence, if it has one.
    pub(super) fn end(&mut self, at: usize, end: End, slots: &mut dyn Slots) {
        self.finish(at, JobEvent::Done(end), slots);
    }

    /// Ends the job of a sequence with an event.
    pub(super) fn finish(&mut self, at: usize, event: JobEvent, slots: &mut dyn Slots) {
        let is_exact = self.holds_at_end(at, &event);
        let Some(sequence) = &mut self.sequences[at] else { return };
        match sequence.phase {
            Phase::Idle => return,
            Phase::Waiting { .. } => self.queue.remove(sequence.id),
            Phase::Running(Running { slot, .. }) => {
                slots.close(slot);
                self.slots[slot] = None;
                self.kv.trim(&mut sequence.kv, 0);
                match is_exact {
                    true => sequence.state.set(sequence.kv.len()),
                    false => sequence.state.lose(),
                }
                self.records.rest(&mut sequence.state);
            }
        }
        sequence.phase = Phase::Idle;
        sequence.tell(event);
        (sequence.job, sequence.mask, sequence.speculator) = (None, None, None);
        self.clock += 1;
        sequence.used = self.clock;
    }

    /// Whether no step in flight changes the state of a sequence whose job ends so: there is none, or its slot holds.
    fn holds_at_end(&self, at: usize, event: &JobEvent) -> bool {
        let Some(sequence) = &self.sequences[at] else { return false };
        let ends = match sequence.job.as_ref().map(|job| &job.task) {
            Some(Task::Generate { ends, .. }) => ends.len(),
            _ => 0,
        };
        match event {
            JobEvent::Done(End::Complete) => true,
            // The device knows the first end tokens only.
            JobEvent::Done(End::Token) if ends <= MAX_ENDS => true,
            JobEvent::Done(_) => self.in_flight(sequence) == 0,
            _ => false,
        }
    }

    /// Ends jobs whose clients have gone or whose deadlines have passed.
    pub(crate) fn expire(&mut self, now: Instant, slots: &mut dyn Slots) {
        for at in 0..self.sequences.len() {
            let Some(job) = self.sequences[at].as_ref().and_then(|sequence| sequence.job.as_ref()) else {
                continue;
            };
            if job.events.is_cancelled() {
                self.end(at, End::Cancelled, slots);
            } else if job.deadline.is_some_and(|deadline| deadline <= now) {
                self.end(at, End::Deadline, slots);
            }
        }
    }

    /// How long a tick may wait for the device.
    pub(crate) fn next_deadline(&self, now: Instant) -> Option<Duration> {
        let jobs = self.sequences.iter().flatten().filter_map(|sequence| sequence.job.as_ref());
        jobs.filter_map(|job| job.deadline).min().map(|deadline| deadline.saturating_duration_since(now))
    }
}

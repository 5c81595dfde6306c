//! What happens when submissions land.

use std::time::{Duration, Instant};

use gyrus_kernels::{BackendError, Landed, LogitRows, Outcome, RowKind, Slots, TopTokens};

use super::job::{End, JobEvent, Task};
use super::scheduler::{Ahead, Flight, Scheduler};
use super::sequence::{Decodes, Running};
use crate::Error;

/// What has landed, to be dealt with when the backend is no longer borrowed.
#[derive(Debug, Default)]
pub(crate) struct Landing {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) top: Vec<(u32, f32)>,
    logits: Vec<f32>,
    /// For each row of logits whether it has a value that is not finite.
    not_finite: Vec<bool>,
}

impl Landing {
    fn set(&mut self, outcomes: &[Outcome], top: TopTokens<'_>) {
        self.outcomes.clear();
        self.outcomes.extend_from_slice(outcomes);
        self.top.clear();
        self.top.extend_from_slice(top.entries);
    }
}

/// Flights that were complete when the scheduler looked. They may have ended long before, while it was recording.
#[derive(Debug, Default)]
struct Burst {
    /// When the first of them began.
    begun: Option<Instant>,
    /// Steps of flights without chunks and drafts, and the sequences of the last.
    steps: usize,
    sequences: usize,
}

/// The kind of a part that has landed.
enum Part {
    Chunks,
    Drafts,
    Step,
}

impl Scheduler {
    /// Waits for the next part of a submission, and deals with all that have landed. Returns whether any has.
    pub(crate) fn land(
        &mut self,
        landing: &mut Landing,
        wait: Duration,
        slots: &mut dyn Slots,
    ) -> Result<bool, BackendError> {
        let mut wait = wait;
        let mut any = false;
        let mut burst = Burst::default();
        while !self.flights.is_empty() {
            let part = match slots.poll(wait)? {
                None => break,
                Some(Landed::Chunks { logits, .. }) => {
                    let vocab = self.plan.vocab.max(1);
                    let rows = logits.chunks_exact(vocab);
                    landing.not_finite.clear();
                    landing.not_finite.extend(rows.map(|row| !row.iter().all(|logit| logit.is_finite())));
                    landing.logits.clear();
                    // A prefill only computes them.
                    if self.scores() {
                        landing.logits.extend_from_slice(logits);
                    }
                    Part::Chunks
                }
                Some(Landed::Drafts { outcomes, top, .. }) => {
                    landing.set(outcomes, top);
                    Part::Drafts
                }
                Some(Landed::Step { outcomes, top, .. }) => {
                    landing.set(outcomes, top);
                    Part::Step
                }
            };
            any = true;
            wait = Duration::ZERO;
            match part {
                Part::Chunks => self.chunks_landed(landing, slots),
                Part::Drafts => self.drafts_landed(landing, slots),
                Part::Step => self.step_landed(landing, slots),
            }
            self.complete_flight(&mut burst);
        }
        if let Some(begun) = burst.begun.filter(|_| burst.steps > 0) {
            let time = Instant::now().saturating_duration_since(begun);
            self.pace.step_took(time / burst.steps as u32, burst.sequences, self.limits);
        }
        Ok(any)
    }

    /// Removes the first flight if all of it has landed, and learns from its time.
    fn complete_flight(&mut self, burst: &mut Burst) {
        let done = |flight: &Flight| flight.chunks_landed && flight.drafts_landed && flight.steps_left == 0;
        if !self.flights.front().is_some_and(done) {
            return;
        }
        let Some(flight) = self.flights.pop_front() else { return };
        let now = Instant::now();
        // Rows that were computed ahead were begun when the step before them was complete.
        let begun = match self.completed {
            Some(completed) if flight.ahead == Ahead::No => completed.max(flight.at),
            Some(completed) => completed,
            None => flight.at,
        };
        let time = now.saturating_duration_since(begun);
        self.completed = Some(now);
        // When one of several began is not known, only what steps took on average.
        let is_first = burst.begun.is_none();
        burst.begun.get_or_insert(begun);
        match (flight.draft_rows, flight.rows) {
            _ if flight.ahead == Ahead::Waited => {}
            (0, 0) => {
                burst.steps += flight.steps;
                burst.sequences = flight.decoding;
            }
            _ if !is_first => {}
            (0, rows) => self.pace.chunk_took((rows, flight.position), flight.steps, time),
            (rows, _) => self.pace.drafts_took(rows, flight.steps, flight.decoding, self.limits, time),
        }
    }

    /// Whether a chunk of the submission that lands next is of a job that wants logits.
    fn scores(&self) -> bool {
        let next = self.flights.iter().find(|flight| !flight.chunks_landed);
        next.is_some_and(|flight| flight.chunks.iter().any(|chunk| chunk.logits == LogitRows::All))
    }

    fn chunks_landed(&mut self, landing: &Landing, slots: &mut dyn Slots) {
        let Some(flight) = self.flights.iter_mut().find(|flight| !flight.chunks_landed) else { return };
        flight.chunks_landed = true;
        // Fewer steps may have run among the chunks than could.
        let unused = flight.steps_left.saturating_sub(flight.steps_after);
        flight.steps -= unused;
        flight.steps_left -= unused;
        let chunks = std::mem::take(&mut flight.chunks);
        let vocab = self.plan.vocab.max(1);
        let mut row = 0;
        for chunk in chunks {
            let own = match chunk.logits {
                LogitRows::None => 0,
                LogitRows::Last => 1,
                LogitRows::All => chunk.count,
            };
            let first_row = row;
            row += own;
            let at = chunk.sequence;
            // The job may have ended or been preempted meanwhile.
            let end = chunk.first + chunk.count;
            let running = self.sequences[at]
                .as_mut()
                .filter(|sequence| sequence.running().is_some_and(|running| running.epoch == chunk.epoch));
            let Some(sequence) = running else {
                if let Some(record) = chunk.checkpoint {
                    self.records.add_checkpoint(record, end, None);
                }
                continue;
            };
            if let Some(running) = sequence.running_mut() {
                running.landed = end;
            }
            self.kv.register(&mut sequence.kv, &sequence.tokens, end);
            if let Some(record) = chunk.checkpoint {
                self.records.add_checkpoint(record, end, sequence.kv.label(&sequence.tokens, end));
            }
            let all = sequence.to_read();
            let Some(job) = &sequence.job else { continue };
            self.queue.charge(job.client, chunk.count);
            let bad = landing.not_finite[first_row.min(landing.not_finite.len())..]
                .iter()
                .take(own)
                .position(|bad| *bad);
            if let Some(bad) = bad {
                let position = end - own + bad;
                let error = Error::NotFinite { position, precision: self.plan.precision };
                self.finish(at, JobEvent::Failed(error), slots);
                continue;
            }
            match job.task {
                Task::Score => {
                    let logits = landing.logits.get(first_row * vocab..(first_row + own) * vocab);
                    let logits = logits.unwrap_or_default().to_vec();
                    sequence.tell(JobEvent::Logits { first: chunk.first, logits });
                }
                _ if end < all => sequence.tell(JobEvent::Progress { done: end }),
                _ => {}
            }
            if end == all && !matches!(job.task, Task::Generate { .. }) {
                self.end(at, End::Complete, slots);
            }
        }
    }

    fn step_landed(&mut self, landing: &Landing, slots: &mut dyn Slots) {
        let Some(flight) = self.flights.iter_mut().find(|flight| flight.steps_left > 0) else { return };
        flight.steps_left -= 1;
        let submission = flight.submission;
        let top = TopTokens { entries: &landing.top };
        self.counters.steps(1);
        for (slot, outcome) in landing.outcomes.iter().enumerate() {
            let Some(at) = self.slots.get(slot).copied().flatten() else { continue };
            let Some(sequence) = &mut self.sequences[at] else { continue };
            match sequence.running() {
                Some(Running { decodes: Decodes::Since(first), .. }) if *first <= submission => {}
                Some(Running { decodes: Decodes::Stops { since, last }, .. })
                    if (*since..=*last).contains(&submission) => {}
                _ => continue,
            }
            let (id, logprob, mu) = match outcome {
                Outcome::Held => continue,
                Outcome::NotFinite => {
                    let (position, precision) = (sequence.tokens.len() - 1, self.plan.precision);
                    let error = Error::NotFinite { position, precision };
                    self.finish(at, JobEvent::Failed(error), slots);
                    continue;
                }
                Outcome::Token { id, logprob, mu } => (*id, *logprob, *mu),
            };
            self.token_landed(at, id, (logprob, mu), |n| top.of(slot, n), slots);
            self.mask_landed(at, slots);
        }
    }

    /// Appends a token that was sampled to its sequence. Returns whether the job goes on.
    pub(super) fn token_landed<'t>(
        &mut self,
        at: usize,
        id: u32,
        (logprob, mu): (f32, f32),
        top: impl FnOnce(usize) -> &'t [(u32, f32)],
        slots: &mut dyn Slots,
    ) -> bool {
        let Some(sequence) = &mut self.sequences[at] else { return false };
        let kind = if self.limits.kinds_differ { RowKind::Generated } else { RowKind::Prompt };
        sequence.kv.computed(1, kind);
        sequence.tokens.push(id);
        let landed = sequence.kv.len();
        if let Some(running) = sequence.running_mut() {
            running.landed = landed;
            running.host_step = None;
        }
        if landed.is_multiple_of(gyrus_kernels::KV_BLOCK) {
            self.kv.register(&mut sequence.kv, &sequence.tokens, landed);
        }
        if let Some(speculator) = &mut sequence.speculator {
            speculator.landed(id);
        }
        if let Some(mask) = &mut sequence.mask {
            mask.landed(id);
        }
        let Some(job) = &mut sequence.job else { return false };
        let Task::Generate { ends, logprobs, sampler, .. } = &mut job.task else { return false };
        sequence.mirostat.landed(sampler, mu);
        self.queue.charge(job.client, 1);
        self.counters.tokens(1);
        let top = logprobs.map_or_else(Vec::new, |n| top(n).to_vec());
        let logprob = logprobs.map(|_| logprob);
        let (ended, full) = (ends.contains(&id), sequence.tokens.len() >= job.max_len);
        job.events.push(JobEvent::Token { id, logprob, top });
        if ended {
            self.end(at, End::Token, slots);
        } else if full {
            self.end(at, End::Complete, slots);
        }
        !ended && !full
    }
}

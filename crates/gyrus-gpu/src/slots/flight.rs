//! Submissions in flight, and their results.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use gyrus_kernels::call::{SELECT_HELD, SELECT_NOT_FINITE};
use gyrus_kernels::{BackendError, MAX_TOP, Outcome};

use super::GROUPS;
use super::host::HostSlots;
use super::select::{RingSteps, logprobs};
use super::slot::Slot;
use crate::buffers::MATVEC_ROWS;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::recorder::{Recorder, Submission};

/// Submissions in flight, in order.
#[derive(Debug)]
pub(super) struct Flights {
    queue: VecDeque<Flight>,
    /// When the device last completed a submission, or was given the first one.
    progress: Instant,
    /// The submission whose parts are being returned.
    landed: Option<Landing>,
    /// What it has copied to the host.
    words: Vec<u32>,
    /// The logits of its chunks, if they were read before.
    logits: Vec<f32>,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) top: Vec<(u32, f32)>,
}

/// Submitted commands.
#[derive(Debug)]
struct Flight {
    submission: Submission,
    /// What lands with them; nothing if more commands of the same submission follow.
    landing: Option<Landing>,
    logits: Vec<f32>,
}

/// What a submission computes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Landing {
    number: u64,
    /// Whether it has chunks that were not returned yet.
    chunks: bool,
    steps: u32,
    /// Steps that were returned.
    returned: u32,
    /// Logits of its chunks that are copied to the host; 0 if they were read before, or there are none.
    pub(super) logits: usize,
    pub(super) groups: [GroupSteps; GROUPS],
    /// Its drafts, if they were not returned yet.
    pub(super) drafts: Option<DraftRows>,
}

/// The rows of drafts in a submission.
#[derive(Debug, Clone, Copy)]
pub(super) struct DraftRows {
    pub(super) rows: usize,
    /// A bit for each row that wants log-probabilities.
    pub(super) wants_logprobs: u16,
    /// The number of their step, and the steps of its rings that are copied.
    pub(super) step: u32,
    pub(super) copied: RingSteps,
    /// Where their rings of tokens and of log-probabilities are among the words that were copied.
    pub(super) ring: usize,
    pub(super) logprobs: usize,
}

/// The steps of a group in a submission.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GroupSteps {
    /// A bit for each slot that decodes.
    pub(super) decoding: u16,
    /// The number of the first step.
    pub(super) first: u32,
    /// The steps of its rings that are copied.
    pub(super) copied: RingSteps,
    /// Where its ring of tokens is among the words that were copied.
    pub(super) ring: usize,
    /// A bit for each slot that wants log-probabilities, and where their ring is.
    pub(super) wants_logprobs: u16,
    pub(super) logprobs: usize,
    /// A bit for each slot that the host samples, and where their logits are.
    pub(super) hosted: u16,
    pub(super) kept: usize,
}

/// What the host knows of slots when it reads a step.
pub(super) struct HostState<'a> {
    pub(super) slots: &'a mut [Slot],
    pub(super) hosts: &'a mut HostSlots,
    pub(super) vocab: usize,
    /// The number of the next submission.
    pub(super) next: u64,
}

/// A part that can be returned.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part {
    Chunks(u64),
    Drafts(u64),
    Step(u64),
}

impl Default for Flights {
    fn default() -> Flights {
        Flights {
            queue: VecDeque::new(),
            progress: Instant::now(),
            landed: None,
            words: Vec::new(),
            logits: Vec::new(),
            outcomes: Vec::new(),
            top: Vec::new(),
        }
    }
}

impl Flights {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Submissions in flight that return something.
    pub(super) fn landings(&self) -> usize {
        self.queue.iter().filter(|flight| flight.landing.is_some()).count()
    }

    /// Steps that were submitted and not returned.
    pub(super) fn steps(&self) -> usize {
        let landings = self.queue.iter().filter_map(|flight| flight.landing.as_ref()).chain(&self.landed);
        landings.map(|landing| (landing.steps - landing.returned) as usize).sum()
    }

    /// The logits of the chunks that were returned last.
    pub(super) fn logits(&self) -> &[f32] {
        match self.landed.map_or(0, |landing| landing.logits) {
            0 => &self.logits,
            count => self.words.get(..count).map_or(&[], bytemuck::cast_slice),
        }
    }

    /// Adds commands that were submitted.
    pub(super) fn push(&mut self, submission: Submission, landing: Option<Landing>, logits: Vec<f32>) {
        if self.queue.is_empty() {
            self.progress = Instant::now();
        }
        self.queue.push_back(Flight { submission, landing, logits });
    }

    /// Whether the device has completed everything that was submitted.
    pub(super) fn are_done(&mut self, gpu: &Gpu, recorder: &mut Option<Recorder>) -> Result<bool, GpuError> {
        match (self.queue.back_mut(), recorder) {
            (Some(last), Some(recorder)) => recorder.is_done(gpu, &mut last.submission, Duration::ZERO),
            _ => Ok(true),
        }
    }

    /// Waits until the device has completed everything in flight. Results stay to be returned.
    pub(super) fn settle(&mut self, gpu: &Gpu, recorder: &mut Option<Recorder>) -> Result<(), BackendError> {
        let Some(recorder) = recorder else { return Ok(()) };
        for flight in &mut self.queue {
            if !recorder.is_done(gpu, &mut flight.submission, gpu.patience())? {
                return Err(timed_out(gpu));
            }
        }
        Ok(())
    }

    /// Waits for everything in flight, and discards it.
    pub(super) fn discard(&mut self, gpu: &Gpu, recorder: &mut Option<Recorder>) {
        for mut flight in self.queue.drain(..) {
            let Some(recorder) = recorder.as_mut() else { continue };
            // If the device is lost, the next call returns that. A submission that is dropped waits, too.
            if let Ok(true) = recorder.is_done(gpu, &mut flight.submission, gpu.patience()) {
                let _ = recorder.finish(gpu, flight.submission, &mut self.words);
            }
        }
        self.landed = None;
    }

    /// The next part, after waiting for it at most this long.
    pub(super) fn next(
        &mut self,
        gpu: &Gpu,
        recorder: &mut Option<Recorder>,
        state: &mut HostState<'_>,
        wait: Duration,
    ) -> Result<Option<Part>, BackendError> {
        let (deadline, patience) = (Instant::now().checked_add(wait), gpu.patience());
        loop {
            if let Some(part) = self.landed.as_mut().and_then(Landing::next) {
                match (part, &mut self.landed) {
                    (Part::Step(_), Some(landing)) => {
                        let landing = *landing;
                        self.read_step(&landing, state);
                    }
                    (Part::Drafts(_), Some(landing)) => {
                        if let Some(drafts) = landing.drafts.take() {
                            self.read_drafts(&drafts);
                        }
                    }
                    _ => {}
                }
                return Ok(Some(part));
            }
            self.landed = None;
            let (Some(flight), Some(recorder)) = (self.queue.front_mut(), recorder.as_mut()) else {
                return Ok(None);
            };
            let left =
                deadline.map_or(patience, |deadline| deadline.saturating_duration_since(Instant::now()));
            let until_given_up = patience.saturating_sub(self.progress.elapsed());
            if !recorder.has_results(gpu, &mut flight.submission, left.min(until_given_up))? {
                if self.progress.elapsed() >= patience {
                    return Err(timed_out(gpu));
                }
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(None);
                }
                continue;
            }
            self.land(gpu, recorder)?;
        }
    }

    /// Takes the results of the first submission, which has completed or has reached its mark. In the latter case its other
    /// commands are in flight and return nothing.
    fn land(&mut self, gpu: &Gpu, recorder: &mut Recorder) -> Result<(), GpuError> {
        self.progress = Instant::now();
        if let Some(flight) = self.queue.front_mut()
            && recorder.read_marked(gpu, &mut flight.submission, &mut self.words)?
        {
            self.landed = flight.landing.take();
            self.logits = std::mem::take(&mut flight.logits);
            return Ok(());
        }
        let Some(Flight { submission, landing, logits }) = self.queue.pop_front() else { return Ok(()) };
        recorder.finish(gpu, submission, &mut self.words)?;
        self.landed = landing;
        if landing.is_some() {
            self.logits = logits;
        }
        Ok(())
    }

    /// Reads the outcomes of drafts.
    fn read_drafts(&mut self, drafts: &DraftRows) {
        let Flights { words, outcomes, top, .. } = self;
        outcomes.clear();
        top.clear();
        let step = drafts.copied.place(drafts.step);
        for row in 0..drafts.rows {
            let wanted = drafts.wants_logprobs >> row & 1 != 0;
            let logprob = wanted.then(|| logprobs(words, drafts.logprobs, step, row));
            outcomes.push(match words.get(drafts.ring + step as usize * MATVEC_ROWS + row).copied() {
                None | Some(SELECT_HELD) => Outcome::Held,
                Some(SELECT_NOT_FINITE) => Outcome::NotFinite,
                Some(id) => {
                    let logprob = logprob.map_or(f32::NAN, |found| found.0);
                    Outcome::Token { id, logprob, mu: f32::NAN }
                }
            });
            if let Some((_, found)) = logprob {
                top.resize(drafts.rows * MAX_TOP, (0, f32::NAN));
                top[row * MAX_TOP..].iter_mut().zip(found).for_each(|(entry, found)| *entry = found);
            }
        }
    }

    /// Reads the outcomes of the last step that a landing has returned.
    fn read_step(&mut self, landing: &Landing, state: &mut HostState<'_>) {
        let Flights { words, outcomes, top, .. } = self;
        let HostState { slots, hosts, vocab, next } = state;
        outcomes.clear();
        top.clear();
        for (index, group) in landing.groups.iter().enumerate().filter(|(_, group)| group.decoding != 0) {
            let step = group.copied.place(group.first.wrapping_add(landing.returned - 1));
            let ring = group.ring + step as usize * MATVEC_ROWS;
            let first = index * MATVEC_ROWS;
            outcomes.resize(first + MATVEC_ROWS, Outcome::Held);
            if group.hosted != 0 {
                hosts.sample((index, group), landing, words, (*vocab, *next));
            }
            for row in (0..MATVEC_ROWS).filter(|row| group.decoding >> row & 1 != 0) {
                let wanted = group.wants_logprobs >> row & 1 != 0;
                let logprob = wanted.then(|| logprobs(words, group.logprobs, step, row));
                let host = if group.hosted >> row & 1 != 0 { hosts.get(first + row) } else { None };
                let outcome = match (&host, words.get(ring + row).copied()) {
                    (Some(host), _) => host.outcome(),
                    (_, None | Some(SELECT_HELD)) => Outcome::Held,
                    (_, Some(SELECT_NOT_FINITE)) => Outcome::NotFinite,
                    (_, Some(id)) => {
                        let logprob = logprob.map_or(f32::NAN, |found| found.0);
                        Outcome::Token { id, logprob, mu: f32::NAN }
                    }
                };
                outcomes[first + row] = outcome;
                let advanced = matches!(outcome, Outcome::Token { .. });
                let of_device = logprob.as_ref().filter(|_| advanced).map_or(&[][..], |(_, top)| top);
                let found = host.map_or(of_device, |host| host.top());
                if !found.is_empty() {
                    top.resize((first + MATVEC_ROWS) * MAX_TOP, (0, f32::NAN));
                    top[(first + row) * MAX_TOP..][..found.len()].copy_from_slice(found);
                }
                let decoding = slots[first + row].decoding.as_mut();
                if let Some(decoding) = decoding.filter(|decoding| decoding.since <= landing.number) {
                    decoding.read(advanced);
                }
            }
        }
    }
}

fn timed_out(gpu: &Gpu) -> BackendError {
    BackendError::TimedOut { seconds: gpu.patience().as_secs() }
}

impl Landing {
    pub(super) fn new(number: u64, chunks: bool, steps: usize) -> Landing {
        Landing { number, chunks, steps: steps as u32, ..Landing::default() }
    }

    /// The number of its submission.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The steps of a group's rings that it copies to the host, from this number on.
    pub(super) fn copied(&self, first: u32) -> RingSteps {
        RingSteps::new(first, self.steps)
    }

    /// Its next part.
    fn next(&mut self) -> Option<Part> {
        if std::mem::take(&mut self.chunks) {
            return Some(Part::Chunks(self.number));
        }
        if self.drafts.is_some() {
            return Some(Part::Drafts(self.number));
        }
        (self.returned < self.steps).then(|| {
            self.returned += 1;
            Part::Step(self.number)
        })
    }
}

//! Masks of constrained sequences.
//!
//! The constraint's state belongs to the sequence and survives a preemption. When a token of the sequence lands, a worker
//! commits it to the state and computes the mask of the next position, on threads of their own. The slot holds until the
//! mask has come; other slots go on.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use gyrus_kernels::{BackendError, Slots};

use super::job::{End, Job, JobEvent, Task};
use super::mask_workers::{Help, MaskThreads, MaskWork, MaskWorkers};
use super::scheduler::Scheduler;
use super::sequence::{Decodes, Sequence};
use crate::Error;

/// Steps in flight while a sequence whose tokens the host samples decodes beside others: its token takes effect behind
/// them. The same for a constrained one whose rows are not computed ahead.
const STEPS_BESIDE: usize = 2;

/// How long a backend that computes at once waits for masks, so that their sequences are in the same step: at most this, and
/// beside sequences without a constraint at most this part of a step.
const TOGETHER: Duration = Duration::from_millis(1);
const PART_BESIDE: f64 = 0.02;

/// How long a tick without anything to compute waits for a mask before it looks for commands.
const IDLE: Duration = Duration::from_millis(5);

/// Tokens without an alternative from which on they are computed as a chunk instead of by steps: on a device, where a chunk
/// takes the time of two or three steps, and beside sequences that a chunk would hold up.
const CHUNK_ON_DEVICE: usize = 4;
const CHUNK_BESIDE: usize = 32;

/// What the tokens of a sequence must keep to.
pub(crate) trait TokenMask: Debug + Send {
    /// Appends a token that was sampled.
    fn commit(&mut self, token: u32) -> Result<(), Error>;

    /// The tokens that must come next, if there is no choice.
    fn forced(&mut self) -> Vec<u32> {
        Vec::new()
    }

    /// Takes back the last tokens.
    fn take_back(&mut self, tokens: usize) -> Result<(), Error>;

    /// Writes the tokens that may come next: bit `i % 32` of word `i / 32` for token `i`. There is at least one.
    fn mask(&mut self, words: &mut [u32]) -> Result<(), Error>;
}

/// The constraint of a sequence that has a job.
#[derive(Debug)]
pub(super) struct SequenceMask {
    /// A number that no other job has: what a worker computes for an earlier job is dropped.
    number: u64,
    /// `None` while a worker has it.
    work: Option<MaskWork>,
    sent: Sent,
    /// Tokens that have landed since the work was started.
    landed: Vec<u32>,
    /// Tokens without an alternative that steps still have to give, the last one first. The constraint's state has them,
    /// and the mask of the work is that of the position after them.
    forced: Vec<u32>,
    /// A mask without tokens, to allow one of them.
    none: Vec<u32>,
}

/// Whether the slot has the mask of its next position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    No,
    /// Steps of the next submission use it.
    Next,
    /// Steps of this submission and of later ones use it.
    Since(u64),
}

/// All masks of a scheduler.
pub(super) struct Masks {
    pub(super) workers: Box<dyn MaskWorkers>,
    jobs: u64,
    /// What workers have completed, and how many still compute.
    done: Vec<MaskWork>,
    away: usize,
    /// Which masks the scheduler's thread computes itself.
    help: Help,
}

impl Masks {
    pub(super) fn new() -> Masks {
        let workers = Box::new(MaskThreads::default());
        Masks { workers, jobs: 0, done: Vec::new(), away: 0, help: Help::No }
    }

    /// Begins the constraint of a job on a sequence. The mask of the first token is computed with the prompt. `forces`:
    /// tokens without an alternative are not sampled.
    pub(super) fn begin(
        &mut self,
        at: usize,
        state: Box<dyn TokenMask>,
        vocab: usize,
        forces: bool,
    ) -> Result<SequenceMask, Error> {
        self.jobs += 1;
        let words = vocab.div_ceil(32);
        // The first mask of a constraint takes longest.
        self.help = Help::No;
        self.start(MaskWork::new((at, self.jobs), state, words, forces))?;
        let none = if forces { vec![0; words] } else { Vec::new() };
        let (landed, forced) = (Vec::new(), Vec::new());
        Ok(SequenceMask { number: self.jobs, work: None, sent: Sent::No, landed, forced, none })
    }

    fn start(&mut self, work: MaskWork) -> Result<(), Error> {
        self.workers.start(work, self.help)?;
        self.away += 1;
        Ok(())
    }

    /// Whether workers compute masks, or have computed some that no slot has.
    pub(super) fn is_waiting(&self) -> bool {
        self.away > 0 || !self.done.is_empty()
    }

    /// Waits for a mask at most this long.
    pub(super) fn wait(&mut self, time: Duration) {
        if self.away > 0 {
            let before = self.done.len();
            if self.help != Help::No {
                self.workers.help(self.help, &mut self.done);
            }
            let time = if self.done.len() > before { Duration::ZERO } else { time.min(IDLE) };
            self.workers.wait(time, &mut self.done);
            self.away -= self.done.len() - before;
        }
    }
}

impl SequenceMask {
    /// A token has landed.
    pub(super) fn landed(&mut self, token: u32) {
        if self.forced.pop_if(|forced| *forced == token).is_none() {
            self.landed.push(token);
        }
    }

    /// Steps give these tokens, one after the other.
    fn force_by_steps(&mut self, mut forced: Vec<u32>) {
        forced.reverse();
        self.forced = forced;
    }

    /// Whether the token that has landed was the only one allowed, so that the constraint's state has it.
    fn has_next(&self) -> bool {
        self.landed.is_empty() && self.work.is_some()
    }

    /// The mask of the next position is computed, and those after guesses.
    fn next(&mut self, masks: &mut Masks, guesses: &[u32]) -> Result<(), Error> {
        self.sent = Sent::No;
        let Some(work) = self.work.take() else {
            return Err(Error::Panicked("a constrained sequence has decoded without a mask".into()));
        };
        let work = work.after(&self.landed, guesses);
        self.landed.clear();
        masks.start(work)
    }

    /// Guesses that can be verified: they are allowed, their masks have come, and no step has its mask.
    pub(super) fn guesses(&self) -> usize {
        match (&self.work, self.sent) {
            (Some(work), Sent::No) if work.forced().is_empty() && self.forced.is_empty() => work.allowed(),
            _ => 0,
        }
    }

    /// The masks of this many rows of a draft.
    pub(super) fn draft_words(&self, rows: usize) -> &[u32] {
        self.work.as_ref().map_or(&[], |work| work.draft_words(rows))
    }

    /// The guesses are not verified.
    pub(super) fn forget_guesses(&mut self) {
        if let Some(work) = &mut self.work {
            work.forget_guesses();
        }
    }

    /// The slot is another one, which has no mask.
    pub(super) fn lost_slot(&mut self) {
        self.sent = Sent::No;
    }

    /// Steps were submitted.
    pub(super) fn flown(&mut self, submission: u64) {
        if self.sent == Sent::Next {
            self.sent = Sent::Since(submission);
        }
    }

    /// Whether a worker computes its mask.
    pub(super) fn is_away(&self) -> bool {
        self.work.is_none()
    }
}

impl Sequence {
    /// Sends the mask of the next position to the slot that decodes, if it is computed.
    pub(super) fn send_mask(&mut self, slots: &mut dyn Slots) -> Result<(), BackendError> {
        let (position, slot) = (self.tokens.len(), self.running().map(|running| running.slot));
        let (Some(mask), Some(slot)) = (&mut self.mask, slot) else { return Ok(()) };
        if let (Sent::No, Some(work)) =
            (mask.sent, mask.work.as_ref().filter(|work| work.forced().is_empty()))
        {
            match mask.forced.last() {
                Some(&token) => {
                    // Tokens of a constraint are in the vocabulary.
                    let Some(word) = mask.none.get_mut(token as usize / 32) else {
                        return Err(BackendError::UnsoundBatch);
                    };
                    *word = 1 << (token % 32);
                    let sent = slots.mask(slot, position as u32, &mask.none);
                    mask.none[token as usize / 32] = 0;
                    sent?;
                }
                None => slots.mask(slot, position as u32, work.words())?,
            }
            mask.sent = Sent::Next;
        }
        Ok(())
    }
}

impl Scheduler {
    /// Takes masks that workers have computed, and sends them to the slots that decode. A backend that computes at once
    /// waits for those of sequences that decode, but not long.
    /// `drafts`: sequences whose guesses are allowed verify them instead.
    pub(super) fn send_masks(&mut self, drafts: bool, slots: &mut dyn Slots) -> Result<(), BackendError> {
        let masked = |sequence: &Sequence| sequence.mask.as_ref().is_some_and(SequenceMask::is_away);
        let started = (!self.limits.asynchronous).then(Instant::now);
        let together = self.wait_together();
        loop {
            self.masks.wait(Duration::ZERO);
            self.masks_done(slots);
            let is_missing = self.sequences.iter().flatten().any(|s| s.generates() && masked(s));
            let left = started.and_then(|started| together.checked_sub(started.elapsed()));
            match left.filter(|_| is_missing && self.masks.is_waiting()) {
                Some(left) => self.masks.wait(left),
                None => break,
            }
        }
        for at in 0..self.sequences.len() {
            let Some(sequence) = self.sequences[at].as_mut().filter(|sequence| sequence.generates()) else {
                continue;
            };
            let Some(mask) = &mut sequence.mask else { continue };
            let forced = mask.work.as_mut().map(MaskWork::take_forced).unwrap_or_default();
            if self.forces_a_chunk(at, forced.len()) {
                self.force(at, &forced, slots);
                continue;
            }
            let Some(sequence) = &mut self.sequences[at] else { continue };
            let decodes = sequence.decodes();
            let Some(mask) = &mut sequence.mask else { continue };
            if !forced.is_empty() {
                mask.force_by_steps(forced);
            }
            if decodes && !(drafts && mask.guesses() > 0) {
                sequence.send_mask(slots)?;
            }
        }
        Ok(())
    }

    /// Whether this many tokens without an alternative are computed as a chunk. Otherwise each is the only one that the mask
    /// of a step allows: a few take no longer so, and sequences beside this one are not held up.
    fn forces_a_chunk(&self, at: usize, forced: usize) -> bool {
        let Some(sequence) = self.sequences[at].as_ref().filter(|_| forced > 0) else { return false };
        let mut others = self.sequences.iter().flatten().filter(|other| other.id != sequence.id);
        let least = match self.limits.asynchronous {
            // A sampler with a state does not see these tokens, whatever runs beside it.
            _ if sequence.has_host_sampler() => 1,
            _ if others.any(Sequence::generates) => CHUNK_BESIDE,
            true => CHUNK_ON_DEVICE,
            false => 1,
        };
        forced >= least
    }

    /// Which masks this thread computes itself. Nothing runs while a backend that computes at once is not called; beside a
    /// device it could only wait if there is but one sequence.
    fn help_with_masks(&self) -> Help {
        match self.limits.asynchronous {
            false => Help::Short,
            true if self.sequences.iter().flatten().filter(|s| s.running().is_some()).count() <= 1 => {
                Help::All
            }
            true => Help::No,
        }
    }

    /// How long a backend that computes at once waits for masks.
    fn wait_together(&self) -> Duration {
        let is_free = |sequence: &Sequence| sequence.generates() && sequence.mask.is_none();
        match self.pace.step_seconds() {
            Some(step) if self.sequences.iter().flatten().any(is_free) => {
                Duration::try_from_secs_f64(PART_BESIDE * step).map_or(TOGETHER, |part| part.min(TOGETHER))
            }
            _ => TOGETHER,
        }
    }

    /// Appends tokens that a constraint leaves no choice about. Their rows are computed together, as a chunk of generated
    /// rows; then the sequence decodes again.
    fn force(&mut self, at: usize, forced: &[u32], slots: &mut dyn Slots) {
        let Some(sequence) = &mut self.sequences[at] else { return };
        let Some(Job { task: Task::Generate { ends, sampler, .. }, max_len, events, client, .. }) =
            &sequence.job
        else {
            return;
        };
        let mut end = None;
        for &id in forced {
            sequence.tokens.push(id);
            sequence.mirostat.forced(sampler);
            if let Some(speculator) = &mut sequence.speculator {
                speculator.landed(id);
            }
            events.push(JobEvent::Token { id, logprob: None, top: Vec::new() });
            self.counters.tokens(1);
            self.queue.charge(*client, 1);
            if ends.contains(&id) {
                end = Some(End::Token);
            } else if sequence.tokens.len() >= *max_len {
                end = Some(End::Complete);
            }
            if end.is_some() {
                break;
            }
        }
        if let Some(end) = end {
            self.end(at, end, slots);
        } else if let Some(running) = sequence.running_mut() {
            running.decodes = Decodes::No;
        }
    }

    /// Begins to compute the mask after tokens that have landed, if the sequence is constrained and its job goes on.
    pub(super) fn mask_landed(&mut self, at: usize, slots: &mut dyn Slots) {
        let Some(sequence) = &mut self.sequences[at] else { return };
        let Some(mask) = &mut sequence.mask else { return };
        if mask.has_next() {
            mask.sent = Sent::No;
            return;
        }
        let Some(sequence) = &self.sequences[at] else { return };
        let guesses = self.worthwhile(sequence, 0, false);
        self.masks.help = self.help_with_masks();
        let vocab = self.plan.vocab;
        let Some(sequence) = &mut self.sequences[at] else { return };
        let Some(mask) = &mut sequence.mask else { return };
        let guesses = match &mut sequence.speculator {
            Some(speculator) => {
                speculator.draft(guesses, vocab);
                speculator.guesses()
            }
            None => &[],
        };
        if let Err(error) = mask.next(&mut self.masks, guesses) {
            self.finish(at, JobEvent::Failed(error), slots);
        }
    }

    /// Gives what workers have computed to its sequences. A mask that failed ends the job.
    fn masks_done(&mut self, slots: &mut dyn Slots) {
        for mut work in std::mem::take(&mut self.masks.done) {
            let at = work.sequence();
            let mask = self.sequences[at].as_mut().and_then(|sequence| sequence.mask.as_mut());
            let Some(mask) = mask.filter(|mask| mask.number == work.job()) else { continue };
            match work.take_error() {
                Some(error) => self.finish(at, JobEvent::Failed(error), slots),
                None => mask.work = Some(work),
            }
        }
    }

    /// The steps after those in flight that a constrained sequence needs: one for each mask. `None` if it is not
    /// constrained.
    pub(super) fn masked_steps(&self, sequence: &Sequence) -> Option<usize> {
        let steps = match sequence.mask.as_ref()?.sent {
            Sent::No => 0,
            Sent::Next => 1,
            Sent::Since(first) => {
                let own = self.flights.iter().filter(|flight| flight.submission >= first);
                1usize.saturating_sub(own.map(|flight| flight.steps_left).sum())
            }
        };
        Some(steps)
    }

    /// The most steps in flight while these sequences decode.
    pub(super) fn steps_beside(&self, target: usize) -> usize {
        let samples = |sequence: &Sequence| self.limits.asynchronous && sequence.has_host_sampler();
        let needs_host =
            |sequence: &Sequence| sequence.decodes() && (sequence.mask.is_some() || samples(sequence));
        // The rows that are computed ahead keep the device busy.
        let most = if self.ahead { 1 } else { STEPS_BESIDE };
        if self.sequences.iter().flatten().any(needs_host) { target.min(most) } else { target }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_masks::{FakeMask, LateWorkers};
    use super::*;

    /// The scheduler's thread would sleep otherwise, although it can go on.
    #[test]
    fn masks_that_have_come_are_waited_for_until_they_are_taken() {
        let mut masks = Masks::new();
        masks.workers = Box::new(LateWorkers::new(1, 1));
        assert!(!masks.is_waiting());
        masks.begin(0, Box::new(FakeMask::new(7, None)), 64, false).expect("workers");
        assert!(masks.is_waiting(), "a worker computes it");
        masks.wait(Duration::ZERO);
        assert_eq!((masks.away, masks.done.len()), (0, 1));
        assert!(masks.is_waiting(), "it was not taken");
        masks.done.clear();
        assert!(!masks.is_waiting());
    }
}

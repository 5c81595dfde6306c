//! Speculation: guesses of a sequence's next tokens are verified as rows of one pass.
//!
//! A sequence whose drafter has guesses that are expected to gain time leaves the steps: its slot is stopped, steps in
//! flight land, and its next tokens are verified as a [draft](Slots::draft). When its guesses are worth nothing any more, it
//! decodes by steps again. A guess counts if it is the token that was sampled at its position, so that the tokens are those
//! of steps. While a prompt is read, all sequences decode by steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gyrus_kernels::{BackendError, Draft, KV_BLOCK, Outcome, Slots, TopTokens, Work};

use super::job::{Job, Task};
use super::landing::Landing;
use super::scheduler::{Ahead, Scheduler};
use super::sequence::{Decodes, Phase, Running, Sequence};
use crate::Error;
use crate::serving::JobEvent;
use crate::speculation::PassTimes;

/// The most guesses of a draft.
pub(super) const MOST_GUESSES: usize = 31;

/// Steps in flight beside sequences whose drafts are verified.
const STEPS_BESIDE: usize = 2;
/// The time that steps in flight of a sequence that speculates may take, and the least number of them: they must land before
/// a draft can be made.
const BEFORE_DRAFTS: Duration = Duration::from_millis(2);
const STEPS_BEFORE: usize = 3;
/// The time that steps in flight may take while no draft is in sight: submissions of one step each cost a few percent.
const WITHOUT_DRAFTS: Duration = Duration::from_millis(12);

/// A draft in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlightDraft {
    pub(super) sequence: usize,
    pub(super) epoch: u64,
    pub(super) rows: usize,
}

/// The most guesses up to this many whose rows, with that of the last token, are a power of two.
fn whole_rows(guesses: usize) -> usize {
    (1 << (guesses + 1).ilog2()) - 1
}

impl Sequence {
    /// Whether it has left the steps and no draft of it is in flight.
    pub(super) fn awaits_draft(&self) -> bool {
        self.running().is_some_and(|running| running.decodes == Decodes::Drafts { in_flight: false })
    }

    /// Guesses that it can use: the token after them, too, must fit its length and its client's queue.
    fn most_guesses(&self, unread_events: usize) -> usize {
        let waiting = self.job.as_ref().map_or(usize::MAX, |job| job.events.waiting());
        let free = unread_events.saturating_sub(waiting);
        self.remaining().min(free).saturating_sub(1).min(MOST_GUESSES)
    }
}

impl Scheduler {
    /// Lets sequences leave the steps or come back to them, and submits drafts. Returns whether it submitted any.
    /// `reading`: prompts are read, beside which nothing is drafted.
    pub(super) fn speculate(
        &mut self,
        reading: bool,
        now: Instant,
        slots: &mut dyn Slots,
    ) -> Result<bool, BackendError> {
        let mut planned: Vec<FlightDraft> = Vec::new();
        for number in 0..self.slots.len() {
            let Some(at) = self.slots[number] else { continue };
            let Some(sequence) = &self.sequences[at] else { continue };
            if sequence.speculator.is_none() {
                continue;
            }
            self.leave_steps(at, reading, slots)?;
            let Some(sequence) = self.sequences[at].as_ref().filter(|s| s.awaits_draft()) else { continue };
            if sequence.mask.as_ref().is_some_and(|mask| mask.is_away()) {
                continue;
            }
            let used: usize = planned.iter().map(|draft| draft.rows).sum();
            match if reading { None } else { self.plan_draft(at, used, slots)? } {
                Some(draft) => planned.push(draft),
                None => self.start_decoding(at, slots)?,
            }
        }
        if planned.is_empty() {
            return Ok(false);
        }
        let in_flight: usize = self.flights.iter().map(|flight| flight.steps_left).sum();
        let steps = usize::from(in_flight < self.limits.steps.min(2) && self.wanted_steps() > 0);
        if steps > 0 {
            self.grant(in_flight + steps, slots)?;
        }
        // To begin to decode or to grant may have preempted the youngest, whose drafts went with their slots.
        planned.retain(|draft| {
            let running = self.sequences[draft.sequence].as_ref().and_then(Sequence::running);
            running.is_some_and(|running| running.epoch == draft.epoch)
        });
        if planned.is_empty() && steps == 0 {
            return Ok(false);
        }
        let submission = slots.submit(&Work { chunks: &[], between: 0, steps })?;
        self.flown_with(submission, Vec::new(), planned, (0, steps, Ahead::No), now);
        if steps > 0 {
            self.compute_ahead(slots)?;
        }
        Ok(true)
    }

    /// Stops the slot of a sequence whose guesses are worth a draft, and notices when its last steps have landed.
    fn leave_steps(&mut self, at: usize, reading: bool, slots: &mut dyn Slots) -> Result<(), BackendError> {
        let Some(sequence) = &self.sequences[at] else { return Ok(()) };
        let Some(&Running { slot, decodes, .. }) = sequence.running() else { return Ok(()) };
        let in_flight = self.in_flight(sequence);
        match decodes {
            Decodes::Since(since) if !reading => {
                let is_worthwhile = match &sequence.mask {
                    // The slot holds until its mask has come, which was computed with those of the guesses.
                    Some(mask) => mask.guesses() > 0,
                    None => self.worthwhile(sequence, 0, in_flight > 0) > 0,
                };
                if !is_worthwhile {
                    return Ok(());
                }
                slots.stop(slot)?;
                let last = self.flights.back().map_or(0, |flight| flight.submission);
                let is_masked = sequence.mask.is_some();
                self.set_decodes(
                    at,
                    match in_flight == 0 || is_masked {
                        true => Decodes::Drafts { in_flight: false },
                        false => Decodes::Stops { since, last },
                    },
                );
            }
            Decodes::Stops { .. } if in_flight == 0 => {
                self.set_decodes(at, Decodes::Drafts { in_flight: false });
            }
            _ => {}
        }
        Ok(())
    }

    fn set_decodes(&mut self, at: usize, decodes: Decodes) {
        if let Some(running) = self.sequences[at].as_mut().and_then(Sequence::running_mut) {
            running.decodes = decodes;
        }
    }

    /// The number of guesses with which a pass gains most time, beside drafts of `used` rows; 0 if steps are as fast.
    pub(super) fn worthwhile(&self, sequence: &Sequence, used: usize, in_flight: bool) -> usize {
        let Some(speculator) = &sequence.speculator else { return 0 };
        let free = self.limits.draft_rows.saturating_sub(used + 1);
        let most = sequence.most_guesses(self.settings.unread_events).min(free);
        let asynchronous = self.limits.asynchronous;
        let step = self.pace.step_seconds().unwrap_or(0.0).max(1e-9);
        let generating = self.sequences.iter().flatten().filter(|other| other.generates()).count();
        let others = generating.saturating_sub(1);
        let seconds = |rows: usize| match rows {
            0 => 0.0,
            rows => self.pace.rows.seconds(rows, step, asynchronous),
        };
        if asynchronous {
            // Drafts are a pass of their own beside the step of the others.
            let others_step = if others > 0 { step } else { 0.0 };
            let with = |rows: usize| others_step + seconds(used + rows);
            let times = PassTimes { without: step + seconds(used), with: &with, others, powers_of_two: true };
            speculator.worthwhile(most, times, in_flight)
        } else {
            let with = |rows: usize| seconds(others + used + rows);
            let without = seconds(others + used + 1);
            let times = PassTimes { without, with: &with, others, powers_of_two: false };
            speculator.worthwhile(most, times, in_flight)
        }
    }

    /// Gives the slot of a sequence a draft beside others of `used` rows, if it is worth one.
    fn plan_draft(
        &mut self,
        at: usize,
        used: usize,
        slots: &mut dyn Slots,
    ) -> Result<Option<FlightDraft>, BackendError> {
        let Some(sequence) = &self.sequences[at] else { return Ok(None) };
        let wanted = match &sequence.mask {
            // They were chosen when their masks were computed.
            Some(mask) => {
                let free = self.limits.draft_rows.saturating_sub(used + 1);
                mask.guesses().min(sequence.most_guesses(self.settings.unread_events)).min(free)
            }
            None => self.worthwhile(sequence, used, false),
        };
        let vocab = self.plan.vocab;
        let Some(sequence) = &mut self.sequences[at] else { return Ok(None) };
        let Sequence { speculator: Some(speculator), kv, tokens, mask, job, phase, .. } = sequence else {
            return Ok(None);
        };
        let made = match mask {
            Some(_) => wanted.min(speculator.guesses().len()),
            None => speculator.draft(wanted, vocab),
        };
        // A drafter may have fewer guesses than were asked for.
        let made = if self.limits.asynchronous { whole_rows(made) } else { made };
        // Blocks for all rows, or for as many as there are.
        let first = kv.len();
        let _ = self.kv.reserve(kv, first + 1 + made);
        let guesses = made.min(kv.capacity().saturating_sub(first + 1));
        if guesses == 0 {
            speculator.ended(0.0);
            if let Some(mask) = mask {
                mask.forget_guesses();
            }
            return Ok(None);
        }
        speculator.truncate(guesses);
        debug_assert!(self.kv.may_write(kv, first), "a block that others may read is written to");
        let (Phase::Running(running), Some(Job { task: Task::Generate { sampler, logprobs, .. }, .. })) =
            (phase, &*job)
        else {
            return Ok(None);
        };
        let blocks = kv.capacity() / KV_BLOCK;
        if running.sent_blocks != blocks {
            let (tables, groups) = kv.tables();
            slots.extend(running.slot, &tables[..groups], 0)?;
            (running.sent_limit, running.sent_blocks) = (0, blocks);
        }
        let known = tokens.len();
        tokens.extend_from_slice(speculator.guesses());
        let masks = mask.as_ref().map_or(&[][..], |mask| mask.draft_words(guesses + 1));
        let draft = Draft { tokens, guesses, sampler, logprobs: *logprobs, masks };
        let drafted = slots.draft(running.slot, &draft);
        tokens.truncate(known);
        drafted?;
        running.decodes = Decodes::Drafts { in_flight: true };
        Ok(Some(FlightDraft { sequence: at, epoch: running.epoch, rows: guesses + 1 }))
    }

    /// Drafts have landed: each sequence takes its sampled tokens up to the first that is not the guess.
    pub(super) fn drafts_landed(&mut self, landing: &Landing, slots: &mut dyn Slots) {
        let Some(flight) = self.flights.iter_mut().find(|flight| !flight.drafts_landed) else { return };
        flight.drafts_landed = true;
        let drafts = std::mem::take(&mut flight.drafts);
        let top = TopTokens { entries: &landing.top };
        let mut row = 0;
        for FlightDraft { sequence: at, epoch, rows } in drafts {
            let first = row;
            row += rows;
            let Some(outcomes) = landing.outcomes.get(first..row) else { return };
            let Some(sequence) = &mut self.sequences[at] else { continue };
            // The job may have ended or been preempted meanwhile.
            let Some(running) = sequence.running_mut().filter(|running| running.epoch == epoch) else {
                continue;
            };
            running.decodes = Decodes::Drafts { in_flight: false };
            // Counted before the event that may end the job.
            let events = sequence.job.as_ref().map(|job| Arc::clone(&job.events));
            let count = |guesses, right| events.iter().for_each(|events| events.count_drafts(guesses, right));
            count(rows - 1, 0);
            let mut right = 0;
            for (i, outcome) in outcomes.iter().enumerate() {
                let (id, logprob, mu) = match outcome {
                    Outcome::Token { id, logprob, mu } => (*id, *logprob, *mu),
                    Outcome::NotFinite | Outcome::Held => {
                        let Some(sequence) = &self.sequences[at] else { break };
                        let (position, precision) = (sequence.tokens.len() - 1, self.plan.precision);
                        let error = Error::NotFinite { position, precision };
                        self.finish(at, JobEvent::Failed(error), slots);
                        break;
                    }
                };
                let is_right = self.guess(at, i) == Some(id);
                right += usize::from(is_right);
                count(0, usize::from(is_right));
                let goes_on = self.token_landed(at, id, (logprob, mu), |n| top.of(first + i, n), slots);
                if !is_right || !goes_on {
                    break;
                }
            }
            self.counters.drafts(rows - 1, right);
            self.draft_ended(at, rows, right);
            self.mask_landed(at, slots);
        }
    }

    /// The most steps in flight while these sequences decode: one that speculates leaves them when it has guesses, and
    /// one that is verified waits behind those of the others.
    pub(super) fn steps_with_drafts(&self, target: usize) -> usize {
        let all = || self.sequences.iter().flatten();
        let decoding = all().filter(|sequence| sequence.decodes()).count();
        if all().any(|sequence| sequence.generates() && !sequence.decodes()) {
            target.min(STEPS_BESIDE)
        } else if all().any(|sequence| sequence.decodes() && sequence.speculator.is_some()) {
            let step = self.pace.step_seconds().unwrap_or(0.0).max(1e-9);
            let is_near = all().filter_map(|sequence| sequence.speculator.as_ref()).any(|s| s.is_near());
            let time = if is_near { BEFORE_DRAFTS } else { WITHOUT_DRAFTS };
            let in_time = (time.as_secs_f64() / step) as usize;
            target.min(in_time.max(if decoding > 1 { STEPS_BESIDE } else { STEPS_BEFORE }))
        } else {
            target
        }
    }

    /// A guess of the draft in flight of a sequence.
    fn guess(&self, at: usize, number: usize) -> Option<u32> {
        self.sequences[at].as_ref()?.speculator.as_ref()?.guesses().get(number).copied()
    }

    /// Tells the drafter of a sequence that still runs what its draft was worth.
    fn draft_ended(&mut self, at: usize, rows: usize, right: usize) {
        let step = self.pace.step_seconds().unwrap_or(0.0);
        let cost = self.pace.rows.seconds(rows, step, self.limits.asynchronous);
        let Some(sequence) = &mut self.sequences[at] else { return };
        if let Some(speculator) = &mut sequence.speculator {
            speculator.ended((right + 1) as f64 - cost / step.max(1e-9));
        }
    }
}

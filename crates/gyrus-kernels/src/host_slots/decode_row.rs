//! The decode state of one slot, and what a step does with its logits.

use super::RESERVED;
use crate::backend::BackendError;
use crate::batch::are_finite;
use crate::delta::Records;
use crate::log_softmax::LogSoftmax;
use crate::sampler::row::RowSampler;
use crate::slots::{Decode, MAX_ENDS, MAX_TOP, Outcome};

/// A slot's decode state. A backend calls [`DecodeRow::sample`] of all of them, on any threads.
#[derive(Debug, Default)]
pub struct DecodeRow {
    decodes: bool,
    /// The first submission whose steps compute the slot.
    since: u64,
    ended: bool,
    token: u32,
    position: u32,
    limit: u32,
    sampler: RowSampler,
    ends: [u32; MAX_ENDS],
    n_ends: usize,
    logprobs: Option<usize>,
    masked: bool,
    records: [u32; 2],
    /// The position that `mask` is for.
    mask_position: Option<u32>,
    mask: Vec<u32>,
    /// The row of the logits from which the next token is sampled.
    logits_row: Option<usize>,
    outcome: Outcome,
    top: [(u32, f32); MAX_TOP],
}

impl DecodeRow {
    /// Begins to decode with this submission. `length` is the length that the sequence may reach.
    pub fn start(&mut self, decode: &Decode<'_>, length: u32, since: u64) -> Result<(), BackendError> {
        let Some(&token) = decode.tokens.last() else { return Err(BackendError::UnsoundBatch) };
        let Ok(position) = u32::try_from(decode.tokens.len() - 1) else {
            return Err(BackendError::UnsoundBatch);
        };
        self.sampler.start(decode.sampler, decode.tokens, length as usize);
        self.n_ends = decode.ends.len().min(MAX_ENDS);
        self.ends[..self.n_ends].copy_from_slice(&decode.ends[..self.n_ends]);
        (self.decodes, self.ended, self.since) = (true, false, since);
        (self.token, self.position, self.limit) = (token, position, decode.limit);
        self.logprobs = decode.logprobs.map(|n| n.min(MAX_TOP));
        (self.masked, self.mask_position) = (decode.masked, None);
        self.records = decode.records;
        Ok(())
    }

    pub(super) fn stop(&mut self) {
        self.decodes = false;
    }

    pub(super) fn since(&self) -> u64 {
        self.since
    }

    /// The slot advances while the next position is below this.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Stores the tokens that may be sampled for a position.
    pub fn set_mask(&mut self, position: u32, allowed: &[u32]) -> Result<(), BackendError> {
        if !self.decodes || !self.masked {
            return Err(BackendError::UnsoundBatch);
        }
        self.mask.clear();
        self.mask.extend_from_slice(allowed);
        self.mask_position = Some(position);
        Ok(())
    }

    /// The input token and its position, if the slot advances with the next step.
    pub fn next_input(&self) -> Option<(u32, u32)> {
        let next = self.position.checked_add(1)?;
        let advances = self.decodes
            && !self.ended
            && next < self.limit
            && (!self.masked || self.mask_position == Some(next));
        advances.then_some((self.token, self.position))
    }

    /// The input token of the next step, and its position.
    pub fn input(&self) -> (u32, u32) {
        (self.token, self.position)
    }

    /// The records that a step at its position reads and writes.
    pub(super) fn records(&self) -> Records {
        let [even, odd] = self.records;
        let (from, to) = if self.position.is_multiple_of(2) { (even, odd) } else { (odd, even) };
        Records { from: Some(from), to }
    }

    /// Whether it decodes.
    pub(super) fn decodes(&self) -> bool {
        self.decodes
    }

    /// The positions that steps can compute, at most `steps`.
    pub(super) fn positions(&self, steps: usize) -> impl Iterator<Item = u32> + use<> {
        let end = self.limit.saturating_sub(1);
        (self.position..end).take(if self.next_input().is_some() { steps } else { 0 })
    }

    /// The next token is sampled from this row of the logits; the slot holds if there is none.
    pub fn expect(&mut self, logits_row: Option<usize>) {
        self.logits_row = logits_row;
        self.outcome = Outcome::Held;
    }

    /// Whether the step computes the slot.
    pub fn is_computed(&self) -> bool {
        self.logits_row.is_some()
    }

    /// What the last step did.
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// The most likely tokens of the last step, if it sampled and they were asked for.
    pub fn top(&self) -> &[(u32, f32)] {
        match self.outcome {
            Outcome::Token { .. } => &self.top[..self.logprobs.unwrap_or(0)],
            _ => &[],
        }
    }

    /// Whether the slot asks for the most likely tokens.
    pub(super) fn wants_top(&self) -> bool {
        self.decodes && self.logprobs.is_some_and(|n| n > 0)
    }

    /// Samples the next token if the step computed this slot. `logits` are those of the batch, `[rows, vocab]`;
    /// `log_softmax` is the backend's form of [`LogSoftmax::with_top`].
    pub fn sample(
        &mut self,
        logits: &[f32],
        vocab: usize,
        log_softmax: impl Fn(&[f32], &mut [(u32, f32)]) -> LogSoftmax,
    ) {
        let Some(row) = self.logits_row.take() else { return };
        let logits = &logits[row * vocab..(row + 1) * vocab];
        if !are_finite(logits) {
            self.ended = true;
            self.outcome = Outcome::NotFinite;
            return;
        }
        let mask = self.masked.then_some(&self.mask[..]);
        let drawn = self.sampler.draw(logits, mask, u64::from(self.position) + 1);
        let id = drawn.id;
        let mut logprob = f32::NAN;
        if let Some(n) = self.logprobs {
            let all = log_softmax(logits, &mut self.top[..n]);
            logprob = all.of(logits[id as usize]);
            self.top[..n].iter_mut().for_each(|(_, logit)| *logit = all.of(*logit));
        }
        self.sampler.commit(drawn);
        self.ended = self.ends[..self.n_ends].contains(&id);
        (self.token, self.position) = (id, self.position + 1);
        self.outcome = Outcome::Token { id, logprob, mu: drawn.mu };
    }
}

/// Entries to reserve for what can be at most this long. A caller's number does not size an allocation beyond
/// [`RESERVED`].
pub(crate) fn reserved(most: usize) -> usize {
    most.min(RESERVED)
}

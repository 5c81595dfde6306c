//! Drafts that the next submission verifies.

use super::batch_rows::BatchRows;
use super::decode_row::DecodeRow;
use crate::backend::BackendError;
use crate::slots::{Decode, Draft};

/// The slot of each row of the drafts, in order. Each row has a decode state of its own, which samples one token.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    slots: Vec<usize>,
}

impl Drafts {
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(super) fn rows(&self) -> usize {
        self.slots.len()
    }

    /// Adds a draft that was checked to the decode states of drafts. `length` is the length that the sequence may reach,
    /// `words` the words of a mask.
    pub(super) fn push(
        &mut self,
        slot: usize,
        draft: &Draft<'_>,
        length: u32,
        words: usize,
        states: &mut [DecodeRow],
    ) -> Result<(), BackendError> {
        let first = self.slots.len();
        let free = states.get_mut(first..first + draft.rows()).ok_or(BackendError::UnsoundBatch)?;
        if self.slots.contains(&slot) {
            return Err(BackendError::UnsoundBatch);
        }
        let Draft { tokens, guesses, sampler, logprobs, .. } = *draft;
        for (row, state) in free.iter_mut().enumerate() {
            let mask = draft.mask(row, words).filter(|_| !draft.masks.is_empty());
            let tokens = &tokens[..tokens.len() - (guesses - row)];
            let (limit, masked) = (u32::MAX, mask.is_some());
            let decode = Decode { tokens, limit, sampler, ends: &[], logprobs, masked, records: [0; 2] };
            state.start(&decode, length, 0)?;
            if let Some(mask) = mask {
                state.set_mask(tokens.len() as u32, mask)?;
            }
        }
        self.slots.resize(first + draft.rows(), slot);
        Ok(())
    }

    /// Adds the rows to a batch.
    pub(super) fn push_rows(&self, batch: &mut BatchRows, states: &mut [DecodeRow]) {
        for (&slot, state) in self.slots.iter().zip(states) {
            let input = state.next_input();
            state.expect(input.map(|(token, position)| batch.push_with_logits(token, position, slot)));
        }
    }

    /// Removes the draft of a slot that is closed.
    pub(super) fn remove(&mut self, slot: usize, states: &mut [DecodeRow]) {
        let Some(first) = self.slots.iter().position(|own| *own == slot) else { return };
        let rows = self.slots.iter().filter(|own| **own == slot).count();
        let all = self.slots.len();
        self.slots.drain(first..first + rows);
        states[first..all].rotate_left(rows);
        states[all - rows..all].iter_mut().for_each(DecodeRow::stop);
    }

    /// Removes all drafts.
    pub(super) fn clear(&mut self, states: &mut [DecodeRow]) {
        states.iter_mut().for_each(DecodeRow::stop);
        self.slots.clear();
    }
}

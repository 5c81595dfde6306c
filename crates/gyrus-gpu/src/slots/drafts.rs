//! Drafts: guesses of a slot's next tokens, verified as rows of one pass.
//!
//! Their rows are a batch of generated rows of chunks. Tokens are sampled by the kernels of decode steps, in a group of its
//! own whose rows are given anew with every draft: a row samples one token by the state of its slot at its position.

use std::sync::Arc;

use gyrus_kernels::call::SelectCall;
use gyrus_kernels::params::SlotState;
use gyrus_kernels::{BackendError, Draft, RowKind, Sampler};

use super::chunks::ChunkBatch;
use super::flight::{DraftRows, Landing};
use super::group::SlotGroup;
use super::select::RingSteps;
use super::slot::Needs;
use super::submit::unbound;
use super::{SlotPool, mask_words};
use crate::backend::GpuBackend;
use crate::buffers::MATVEC_ROWS;
use crate::error::GpuError;

/// The rows that sample for drafts, and the drafts of the next submission.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    pub(super) group: Option<SlotGroup>,
    waiting: Vec<Waiting>,
}

/// A draft that was checked.
#[derive(Debug)]
struct Waiting {
    slot: usize,
    /// Of the first row.
    position: u32,
    /// The tokens of all rows, and the tokens before them that penalties count.
    tokens: Vec<u32>,
    before: Vec<u32>,
    sampler: Sampler,
    logprobs: Option<usize>,
    masks: Vec<u32>,
}

/// The drafts of a submission: their rows as a batch, and how these are sampled.
#[derive(Debug)]
pub(super) struct DraftPass {
    pub(super) batch: ChunkBatch,
    pub(super) call: SelectCall,
    wants_logprobs: u16,
}

impl Drafts {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Rows of all drafts that wait.
    fn rows(&self) -> usize {
        self.waiting.iter().map(|draft| draft.tokens.len()).sum()
    }

    /// Adds a draft that was checked.
    pub(super) fn push(&mut self, slot: usize, draft: &Draft<'_>) -> Result<(), BackendError> {
        let Some(first) = draft.position() else { return Err(BackendError::UnsoundBatch) };
        let is_double = self.waiting.iter().any(|other| other.slot == slot);
        if is_double || self.rows() + draft.rows() > MATVEC_ROWS {
            return Err(BackendError::UnsoundBatch);
        }
        let counted = if draft.sampler.has_penalties() { draft.sampler.penalty_window as usize } else { 0 };
        self.waiting.push(Waiting {
            slot,
            position: first as u32,
            tokens: draft.tokens[first..].to_vec(),
            before: draft.tokens[first.saturating_sub(counted)..first].to_vec(),
            sampler: draft.sampler.clone(),
            logprobs: draft.logprobs,
            masks: draft.masks.to_vec(),
        });
        Ok(())
    }

    /// Forgets the draft of a slot.
    pub(super) fn remove(&mut self, slot: usize) {
        self.waiting.retain(|draft| draft.slot != slot);
    }
}

impl Waiting {
    fn needs(&self) -> Needs {
        Needs::of(&self.sampler, !self.masks.is_empty(), self.logprobs.is_some())
    }
}

impl GpuBackend {
    /// Takes the drafts that wait, and writes the states of their rows with the next submission.
    pub(super) fn take_drafts(&mut self) -> Result<Option<DraftPass>, GpuError> {
        if self.slots.drafts.is_empty() {
            return Ok(None);
        }
        let waiting = std::mem::take(&mut self.slots.drafts.waiting);
        if self.slots.drafts.group.is_none() {
            self.slots.drafts.group = Some(SlotGroup::new(&self.lowering(), &self.kv, true)?);
            self.slots.after_wgpu = true;
        }
        let GpuBackend { gpu, plan, kv, slots: pool, .. } = self;
        let SlotPool { drafts, scratch, writes, recorder, after_wgpu, .. } = pool;
        let (Some(group), Some(recorder)) = (&mut drafts.group, recorder) else { return Err(unbound()) };
        let needs = waiting.iter().map(Waiting::needs).fold(Needs::NONE, Needs::and);
        let mut batch = ChunkBatch::new(RowKind::Generated);
        for draft in &waiting {
            for (&token, position) in draft.tokens.iter().zip(draft.position..) {
                batch.logits.push(batch.tokens.len() as u32);
                batch.wanted.push(batch.tokens.len());
                batch.tokens.push(token);
                batch.positions.push(position);
                batch.slots.push(draft.slot as u32);
            }
        }
        let call = needs.call(batch.tokens.len() as u32, plan.vocab, kv.positions);
        if group.selects.bind(gpu, scratch, call)? {
            *after_wgpu = true;
            let bound = group.selects.get(&call).into_iter();
            let bound = bound.flat_map(|bound| bound.count.iter().chain(&bound.steps));
            let pipelines: Vec<_> = bound.map(|dispatch| Arc::clone(&dispatch.pipeline)).collect();
            if recorder.is_vulkan() {
                gpu.compile_for_vulkan(&pipelines)?;
            }
        }
        let (mut row, mut wants_logprobs, words) = (0, 0, mask_words(plan.vocab));
        let mut history: Vec<u32> = Vec::new();
        for draft in waiting {
            let Waiting { position, tokens, before, sampler, logprobs, masks, .. } = draft;
            history.clear();
            history.extend_from_slice(&before);
            for (token, position) in tokens.into_iter().zip(position..) {
                let masked = !masks.is_empty();
                let state = SlotState::new(&sampler, group.steps, u32::MAX, &[], logprobs, masked);
                group.set_draft_row(writes, row, (token, position), &state);
                if masked {
                    let own = (position - draft.position) as usize * words;
                    group.selects.set_mask(writes, row, &masks[own..own + words]);
                    group.selects.set_state_word(writes, row, SlotState::MASK_POSITION, position + 1);
                }
                history.push(token);
                if sampler.has_penalties() {
                    let (known, window) = ((&history[..], position as usize + 1), sampler.penalty_window);
                    group.selects.set_history(writes, row, known, window, kv.positions);
                }
                wants_logprobs |= u16::from(logprobs.is_some()) << row;
                row += 1;
            }
        }
        Ok(Some(DraftPass { batch, call, wants_logprobs }))
    }

    /// Records the kernels that sample the rows of drafts, whose logits were recorded.
    pub(super) fn record_drafts(&mut self, pass: &DraftPass, landing: &mut Landing) -> Result<(), GpuError> {
        let GpuBackend { gpu, slots: pool, .. } = self;
        let SlotPool { drafts: Drafts { group: Some(group), .. }, recorder: Some(recorder), .. } = pool
        else {
            return Err(unbound());
        };
        let Some(bound) = group.selects.get(&pass.call) else { return Err(unbound()) };
        for dispatch in bound.count.iter().chain(&bound.steps) {
            recorder.dispatch(gpu, dispatch)?;
        }
        landing.drafts = Some(DraftRows {
            rows: pass.batch.tokens.len(),
            wants_logprobs: pass.wants_logprobs,
            step: group.steps,
            copied: RingSteps::new(group.steps, 1),
            ring: 0,
            logprobs: 0,
        });
        // Logits stay on the device.
        landing.logits = 0;
        group.steps = group.steps.wrapping_add(1);
        Ok(())
    }
}

use std::mem::offset_of;

use crate::params::SlotState;
use crate::sampler::Sampler;
use crate::slots::{MAX_ENDS, MAX_TOP};

/// No token, no position.
const NONE: u32 = u32::MAX;

impl SlotState {
    /// The byte offset of [`step`](SlotState::step).
    pub const STEP: usize = offset_of!(SlotState, step);
    /// The byte offset of [`limit`](SlotState::limit).
    pub const LIMIT: usize = offset_of!(SlotState, limit);
    /// The byte offset of [`flags`](SlotState::flags).
    pub const FLAGS: usize = offset_of!(SlotState, flags);
    /// The byte offset of [`mask_position`](SlotState::mask_position).
    pub const MASK_POSITION: usize = offset_of!(SlotState, mask_position);

    /// A flag: the slot decodes.
    pub const ACTIVE: u32 = 1;
    /// A flag: the slot has sampled an end token, or its logits were not finite.
    pub const ENDED: u32 = 2;
    /// A flag: the slot advances only to positions whose mask has arrived.
    pub const MASKED: u32 = 4;
    /// A flag: log-probabilities are wanted.
    pub const LOGPROBS: u32 = 8;
    /// A flag: the penalty window is to be counted.
    pub const COUNT: u32 = 16;
    /// A flag: the host samples from the slot's logits, which are kept.
    pub const HOST: u32 = 32;

    /// The state of a slot that decodes. `step` is the number of select launches so far. The first [`MAX_ENDS`] end tokens
    /// are recognised, and at most [`MAX_TOP`] alternatives are given. A masked slot holds until its first mask arrives. With
    /// penalties it has the flag `COUNT`.
    pub fn new(
        sampler: &Sampler,
        step: u32,
        limit: u32,
        ends: &[u32],
        logprobs: Option<usize>,
        masked: bool,
    ) -> SlotState {
        // Larger than any relevant difference of logits; infinity times a difference of 0 would be NaN.
        const MOST: f64 = 1e30;
        let inverse = if sampler.is_greedy() { 0.0 } else { 1.0 / f64::from(sampler.temperature) };
        let end = |at: usize| ends.get(at).copied().unwrap_or(NONE);
        let flag = |bit, is_set| if is_set { bit } else { 0 };
        SlotState {
            temperature: sampler.temperature,
            top_k: sampler.top_k,
            top_p: sampler.top_p,
            min_p: sampler.min_p,
            repetition_penalty: sampler.repetition_penalty,
            presence_penalty: sampler.presence_penalty,
            frequency_penalty: sampler.frequency_penalty,
            penalty_window: sampler.penalty_window,
            seed_low: sampler.seed as u32,
            seed_high: (sampler.seed >> 32) as u32,
            inverse_temperature: inverse.min(MOST) as f32,
            step,
            limit,
            flags: SlotState::ACTIVE
                | flag(SlotState::MASKED, masked)
                | flag(SlotState::LOGPROBS, logprobs.is_some())
                | flag(SlotState::COUNT, sampler.has_penalties()),
            mask_position: NONE,
            top: logprobs.unwrap_or(0).min(MAX_TOP) as u32,
            end0: end(0),
            end1: end(1),
            end2: end(2),
            end3: end(3),
            end4: end(4),
            end5: end(5),
            end6: end(6),
            end7: end(7),
        }
    }

    /// The state of a slot that does not decode.
    pub fn inactive(step: u32) -> SlotState {
        SlotState { flags: 0, ..SlotState::new(&Sampler::default(), step, 0, &[], None, false) }
    }

    /// The state of a slot whose tokens the host samples. The device holds it.
    pub fn on_host(step: u32) -> SlotState {
        SlotState { flags: SlotState::HOST, ..SlotState::inactive(step) }
    }

    /// The end tokens.
    pub fn ends(&self) -> [u32; MAX_ENDS] {
        [self.end0, self.end1, self.end2, self.end3, self.end4, self.end5, self.end6, self.end7]
    }

    /// Whether a slot whose input token is at `position` advances.
    pub fn advances(&self, position: u32) -> bool {
        let is = |flag| self.flags & flag != 0;
        is(SlotState::ACTIVE)
            && !is(SlotState::ENDED)
            && position + 1 < self.limit
            && (!is(SlotState::MASKED) || self.mask_position == position + 1)
    }
}

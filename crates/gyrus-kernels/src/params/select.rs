//! The kernels that choose tokens.

use crate::params::params;

params! {
    /// How rows of logits are divided among workgroups, for the kernels that choose tokens.
    SelectParams {
        /// Logits of a row.
        vocab: u32,
        /// Slices of a row, at most 64.
        slices: u32,
        /// Runs of 256 logits in a slice.
        each: u32,
        /// Tokens of a row's history, a power of two; 0 without penalties.
        history: u32,
    }

    /// The state of a slot that decodes: its sampler, and what decides whether it advances.
    SlotState {
        /// 0 for greedy decoding.
        temperature: f32,
        /// top-k: tokens that are kept; 0 for all.
        top_k: u32,
        /// top-p: the sum of probabilities that is kept; 1 for all.
        top_p: f32,
        /// min-p: the least probability that is kept, as a fraction of the largest; 0 for all.
        min_p: f32,
        /// Divides positive and multiplies negative logits of tokens that occurred.
        repetition_penalty: f32,
        /// Subtracted from the logits of tokens that occurred.
        presence_penalty: f32,
        /// Subtracted for each time they occurred.
        frequency_penalty: f32,
        /// How many of the last tokens the penalties count.
        penalty_window: u32,
        /// The seed's low half.
        seed_low: u32,
        /// The seed's high half.
        seed_high: u32,
        /// 1 / temperature; 0 for greedy decoding.
        inverse_temperature: f32,
        /// The number of the next step: its entry in the ring of tokens.
        step: u32,
        /// The slot advances while the next position is below this.
        limit: u32,
        /// `ACTIVE`, `ENDED`, `MASKED`, `LOGPROBS`, `COUNT`.
        flags: u32,
        /// The position for whose token the mask is.
        mask_position: u32,
        /// How many of the most likely tokens are wanted with their log-probabilities, at most 20.
        top: u32,
        /// An end token; `u32::MAX` for none.
        end0: u32,
        /// Another.
        end1: u32,
        /// Another.
        end2: u32,
        /// Another.
        end3: u32,
        /// Another.
        end4: u32,
        /// Another.
        end5: u32,
        /// Another.
        end6: u32,
        /// Another.
        end7: u32,
    }
}

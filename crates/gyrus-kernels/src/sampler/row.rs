//! The sampler of one sequence, with its state.

use std::cell::RefCell;

use super::chain::{Drawn, Past, SamplerScratch};
use super::{Sampler, Stage};
use crate::host_slots::{PenaltyWindow, reserved};

/// A sampler and what it knows of its sequence. A draw changes nothing; [`RowSampler::commit`] does.
#[derive(Debug, Default)]
pub(crate) struct RowSampler {
    sampler: Sampler,
    window: PenaltyWindow,
    /// The last tokens, if DRY searches them.
    tokens: Vec<u32>,
    /// Mirostat's state.
    mu: f32,
}

/// Buffers of the size of a vocabulary.
#[derive(Default)]
struct Scratch {
    sampler: SamplerScratch,
    masked: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl RowSampler {
    /// Begins after these tokens of a sequence, which may grow to `length`.
    pub(crate) fn start(&mut self, sampler: &Sampler, tokens: &[u32], length: usize) {
        self.sampler.clone_from(sampler);
        self.window.fill(sampler, tokens, length);
        self.mu = sampler.mirostat.map_or(f32::NAN, |mirostat| mirostat.mu());
        self.tokens.clear();
        if self.searches() {
            self.tokens.extend_from_slice(&tokens[tokens.len().saturating_sub(self.searched())..]);
            let most = reserved(length.max(tokens.len()).min(self.searched().saturating_mul(2)) + 1);
            self.tokens.reserve(most.saturating_sub(self.tokens.len()));
        }
    }

    fn searches(&self) -> bool {
        self.sampler.stages().any(|stage| stage == Stage::Dry)
    }

    /// How many of the last tokens DRY searches.
    fn searched(&self) -> usize {
        self.sampler.dry.window as usize
    }

    /// Draws a token with a number. `mask`: the tokens that are allowed, if some are not.
    pub(crate) fn draw(&self, logits: &[f32], mask: Option<&[u32]>, number: u64) -> Drawn {
        // A nested call would get new buffers instead of a panic.
        let mut scratch = SCRATCH.take();
        let logits = match mask {
            Some(mask) => {
                scratch.masked.clear();
                scratch.masked.extend_from_slice(logits);
                forbid(&mut scratch.masked, mask);
                &scratch.masked[..]
            }
            None => logits,
        };
        let past = Past { counts: self.window.counts(), tokens: &self.tokens, mu: self.mu };
        let drawn = self.sampler.sample(logits, past, number, &mut scratch.sampler);
        SCRATCH.set(scratch);
        drawn
    }

    /// The sequence goes on with a token that was drawn.
    pub(crate) fn commit(&mut self, drawn: Drawn) {
        self.window.push(drawn.id);
        self.mu = drawn.mu;
        if self.searches() {
            // Forgets tokens from time to time, not with each one.
            if self.tokens.len() >= self.searched().saturating_mul(2).max(64) {
                self.tokens.drain(..self.tokens.len() - self.searched());
            }
            self.tokens.push(drawn.id);
        }
    }
}

/// Logits of tokens that are not allowed become NaN, which is never chosen, whatever the penalties and the temperature.
fn forbid(logits: &mut [f32], mask: &[u32]) {
    for (logits, word) in logits.chunks_mut(32).zip(mask) {
        match *word {
            u32::MAX => {}
            0 => logits.fill(f32::NAN),
            word => {
                let bits = logits.iter_mut().enumerate();
                bits.filter(|(bit, _)| word >> bit & 1 == 0).for_each(|(_, logit)| *logit = f32::NAN);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Noise;
    use crate::sampler::{Dry, Mirostat};

    /// A sampler that has seen its tokens one by one draws as one that begins after them, however long the window is.
    #[test]
    fn a_sampler_that_begins_later_draws_the_same() {
        let logits: Vec<f32> = Noise::new(9).gaussians(40).iter().map(|logit| logit * 2.0).collect();
        for window in [3, 17, 64, u32::MAX] {
            let sampler = Sampler {
                temperature: 0.8,
                seed: 4,
                presence_penalty: 0.2,
                penalty_window: window,
                dry: Dry { multiplier: 1.0, window, ..Dry::default() },
                mirostat: Some(Mirostat { tau: 2.0, eta: 0.3, mu: None }),
                ..Sampler::default()
            };
            let mut tokens = vec![1, 2, 3, 1, 2];
            let mut row = RowSampler::default();
            row.start(&sampler, &tokens, 1000);
            for step in 0..400 {
                let drawn = row.draw(&logits, None, step);
                assert_eq!(row.draw(&logits, None, step), drawn, "a draw alone changes nothing");
                let mut later = RowSampler::default();
                let mirostat = sampler.mirostat.map(|mirostat| Mirostat { mu: Some(row.mu), ..mirostat });
                later.start(&Sampler { mirostat, ..sampler.clone() }, &tokens, 1000);
                assert_eq!(later.draw(&logits, None, step), drawn, "step {step}, window {window}");
                row.commit(drawn);
                tokens.push(drawn.id);
            }
        }
    }
}

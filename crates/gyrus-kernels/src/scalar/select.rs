use crate::call::{SELECT_EMITTED, SELECT_HELD, SELECT_NOT_FINITE, SELECT_ROWS};
use crate::params::SlotState;
use crate::select::Counts;

/// The decode state of one row: the twin of the state that the select kernels advance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectState {
    /// Position of the sequence's last token: the next draw is from its logits.
    pub position: u32,
    /// That token.
    pub token: u32,
    /// Tokens by position, modulo its length.
    pub history: Vec<u32>,
    /// How often each token occurred within the window.
    pub counts: Counts,
}

impl SelectState {
    /// The state of a sequence whose next token is to be drawn. A window longer than the history is cut to it.
    pub fn new(text: &[u32], window: u32, length: usize) -> SelectState {
        let mut history = vec![0; length];
        for (position, &token) in text.iter().enumerate() {
            history[position % length] = token;
        }
        let window = window.min(length as u32);
        let mut counts = Counts::new();
        for &token in text.iter().rev().take(window as usize) {
            *counts.entry(token).or_default() += 1;
        }
        let position = text.len().saturating_sub(1) as u32;
        SelectState { position, token: text.last().copied().unwrap_or(0), history, counts }
    }

    /// Adds a drawn token to the window of the last `window` tokens, and removes the one that leaves it.
    pub fn advance(&mut self, token: u32, window: u32) {
        let length = self.history.len() as u32;
        let window = window.min(length);
        self.position += 1;
        if window > 0 {
            if let Some(left) = self.position.checked_sub(window) {
                let old = self.history[(left % length) as usize];
                if let Some(count) = self.counts.get_mut(&old) {
                    *count -= 1;
                    if *count == 0 {
                        self.counts.remove(&old);
                    }
                }
            }
            *self.counts.entry(token).or_default() += 1;
        }
        self.history[(self.position % length) as usize] = token;
        self.token = token;
    }

    /// One step of the row's slot: it advances to the chosen token, or holds. Returns what the step emits. `chosen` is
    /// `None` if the logits are not finite.
    pub fn step(&mut self, slot: &mut SlotState, chosen: Option<u32>) -> u32 {
        slot.step += 1;
        if !slot.advances(self.position) {
            return SELECT_HELD;
        }
        let Some(token) = chosen else {
            slot.flags |= SlotState::ENDED;
            return SELECT_NOT_FINITE;
        };
        self.advance(token, slot.penalty_window);
        if slot.ends().contains(&token) {
            slot.flags |= SlotState::ENDED;
        }
        token
    }
}

/// The logits of a row with a mask: -infinity for tokens whose bit is not set.
pub fn allowed(logits: &[f32], mask: &[u32]) -> Vec<f32> {
    let is_allowed = |token: usize| mask[token / 32] >> (token % 32) & 1 == 1;
    let masked = |(token, logit): (usize, &f32)| if is_allowed(token) { *logit } else { f32::NEG_INFINITY };
    logits.iter().enumerate().map(masked).collect()
}

/// The log-probability of a token, and the most likely tokens with theirs, in f64. Equal logits are in the order of ids.
pub fn logprobs(logits: &[f32], token: u32, top: usize) -> (f64, Vec<(u32, f64)>) {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - largest).exp()).sum();
    let of = |token: u32| f64::from(logits[token as usize]) - largest - sum.ln();
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    // The sort is stable. Zeros of either sign are equal.
    ids.sort_by(|&a, &b| of(b).total_cmp(&of(a)));
    (of(token), ids.into_iter().take(top).map(|id| (id, of(id))).collect())
}

/// What `kept` holds of a row after a step: its logits if the host samples it, else what it held before.
pub fn kept_logits(slot: &SlotState, logits: &[f32], before: &[u32]) -> Vec<u32> {
    match slot.flags & SlotState::HOST {
        0 => before.to_vec(),
        _ => logits.iter().map(|logit| logit.to_bits()).collect(),
    }
}

/// The index in `emitted` of what a row emits in a step.
pub fn emitted_at(step: u32, row: u32) -> usize {
    ((step % SELECT_EMITTED) * SELECT_ROWS + row) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sliding the window equals counting again.
    #[test]
    fn windows_slide() {
        for (window, length) in [(0, 1), (1, 1), (3, 4), (1024, 1024), (9, 4096), (u32::MAX, 4096)] {
            let mut text = vec![5, 6, 5];
            let mut state = SelectState::new(&text, window, length);
            for i in 0..3000 {
                let token = i * i % 11;
                text.push(token);
                state.advance(token, window);
                assert_eq!(state, {
                    let mut anew = SelectState::new(&text, window, length);
                    anew.history.clone_from(&state.history);
                    anew
                });
                assert_eq!(state.history[(text.len() - 1) % length], token);
            }
        }
    }
}

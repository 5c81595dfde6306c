use crate::call::{SELECT_EMITTED, SELECT_HISTORY, SELECT_ROWS};
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
    /// The state of a sequence whose next token is to be drawn.
    pub fn new(text: &[u32], window: u32) -> SelectState {
        let mut history = vec![0; SELECT_HISTORY as usize];
        for (position, &token) in text.iter().enumerate() {
            history[position % SELECT_HISTORY as usize] = token;
        }
        let mut counts = Counts::new();
        for &token in text.iter().rev().take(window as usize) {
            *counts.entry(token).or_default() += 1;
        }
        let position = text.len().saturating_sub(1) as u32;
        SelectState { position, token: text.last().copied().unwrap_or(0), history, counts }
    }

    /// Adds a drawn token to the window of the last `window` tokens, and removes the one that leaves it.
    pub fn advance(&mut self, token: u32, window: u32) {
        self.position += 1;
        if window > 0 {
            if let Some(left) = self.position.checked_sub(window) {
                let old = self.history[(left % SELECT_HISTORY) as usize];
                if let Some(count) = self.counts.get_mut(&old) {
                    *count -= 1;
                    if *count == 0 {
                        self.counts.remove(&old);
                    }
                }
            }
            *self.counts.entry(token).or_default() += 1;
        }
        self.history[(self.position % SELECT_HISTORY) as usize] = token;
        self.token = token;
    }

    /// The index of this row's last token in `emitted`.
    pub fn emitted_at(&self, row: u32) -> usize {
        ((self.position % SELECT_EMITTED) * SELECT_ROWS + row) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sliding the window equals counting again.
    #[test]
    fn windows_slide() {
        for window in [0, 1, 3, 1024] {
            let mut text = vec![5, 6, 5];
            let mut state = SelectState::new(&text, window);
            for i in 0..3000 {
                let token = i * i % 11;
                text.push(token);
                state.advance(token, window);
                assert_eq!(state, {
                    let mut anew = SelectState::new(&text, window);
                    anew.history.clone_from(&state.history);
                    anew
                });
                assert_eq!(state.history[(text.len() - 1) % 1024], token);
            }
        }
    }
}

use std::collections::VecDeque;

use super::decode_row::reserved;
use crate::sampler::Sampler;
use crate::select::Counts;

/// The tokens that a sampler's penalties count, and how often each occurs. It slides with each token.
#[derive(Debug, Default)]
pub(crate) struct PenaltyWindow {
    /// 0 without penalties.
    size: usize,
    tokens: VecDeque<u32>,
    counts: Counts,
}

impl PenaltyWindow {
    /// Counts the last tokens of a sequence, which may grow to `length`.
    pub(crate) fn fill(&mut self, sampler: &Sampler, tokens: &[u32], length: usize) {
        self.size = if sampler.has_penalties() { sampler.penalty_window as usize } else { 0 };
        self.tokens.clear();
        sampler.count(tokens, &mut self.counts);
        if self.size > 0 {
            self.tokens.extend(&tokens[tokens.len().saturating_sub(self.size)..]);
            // One more than the window, before the oldest leaves it. A table of counts that is at most half full
            // is cleaned in place instead of being allocated anew.
            let most = reserved(self.size.min(length.max(tokens.len())) + 1);
            self.tokens.reserve(most.saturating_sub(self.tokens.len()));
            self.counts.reserve((2 * most).saturating_sub(self.counts.len()));
        }
    }

    pub(crate) fn push(&mut self, token: u32) {
        if self.size == 0 {
            return;
        }
        self.tokens.push_back(token);
        *self.counts.entry(token).or_insert(0) += 1;
        if self.tokens.len() > self.size
            && let Some(left) = self.tokens.pop_front()
            && let Some(count) = self.counts.get_mut(&left)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&left);
            }
        }
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sliding the window equals counting again.
    #[test]
    fn windows_slide() {
        for window in [0, 1, 3, 64, u32::MAX] {
            let sampler = Sampler { penalty_window: window, presence_penalty: 0.5, ..Sampler::default() };
            let mut tokens = vec![5, 6, 5];
            let (mut sliding, mut counted) = (PenaltyWindow::default(), Counts::new());
            sliding.fill(&sampler, &tokens, 100);
            for i in 0..300 {
                tokens.push(i * i % 11);
                sliding.push(i * i % 11);
                sampler.count(&tokens, &mut counted);
                assert_eq!(sliding.counts(), &counted, "window {window}, token {i}");
            }
        }
    }
}

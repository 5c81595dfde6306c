//! Which tokens may come next, whatever the model prefers.

use super::tokens::Tokens;

/// The latest time at which the first segment may begin: 1 s, in timestamps.
const LATEST_FIRST: u32 = 50;

/// The rules of a request.
pub(super) struct Rules {
    /// Tokens that never come.
    suppressed: Vec<u32>,
    /// Tokens that do not come first: a blank, and the end.
    not_first: Vec<u32>,
    timestamps: bool,
    end: u32,
    no_timestamps: u32,
    first_timestamp: u32,
}

impl Rules {
    /// With timestamps or without. `non_speech` are tokens to suppress beside the special ones.
    pub(super) fn new(tokens: &Tokens, timestamps: bool, suppress_blank: bool, non_speech: &[u32]) -> Rules {
        let mut suppressed = non_speech.to_vec();
        suppressed.extend(tokens.start..=tokens.no_timestamps());
        suppressed.sort_unstable();
        suppressed.dedup();
        let mut not_first = Vec::new();
        if suppress_blank {
            not_first.extend(tokens.blank());
            not_first.push(tokens.end);
        }
        Rules {
            suppressed,
            not_first,
            timestamps,
            end: tokens.end,
            no_timestamps: tokens.no_timestamps(),
            first_timestamp: tokens.first_timestamp,
        }
    }

    /// Sets the logits of tokens that may not follow `sampled` to −∞.
    pub(super) fn apply(&self, sampled: &[u32], logits: &mut [f32]) {
        let mut forbid = |token: u32| {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        };
        if sampled.is_empty() {
            self.not_first.iter().for_each(|token| forbid(*token));
        }
        self.suppressed.iter().for_each(|token| forbid(*token));
        let first = self.first_timestamp as usize;
        if first > logits.len() {
            return;
        }
        if !self.timestamps {
            logits[first..].fill(f32::NEG_INFINITY);
            return;
        }
        self.pairs(sampled, logits);
        // If a timestamp is more probable than any text, it is one.
        let (text, times) = logits.split_at_mut(first);
        let largest_time = times.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if largest_time == f32::NEG_INFINITY {
            return;
        }
        let sum: f32 = times.iter().map(|logit| (logit - largest_time).exp()).sum();
        let best_text = text.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if largest_time + sum.ln() > best_text {
            text.fill(f32::NEG_INFINITY);
        }
    }

    /// Timestamps come in pairs, except before the end, and do not decrease.
    fn pairs(&self, sampled: &[u32], logits: &mut [f32]) {
        let (first, end) = (self.first_timestamp as usize, self.end as usize);
        let is_time = |token: &u32| *token >= self.first_timestamp;
        let last_is_time = sampled.last().is_some_and(is_time);
        let before_is_time = sampled.len() < 2 || is_time(&sampled[sampled.len() - 2]);
        if last_is_time {
            match before_is_time {
                true => logits[first..].fill(f32::NEG_INFINITY),
                false => logits[..end].fill(f32::NEG_INFINITY),
            }
        }
        if let Some(&last) = sampled.iter().rev().find(|token| is_time(token)) {
            // A segment has a length, so that decoding proceeds.
            let least = if last_is_time && !before_is_time { last } else { last + 1 };
            let least = (least as usize).min(logits.len());
            logits[first..least].fill(f32::NEG_INFINITY);
        }
        if sampled.is_empty() {
            logits[..first].fill(f32::NEG_INFINITY);
            let latest = (first + LATEST_FIRST as usize + 1).min(logits.len());
            logits[latest..].fill(f32::NEG_INFINITY);
        }
        debug_assert!(self.no_timestamps < self.first_timestamp);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tests::small;
    use super::*;

    /// The tokens that may follow.
    fn allowed(sampled: &[u32], timestamps: bool) -> Vec<u32> {
        let tokens = small(3);
        let rules = Rules::new(&tokens, timestamps, true, &[7]);
        let mut logits = vec![0.0; tokens.first_timestamp as usize + 1501];
        // No timestamp is as probable as text.
        logits[tokens.first_timestamp as usize..].fill(-20.0);
        rules.apply(sampled, &mut logits);
        (0..).zip(&logits).filter(|(_, logit)| **logit > f32::NEG_INFINITY).map(|(id, _)| id).collect()
    }

    #[test]
    fn the_first_token_is_a_timestamp_of_up_to_a_second() {
        let tokens = small(3);
        let first = tokens.first_timestamp;
        assert_eq!(allowed(&[], true), (first..=first + 50).collect::<Vec<_>>());
        let without = allowed(&[], false);
        assert!(!without.contains(&7) && !without.contains(&32) && !without.contains(&tokens.end));
        assert!(without.contains(&6) && without.iter().all(|token| *token < tokens.end));
    }

    #[test]
    fn timestamps_come_in_pairs_and_do_not_decrease() {
        let tokens = small(3);
        let (first, end) = (tokens.first_timestamp, tokens.end);
        // After the first timestamp comes text.
        let after = allowed(&[first + 10], true);
        assert!(after.contains(&65) && after.iter().all(|token| *token <= end));
        // Text, then text, the end or a later timestamp.
        let after = allowed(&[first + 10, 65], true);
        assert!(after.contains(&66) && after.contains(&end));
        assert!(!after.contains(&(first + 10)) && after.contains(&(first + 11)));
        // A timestamp after text: the end, or a timestamp that is not earlier.
        let after = allowed(&[first + 10, 65, first + 20], true);
        assert_eq!(after[0], end);
        assert_eq!(after[1..], (first + 20..first + 1501).collect::<Vec<_>>());
        // Two timestamps: text.
        let after = allowed(&[first + 10, 65, first + 20, first + 20], true);
        assert!(after.contains(&65) && after.iter().all(|token| *token <= end));
        assert!(!allowed(&[first + 10, 65], true).contains(&tokens.no_speech()));
    }

    #[test]
    fn timestamps_that_are_together_more_probable_than_any_text_win() {
        let tokens = small(3);
        let rules = Rules::new(&tokens, true, true, &[]);
        let first = tokens.first_timestamp as usize;
        let sampled = [tokens.first_timestamp, 65];
        for (time, wins) in [(-8.0, false), (-7.0, true)] {
            let mut logits = vec![-10.0; first + 1501];
            logits[66] = 0.0;
            // 1,500 of them: their sum is e^7.3 times one.
            logits[first..].fill(time);
            rules.apply(&sampled, &mut logits);
            assert_eq!(logits[66] == f32::NEG_INFINITY, wins, "{time}");
        }
    }
}

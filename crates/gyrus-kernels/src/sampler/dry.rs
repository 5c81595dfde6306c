//! DRY ("don't repeat yourself"): a penalty on tokens that would continue a repetition.
//!
//! If the last `n` tokens also stand somewhere earlier, the token that followed them there would make the repetition
//! `n + 1` tokens long. Its logit is lowered by `multiplier · base^(n - allowed_length)` if `n` is at least the allowed
//! length. A repetition does not reach over a sequence breaker, such as a line break.

use std::sync::Arc;

/// The parameters of DRY.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// The penalty on a repetition of the allowed length; 0 for none.
    pub multiplier: f32,
    /// By how much each further token of a repetition multiplies the penalty.
    pub base: f32,
    /// The shortest repetition whose continuation is penalised.
    pub allowed_length: u32,
    /// How many of the last tokens are searched for repetitions.
    pub window: u32,
    /// What repetitions do not reach over.
    pub breakers: Arc<Breakers>,
}

impl Default for Dry {
    fn default() -> Dry {
        Dry {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            window: u32::MAX,
            breakers: Arc::new(Breakers::default()),
        }
    }
}

/// Sequences of tokens that repetitions do not reach over.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Breakers {
    /// Sorted, so that those with the same first token are together.
    sequences: Vec<Vec<u32>>,
}

impl Breakers {
    /// Of these sequences. Empty ones are left out.
    pub fn new(sequences: impl IntoIterator<Item = Vec<u32>>) -> Breakers {
        let mut sequences: Vec<_> = sequences.into_iter().filter(|sequence| !sequence.is_empty()).collect();
        sequences.sort_unstable();
        sequences.dedup();
        Breakers { sequences }
    }

    /// What follows the first token in the sequences that begin with it.
    fn tails(&self, first: u32) -> impl Iterator<Item = &[u32]> {
        let from = self.sequences.partition_point(|sequence| sequence[0] < first);
        self.sequences[from..].iter().take_while(move |sequence| sequence[0] == first).map(|all| &all[1..])
    }

    /// Whether a token is a breaker by itself.
    pub(super) fn has_token(&self, token: u32) -> bool {
        self.tails(token).any(<[u32]>::is_empty)
    }

    /// The number of tokens behind the last breaker; all of them if there is none.
    pub(super) fn tokens_behind(&self, tokens: &[u32]) -> usize {
        if self.sequences.is_empty() {
            return tokens.len();
        }
        for (at, &token) in tokens.iter().enumerate().rev() {
            let rest = &tokens[at + 1..];
            let longest = self.tails(token).filter(|tail| rest.starts_with(tail)).map(<[u32]>::len).max();
            if let Some(longest) = longest {
                return rest.len() - longest;
            }
        }
        tokens.len()
    }
}

/// Memory that is used again from draw to draw.
#[derive(Debug, Default)]
pub(crate) struct DryScratch {
    matches: Vec<u32>,
    /// Tokens and by how much their logits are lowered, by token.
    pub(crate) penalties: Vec<(u32, f32)>,
}

impl Dry {
    /// Whether anything is penalised.
    pub fn is_active(&self) -> bool {
        self.multiplier > 0.0 && self.window > 0
    }

    /// The penalty on the continuation of a repetition. It saturates.
    pub(crate) fn penalty(&self, length: u32) -> f64 {
        let exponent = length.saturating_sub(self.allowed_length);
        let power = f64::from(self.base).powi(i32::try_from(exponent).unwrap_or(i32::MAX));
        (f64::from(self.multiplier) * power).min(f64::from(f32::MAX))
    }

    /// Finds what is penalised after these tokens.
    pub(crate) fn search(&self, tokens: &[u32], scratch: &mut DryScratch) {
        let DryScratch { matches, penalties } = scratch;
        penalties.clear();
        let tokens = &tokens[tokens.len().saturating_sub(self.window as usize)..];
        let allowed = self.allowed_length as usize;
        let most = self.breakers.tokens_behind(tokens);
        if !self.is_active() || tokens.len() <= allowed || most < allowed {
            return;
        }
        common_suffixes(tokens, matches);
        for (end, &length) in matches.iter().enumerate() {
            let length = (length as usize).min(most);
            let next = tokens[end + 1];
            if length >= allowed && !self.breakers.has_token(next) {
                penalties.push((next, length as f32));
            }
        }
        // The longest repetition counts.
        penalties.sort_unstable_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        penalties.dedup_by_key(|(token, _)| *token);
        penalties.iter_mut().for_each(|(_, length)| *length = self.penalty(*length as u32) as f32);
    }
}

/// For each token but the last: how many tokens up to it are the same as the last ones of all. This is the Z-algorithm
/// on the reversed tokens: its time is linear.
fn common_suffixes(tokens: &[u32], lengths: &mut Vec<u32>) {
    let count = tokens.len();
    let reversed = |i: usize| tokens[count - 1 - i];
    lengths.clear();
    lengths.resize(count.saturating_sub(1), 0);
    // The match that reaches furthest: [first, end).
    let (mut first, mut end) = (0, 0);
    for i in 1..count {
        let mut length = 0;
        if i < end {
            // The same as at i - first, as far as that match reaches.
            length = (lengths[count - 1 - (i - first)] as usize).min(end - i);
        }
        while i + length < count && reversed(length) == reversed(i + length) {
            length += 1;
        }
        if i + length > end {
            (first, end) = (i, i + length);
        }
        lengths[count - 1 - i] = length as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::random;

    fn dry(allowed_length: u32, breakers: &[&[u32]]) -> Dry {
        let breakers = Arc::new(Breakers::new(breakers.iter().map(|sequence| sequence.to_vec())));
        Dry { multiplier: 1.0, base: 2.0, allowed_length, breakers, ..Dry::default() }
    }

    fn found(dry: &Dry, tokens: &[u32]) -> Vec<(u32, f32)> {
        let mut scratch = DryScratch::default();
        dry.search(tokens, &mut scratch);
        scratch.penalties
    }

    #[test]
    fn continuations_of_repetitions_are_penalised() {
        // After 1 2 3 came 4; after 2 3 came 7.
        let tokens = [1, 2, 3, 4, 9, 2, 3, 7, 1, 2, 3];
        assert_eq!(found(&dry(2, &[]), &tokens), [(4, 2.0), (7, 1.0)]);
        assert_eq!(found(&dry(3, &[]), &tokens), [(4, 1.0)]);
        assert_eq!(found(&dry(4, &[]), &tokens), []);
        let near = Dry { window: 6, ..dry(2, &[]) };
        assert_eq!(found(&near, &tokens), [(7, 1.0)]);
        assert_eq!(found(&dry(2, &[]), &[]), []);
        assert_eq!(found(&dry(0, &[]), &[5, 6]), [(6, 1.0)]);
    }

    #[test]
    fn repetitions_do_not_reach_over_breakers() {
        let tokens = [1, 2, 3, 4, 9, 2, 3, 7, 1, 2, 3];
        assert_eq!(found(&dry(2, &[&[1]]), &tokens), [(4, 1.0), (7, 1.0)]);
        assert_eq!(found(&dry(2, &[&[2]]), &tokens), []);
        assert_eq!(found(&dry(2, &[&[1, 2]]), &tokens), []);
        assert_eq!(found(&dry(2, &[&[1, 5]]), &tokens), [(4, 2.0), (7, 1.0)]);
        // A breaker itself is not penalised.
        assert_eq!(found(&dry(2, &[&[4]]), &tokens), [(7, 1.0)]);
        assert_eq!(found(&dry(2, &[&[4, 4]]), &tokens), [(4, 2.0), (7, 1.0)]);
    }

    #[test]
    fn penalties_saturate() {
        let tokens = vec![3; 4000];
        assert_eq!(found(&dry(2, &[]), &tokens), [(3, f32::MAX)]);
        let flat = Dry { base: 1.0, ..dry(2, &[]) };
        assert_eq!(found(&flat, &tokens), [(3, 1.0)]);
    }

    /// The linear search finds what a comparison of all pairs finds.
    #[test]
    fn suffixes_are_those_of_a_comparison() {
        for seed in 0..200 {
            let tokens: Vec<u32> =
                (0..seed % 60).map(|i| (random(seed, i) % (2 + seed % 3)) as u32).collect();
            let mut lengths = Vec::new();
            common_suffixes(&tokens, &mut lengths);
            assert_eq!(lengths.len(), tokens.len().saturating_sub(1));
            for (end, length) in lengths.iter().enumerate() {
                let pairs = tokens[..=end].iter().rev().zip(tokens.iter().rev());
                assert_eq!(*length as usize, pairs.take_while(|(a, b)| a == b).count(), "{tokens:?} {end}");
            }
        }
    }
}

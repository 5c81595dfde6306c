use std::collections::HashMap;

use crate::log_softmax::LogSoftmax;
use crate::random::random;
use crate::sampler::Sampler;
use crate::sampler::chain::uniform;

/// How often each token occurred within the penalty window.
pub type Counts = HashMap<u32, u32>;

impl Sampler {
    /// Counts how often each token of a sequence occurs within the window; empty without penalties.
    pub fn count(&self, text: &[u32], counts: &mut Counts) {
        counts.clear();
        if self.has_penalties() {
            let window = text.len().saturating_sub(self.penalty_window as usize);
            text[window..].iter().for_each(|&token| *counts.entry(token).or_insert(0) += 1);
        }
    }

    /// Chooses a token with a sampler that [is plain](Sampler::is_plain). Logits of tokens that are not allowed are
    /// -infinity. `step` numbers the draws of a sequence; with the seed it determines the random number.
    /// `scratch` is reused from call to call so that steady decoding does not allocate.
    pub fn draw(&self, logits: &[f32], counts: &Counts, step: u64, scratch: &mut Vec<(f32, u32)>) -> u32 {
        if self.is_greedy() && !self.has_penalties() {
            argmax(logits)
        } else {
            let token = self.choose_quickly(logits, counts, step, scratch);
            token.unwrap_or_else(|| self.choose(logits, counts, step, scratch))
        }
    }

    /// The number in `[0, 1)` that decides draw `step`.
    pub fn number(&self, step: u64) -> f64 {
        uniform(random(self.seed, step))
    }

    /// The definition of a draw of a plain sampler.
    pub(crate) fn choose(
        &self,
        logits: &[f32],
        counts: &Counts,
        step: u64,
        kept: &mut Vec<(f32, u32)>,
    ) -> u32 {
        kept.clear();
        let numbered = logits.iter().zip(0u32..).filter(|(l, _)| !l.is_nan());
        kept.extend(numbered.map(|(&l, id)| (l, id)));
        if self.has_penalties() {
            for (logit, id) in kept.iter_mut() {
                if let Some(&n) = counts.get(id) {
                    *logit = self.penalised(*logit, n);
                }
            }
        }
        if self.is_greedy() {
            return kept
                .iter()
                .fold((f32::NEG_INFINITY, 0), |best, &(l, id)| if l > best.0 { (l, id) } else { best })
                .1;
        }
        let k = self.top_k as usize;
        if k > 0 && k < kept.len() {
            kept.select_nth_unstable_by(k - 1, more_likely);
            kept.truncate(k);
        }
        let Some(&(largest, best)) = kept.iter().min_by(|a, b| more_likely(a, b)) else { return 0 };
        // From logits to probabilities relative to the largest, which is 1.
        let inverse = 1.0 / f64::from(self.temperature);
        let mut total = 0.0;
        for (logit, _) in kept.iter_mut() {
            let exponent = (f64::from(*logit) - f64::from(largest)) * inverse;
            let p = if exponent < NEGLIGIBLE { 0.0 } else { exponent.exp() };
            total += p;
            *logit = p as f32;
        }
        let mut kept = Descending::new(kept);
        let mut count = kept.all.len();
        if self.top_p < 1.0 {
            let goal = f64::from(self.top_p) * total;
            let mut sum = 0.0;
            let enough = (0..count).find(|&i| {
                sum += f64::from(kept.at(i).0);
                sum >= goal
            });
            count = enough.map_or(count, |n| n + 1);
        }
        if self.min_p > 0.0 {
            count = (0..count).find(|&i| kept.at(i).0 < self.min_p).unwrap_or(count).max(1);
        }
        if self.top_p < 1.0 || self.min_p > 0.0 {
            total = (0..count).map(|i| f64::from(kept.at(i).0)).sum();
        }
        let mut left = self.number(step) * total;
        for i in 0..count {
            let (p, id) = kept.at(i);
            left -= f64::from(p);
            if left < 0.0 {
                return id;
            }
        }
        best
    }

    pub(crate) fn penalised(&self, logit: f32, count: u32) -> f32 {
        // A token that is not allowed.
        if logit == f32::NEG_INFINITY {
            return logit;
        }
        let scaled =
            if logit > 0.0 { logit / self.repetition_penalty } else { logit * self.repetition_penalty };
        let lowered = scaled - self.presence_penalty - self.frequency_penalty * count as f32;
        // If a penalty overflows f32, the logit saturates at the largest or smallest finite value.
        lowered.clamp(f32::MIN, f32::MAX)
    }
}

/// The exponent below which a probability is lost in the rounding of the vocabulary's sum, which is at least 1.
pub(crate) const NEGLIGIBLE: f64 = -80.0;

/// By descending probability, then by id.
pub(crate) fn more_likely(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Candidates in order, sorted lazily: the draw rarely needs more than a few of a whole vocabulary.
pub(crate) struct Descending<'a> {
    all: &'a mut [(f32, u32)],
    sorted: usize,
}

impl<'a> Descending<'a> {
    pub(crate) fn new(all: &'a mut [(f32, u32)]) -> Descending<'a> {
        Descending { all, sorted: 0 }
    }

    pub(crate) fn at(&mut self, index: usize) -> (f32, u32) {
        if index >= self.sorted {
            let rest = &mut self.all[self.sorted..];
            let more = (3 * self.sorted).max(256).min(rest.len());
            if more < rest.len() {
                rest.select_nth_unstable_by(more - 1, more_likely);
            }
            rest[..more].sort_unstable_by(more_likely);
            self.sorted += more;
        }
        self.all[index]
    }
}

/// The index of the largest value, the lowest among equals; NaN is never chosen.
pub fn argmax(values: &[f32]) -> u32 {
    let best = values
        .iter()
        .zip(0u32..)
        .fold((f32::NEG_INFINITY, 0), |best, (&v, id)| if v > best.0 { (v, id) } else { best });
    best.1
}

/// The natural logarithm of `softmax(logits)[id]`.
pub fn log_softmax_at(logits: &[f32], id: u32) -> f32 {
    logits.get(id as usize).map_or(f32::NEG_INFINITY, |&logit| LogSoftmax::new(logits).of(logit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(sampler: &Sampler, logits: &[f32], counts: &Counts, n: u64) -> HashMap<u32, f64> {
        let mut scratch = Vec::new();
        let mut seen = HashMap::new();
        for step in 0..n {
            *seen.entry(sampler.draw(logits, counts, step, &mut scratch)).or_insert(0.0) += 1.0 / n as f64;
        }
        seen
    }

    fn sampling() -> Sampler {
        Sampler { temperature: 1.0, ..Sampler::default() }
    }

    /// Logits whose probabilities are 0.5, 0.25, 0.125, 0.125.
    fn logits() -> Vec<f32> {
        [0.5f32, 0.25, 0.125, 0.125].map(f32::ln).to_vec()
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_never_nan() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, f32::NAN]), 1);
        let mut scratch = Vec::new();
        assert_eq!(Sampler::default().draw(&logits(), &Counts::new(), 0, &mut scratch), 0);
        assert!((log_softmax_at(&logits(), 0) - 0.5f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn draws_follow_the_distribution() {
        let seen = draws(&sampling(), &logits(), &Counts::new(), 40_000);
        for (id, p) in [0.5, 0.25, 0.125, 0.125].into_iter().enumerate() {
            // Four standard deviations of a binomial share.
            let bound = 4.0 * (p * (1.0 - p) / 40_000f64).sqrt();
            assert!((seen[&(id as u32)] - p).abs() < bound, "{id}: {}", seen[&(id as u32)]);
        }
    }

    #[test]
    fn filters_keep_what_they_should() {
        let ids = |sampler: Sampler| {
            let mut ids: Vec<u32> = draws(&sampler, &logits(), &Counts::new(), 4000).into_keys().collect();
            ids.sort_unstable();
            ids
        };
        assert_eq!(ids(Sampler { top_k: 2, ..sampling() }), [0, 1]);
        assert_eq!(ids(Sampler { top_p: 0.7, ..sampling() }), [0, 1]);
        assert_eq!(ids(Sampler { top_p: 0.5, ..sampling() }), [0]);
        assert_eq!(ids(Sampler { min_p: 0.3, ..sampling() }), [0, 1]);
        assert_eq!(ids(Sampler { top_k: 3, top_p: 0.99, ..sampling() }), [0, 1, 2]);
    }

    /// Lazy sorting gives the order of a full sort.
    #[test]
    fn a_large_vocabulary_is_drawn_from_as_if_sorted() {
        let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919 % 5000) as f32 / 1000.0).floor()).collect();
        let mut sorted: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
        sorted.sort_by(more_likely);
        for (top_p, min_p) in [(1.0, 0.0), (0.9, 0.0), (1.0, 0.1), (0.5, 0.05)] {
            let sampler = Sampler { top_p, min_p, ..sampling() };
            let total: f64 = sorted.iter().map(|(l, _)| f64::from(l - sorted[0].0).exp()).sum();
            let mut kept: Vec<(f64, u32)> = Vec::new();
            let mut sum = 0.0;
            for &(logit, id) in &sorted {
                let p = f64::from(logit - sorted[0].0).exp();
                if sum >= f64::from(top_p) * total || p < f64::from(min_p) {
                    break;
                }
                sum += p;
                kept.push((sum, id));
            }
            let mut scratch = Vec::new();
            for step in 0..500 {
                let goal = sampler.number(step) * sum;
                let expected = kept.iter().find(|(sum, _)| *sum > goal).unwrap().1;
                assert_eq!(
                    sampler.draw(&logits, &Counts::new(), step, &mut scratch),
                    expected,
                    "{top_p} {min_p}"
                );
            }
        }
    }

    #[test]
    fn penalties_act_on_what_occurred() {
        let counts = Counts::from([(0, 3)]);
        let pick = |sampler: Sampler| sampler.draw(&[2.0, 1.5, -1.0], &counts, 0, &mut Vec::new());
        assert_eq!(pick(Sampler::default()), 0);
        assert_eq!(pick(Sampler { repetition_penalty: 1.5, ..Sampler::default() }), 1);
        assert_eq!(pick(Sampler { presence_penalty: 0.6, ..Sampler::default() }), 1);
        assert_eq!(pick(Sampler { frequency_penalty: 0.2, ..Sampler::default() }), 1);
        assert_eq!(pick(Sampler { frequency_penalty: 0.1, ..Sampler::default() }), 0);
    }

    #[test]
    fn a_seed_repeats_and_another_differs() {
        let text = |seed| -> Vec<u32> {
            let sampler = Sampler { seed, ..sampling() };
            (0..50).map(|step| sampler.draw(&logits(), &Counts::new(), step, &mut Vec::new())).collect()
        };
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }
}

use std::collections::HashMap;

use crate::log_softmax::LogSoftmax;
use crate::random::random;

/// How the next token is chosen: penalties → temperature → top-k → top-p → min-p → draw.
///
/// The default is greedy. Ties go to the lowest id.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampler {
    /// 0 is greedy; larger flattens the distribution.
    pub temperature: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the most likely tokens until their probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this fraction of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occurred; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that occurred.
    pub presence_penalty: f32,
    /// Subtracted from the logits of tokens, for each time they occurred.
    pub frequency_penalty: f32,
    /// How many of the last tokens the penalties count.
    pub penalty_window: u32,
    /// The seed of the draws: the same seed gives the same completion.
    pub seed: u64,
}

impl Default for Sampler {
    fn default() -> Sampler {
        Sampler {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_window: 64,
            seed: 0,
        }
    }
}

/// A sampler parameter that means nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name} is {value}, it must be {expected}")]
pub struct SamplerError {
    /// Which parameter.
    pub name: &'static str,
    /// Its value.
    pub value: f32,
    /// What is possible.
    pub expected: &'static str,
}

/// How often each token occurred within the penalty window.
pub type Counts = HashMap<u32, u32>;

impl Sampler {
    /// Whether every parameter is in its range.
    pub fn validate(&self) -> Result<(), SamplerError> {
        let check = |ok: bool, name, value, expected| {
            if ok { Ok(()) } else { Err(SamplerError { name, value, expected }) }
        };
        let finite = f32::is_finite;
        check(
            finite(self.temperature) && self.temperature >= 0.0,
            "temperature",
            self.temperature,
            "0 or more",
        )?;
        check(self.top_p > 0.0 && self.top_p <= 1.0, "top-p", self.top_p, "above 0 and at most 1")?;
        check((0.0..=1.0).contains(&self.min_p), "min-p", self.min_p, "from 0 to 1")?;
        let penalty = self.repetition_penalty;
        check(finite(penalty) && penalty > 0.0, "repetition penalty", penalty, "above 0")?;
        check(finite(self.presence_penalty), "presence penalty", self.presence_penalty, "a number")?;
        check(finite(self.frequency_penalty), "frequency penalty", self.frequency_penalty, "a number")
    }

    /// Whether the sampler is greedy.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether any penalty is set.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Counts how often each token of a sequence occurs within the window; empty without penalties.
    pub fn count(&self, text: &[u32], counts: &mut Counts) {
        counts.clear();
        if self.has_penalties() {
            let window = text.len().saturating_sub(self.penalty_window as usize);
            text[window..].iter().for_each(|&token| *counts.entry(token).or_insert(0) += 1);
        }
    }

    /// Chooses a token. Logits of tokens that are not allowed are -infinity. `step` numbers the draws of a sequence; with the seed it determines the random number.
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
        uniform(self.seed, step)
    }

    /// The tokens that are kept, the most likely first, with their probabilities, by definition in f64; and whether a cut
    /// is so close that rounding may decide it. For tests of implementations in f32.
    pub fn exact(&self, logits: &[f32], counts: &Counts) -> (Vec<(u32, f64)>, bool) {
        let penalised = |id: u32, logit: f32| match counts.get(&id) {
            Some(&n) if self.has_penalties() => {
                let by = f64::from(self.repetition_penalty);
                let scaled = if logit > 0.0 { f64::from(logit) / by } else { f64::from(logit) * by };
                scaled - f64::from(self.presence_penalty) - f64::from(self.frequency_penalty) * f64::from(n)
            }
            _ => f64::from(logit),
        };
        let numbered = logits.iter().zip(0u32..).filter(|(logit, _)| !logit.is_nan());
        let mut kept: Vec<(u32, f64)> = numbered.map(|(&logit, id)| (id, penalised(id, logit))).collect();
        kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if self.top_k > 0 {
            kept.truncate(self.top_k as usize);
        }
        let Some(&(_, most)) = kept.first() else { return (kept, false) };
        kept.iter_mut().for_each(|(_, p)| *p = ((*p - most) / f64::from(self.temperature)).exp());
        let total: f64 = kept.iter().map(|(_, p)| p).sum();
        let mut close = false;
        let mut count = kept.len();
        if self.top_p < 1.0 {
            let goal = f64::from(self.top_p) * total;
            let mut sum = 0.0;
            let enough = kept.iter().position(|(_, p)| {
                sum += p;
                close |= (sum - goal).abs() < 1e-5 * total;
                sum >= goal
            });
            count = enough.map_or(count, |n| n + 1);
        }
        if self.min_p > 0.0 {
            close |= kept.iter().any(|(_, p)| (p / f64::from(self.min_p) - 1.0).abs() < 1e-5);
            let dropped = kept.iter().position(|(_, p)| *p < f64::from(self.min_p));
            count = count.min(dropped.unwrap_or(count)).max(1);
        }
        kept.truncate(count);
        let total: f64 = kept.iter().map(|(_, p)| p).sum();
        kept.iter_mut().for_each(|(_, p)| *p /= total);
        (kept, close)
    }

    /// The definition of a draw.
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

/// A uniform number in `[0, 1)` from seed and step alone.
fn uniform(seed: u64, step: u64) -> f64 {
    (random(seed, step) >> 11) as f64 / (1u64 << 53) as f64
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
                let goal = uniform(0, step) * sum;
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

    #[test]
    fn parameters_are_checked_by_name() {
        let bad = Sampler { top_p: 0.0, ..Sampler::default() };
        assert_eq!(bad.validate().unwrap_err().to_string(), "top-p is 0, it must be above 0 and at most 1");
        let bad = Sampler { temperature: f32::NAN, ..Sampler::default() };
        assert!(bad.validate().is_err());
        assert_eq!(Sampler::default().validate(), Ok(()));
    }
}

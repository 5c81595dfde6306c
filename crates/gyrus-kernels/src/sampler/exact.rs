//! The distribution of a sampler by definition: in f64, with everything sorted. For tests of what computes in f32.

use super::chain::Past;
use super::{Sampler, Stage};
use crate::select::Counts;

/// How near to a cut rounding may decide it.
const NEAR: f64 = 1e-5;

/// Tokens and their logits, the most likely first.
struct Row {
    tokens: Vec<(u32, f64)>,
    /// Whether rounding may have decided a cut.
    close: bool,
}

impl Row {
    fn sort(&mut self) {
        self.tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }

    fn largest(&self) -> f64 {
        self.tokens.first().map_or(0.0, |(_, logit)| *logit)
    }

    fn probabilities(&self) -> Vec<f64> {
        let relative: Vec<f64> =
            self.tokens.iter().map(|(_, logit)| (logit - self.largest()).exp()).collect();
        let total: f64 = relative.iter().sum();
        relative.into_iter().map(|p| p / total).collect()
    }

    /// Keeps the first tokens for which this holds, at least one. `margin`: positive where it holds, 0 at the cut.
    fn keep_while(&mut self, margin: impl Fn(usize) -> f64) {
        self.close |= (0..self.tokens.len()).any(|i| margin(i).abs() < NEAR);
        let count = (0..self.tokens.len()).take_while(|i| margin(*i) >= 0.0).count();
        self.tokens.truncate(count.max(1));
    }
}

impl Sampler {
    /// The tokens that are kept, the most likely first, with their probabilities, by definition in f64; and whether a cut
    /// is so close that rounding may decide it. For tests of implementations in f32. Samplers without DRY and mirostat.
    pub fn exact(&self, logits: &[f32], counts: &Counts) -> (Vec<(u32, f64)>, bool) {
        self.exact_after(logits, Past { counts, tokens: &[], mu: f32::INFINITY })
    }

    /// The same of any sampler, after some tokens.
    pub fn exact_after(&self, logits: &[f32], past: Past<'_>) -> (Vec<(u32, f64)>, bool) {
        let (mut all, close) = self.exact_row(logits, past, false);
        if !self.stages().any(|stage| stage == Stage::Xtc) {
            return (all, close);
        }
        let probability = f64::from(self.xtc.probability);
        all.iter_mut().for_each(|(_, p)| *p *= 1.0 - probability);
        let (without, also_close) = self.exact_row(logits, past, true);
        for (id, p) in without {
            match all.iter_mut().find(|(other, _)| *other == id) {
                Some((_, sum)) => *sum += probability * p,
                None => all.push((id, probability * p)),
            }
        }
        all.retain(|(_, p)| *p > 0.0);
        (all, close || also_close)
    }

    /// With XTC dropping tokens or not.
    fn exact_row(&self, logits: &[f32], past: Past<'_>, drops: bool) -> (Vec<(u32, f64)>, bool) {
        let numbered = (0u32..).zip(logits).filter(|(_, logit)| !logit.is_nan());
        let finite = numbered.filter(|(_, logit)| **logit != f32::NEG_INFINITY);
        let tokens = finite.map(|(id, logit)| (id, f64::from(*logit))).collect();
        let mut row = Row { tokens, close: false };
        for (id, logit) in &mut row.tokens {
            let bias = self.logit_bias.iter().find(|(token, _)| token == id).map_or(0.0, |(_, bias)| *bias);
            *logit = (*logit + f64::from(bias)).max(f64::from(f32::MIN));
        }
        row.sort();
        for stage in self.stages() {
            self.exact_stage(stage, &mut row, past, drops);
        }
        if self.mirostat.is_some() {
            let surprise: Vec<f64> = row.probabilities().iter().map(|p| -p.log2()).collect();
            row.keep_while(|i| f64::from(past.mu) - surprise[i]);
        }
        let probabilities = row.probabilities();
        (row.tokens.iter().map(|(id, _)| *id).zip(probabilities).collect(), row.close)
    }

    fn exact_stage(&self, stage: Stage, row: &mut Row, past: Past<'_>, drops: bool) {
        let p = row.probabilities();
        let count = p.len();
        match stage {
            Stage::Penalties => {
                for (id, logit) in &mut row.tokens {
                    if let Some(&n) = past.counts.get(id) {
                        let by = f64::from(self.repetition_penalty);
                        let scaled = if *logit > 0.0 { *logit / by } else { *logit * by };
                        let n = f64::from(n);
                        *logit =
                            scaled - f64::from(self.presence_penalty) - f64::from(self.frequency_penalty) * n;
                    }
                }
                row.sort();
            }
            Stage::Dry => {
                for (id, logit) in &mut row.tokens {
                    *logit -= self.exact_dry(past.tokens, *id);
                }
                row.sort();
            }
            Stage::TopNSigma => {
                let logits: Vec<f64> = row.tokens.iter().map(|(_, logit)| *logit).collect();
                let counted = || logits.iter().filter(|logit| **logit > f64::from(f32::MIN));
                let n = counted().count() as f64;
                let mean = counted().sum::<f64>() / n;
                let deviation = (counted().map(|logit| (logit - mean).powi(2)).sum::<f64>() / n).sqrt();
                let least = row.largest() - f64::from(self.top_n_sigma) * deviation;
                row.keep_while(|i| logits[i] - least);
            }
            Stage::TopK => row.tokens.truncate(self.top_k as usize),
            Stage::TypicalP => self.exact_typical(row, &p),
            Stage::TopP => {
                // The sum before a token must not have reached top-p.
                let before: Vec<f64> = sums_before(&p);
                row.close |= before[1..].iter().any(|sum| (sum - f64::from(self.top_p)).abs() < NEAR);
                let kept = before.iter().take_while(|sum| **sum < f64::from(self.top_p)).count();
                row.tokens.truncate(kept);
            }
            Stage::MinP => row.keep_while(|i| p[i] / p[0] / f64::from(self.min_p) - 1.0),
            Stage::Xtc => {
                let threshold = f64::from(self.xtc.threshold);
                row.close |= p.iter().any(|p| (p - threshold).abs() < NEAR * threshold.max(NEAR));
                let top = p.iter().take_while(|p| **p >= threshold).count();
                if drops && top > 1 {
                    row.tokens.drain(..top - 1);
                }
            }
            Stage::Temperature => {
                let mut temperature = f64::from(self.temperature);
                let (range, exponent) = (self.dynamic_temperature.range, self.dynamic_temperature.exponent);
                if range > 0.0 && count > 1 {
                    let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
                    let share = (entropy / (count as f64).ln()).clamp(0.0, 1.0).powf(exponent.into());
                    let least = (temperature - f64::from(range)).max(0.0);
                    temperature = least + (temperature + f64::from(range) - least) * share;
                }
                if temperature > 0.0 {
                    row.tokens.iter_mut().for_each(|(_, logit)| *logit /= temperature);
                } else {
                    row.tokens.truncate(1);
                }
            }
        }
    }

    fn exact_typical(&self, row: &mut Row, p: &[f64]) {
        let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
        let distance = |p: f64| (-p.ln() - entropy).abs();
        let mut all: Vec<((u32, f64), f64)> = row.tokens.iter().copied().zip(p.iter().copied()).collect();
        all.sort_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        let before = sums_before(&all.iter().map(|(_, p)| *p).collect::<Vec<_>>());
        let goal = f64::from(self.typical_p);
        row.close |= before[1..].iter().any(|sum| (sum - goal).abs() < NEAR);
        let kept = before.iter().take_while(|sum| **sum <= goal).count();
        if let [.., (_, last)] = all[..kept]
            && let Some((_, next)) = all.get(kept)
        {
            row.close |= (distance(last) - distance(*next)).abs() < NEAR;
        }
        row.tokens = all[..kept].iter().map(|(token, _)| *token).collect();
        row.sort();
    }

    /// DRY's penalty on a token, by comparing every place of it with the end.
    fn exact_dry(&self, tokens: &[u32], next: u32) -> f64 {
        let dry = &self.dry;
        let tokens = &tokens[tokens.len().saturating_sub(dry.window as usize)..];
        let allowed = dry.allowed_length as usize;
        if tokens.len() <= allowed || dry.breakers.has_token(next) {
            return 0.0;
        }
        let most = dry.breakers.tokens_behind(tokens);
        let places = (0..tokens.len().saturating_sub(1)).filter(|end| tokens[end + 1] == next);
        let length = |end: usize| {
            (1..=most.min(end + 1)).take_while(|n| tokens[end + 1 - n] == tokens[tokens.len() - n]).count()
        };
        match places.map(length).max() {
            Some(longest) if longest >= allowed => dry.penalty(longest as u32),
            _ => 0.0,
        }
    }
}

/// The sum of what is before each number, and of all.
fn sums_before(p: &[f64]) -> Vec<f64> {
    let mut sum = 0.0;
    let before = p.iter().map(|p| {
        sum += p;
        sum - p
    });
    let mut before: Vec<f64> = before.collect();
    before.push(sum);
    before
}

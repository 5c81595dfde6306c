//! Draws that read the whole vocabulary only with simple loops, which compilers vectorise.
//!
//! [`Sampler::draw`] is defined with exponentials of all logits in f64, in the order of probabilities. Here they are
//! computed that way only for candidates: tokens whose logits are at least a threshold. The sum of the other
//! probabilities is in f32, with a bound on its error. If the bound, or what lies below the threshold, could change the
//! token, there is no result, and the definition is used.

use crate::sampler::Sampler;
use crate::select::{Counts, Descending, NEGLIGIBLE, more_likely};

/// Tokens of a chunk. A threshold is the maximum of a chunk.
pub(crate) const CHUNK: usize = 32;
/// Candidates at first, at least.
const FEW: usize = 128;
/// The second threshold, in units of temperature below the largest logit.
const FAR: f64 = 12.0;
/// Larger inverse temperatures may overflow f32.
const MOST_INVERSE: f64 = 1e30;
/// Bounds of errors. Relative to the sum below the threshold: roundings of the exponents down to -30, of the
/// exponentials and of their sums; absolute: exponents below -30 of any vocabulary; relative: the order of sums in f64.
const TAIL_ERROR: f64 = 1e-5;
const LEAST_ERROR: f64 = 1e-11;
const ORDER_ERROR: f64 = 1e-9;

/// A row of logits, some of which are replaced.
struct Row<'a> {
    logits: &'a [f32],
    /// (logit, token), by token.
    replaced: &'a [(f32, u32)],
}

impl Row<'_> {
    /// Logits of a chunk. NaN, and what is beyond the vocabulary, is -infinity.
    fn chunk(&self, index: usize) -> [f32; CHUNK] {
        let first = index * CHUNK;
        let mut chunk = [f32::NEG_INFINITY; CHUNK];
        let logits = &self.logits[first..(first + CHUNK).min(self.logits.len())];
        chunk[..logits.len()].copy_from_slice(logits);
        if !self.replaced.is_empty() {
            let from = self.replaced.partition_point(|(_, id)| (*id as usize) < first);
            for (logit, id) in &self.replaced[from..] {
                let Some(slot) = chunk.get_mut(*id as usize - first) else { break };
                *slot = *logit;
            }
        }
        chunk.map(|logit| if logit.is_nan() { f32::NEG_INFINITY } else { logit })
    }

    fn chunks(&self) -> impl Iterator<Item = [f32; CHUNK]> {
        (0..self.logits.len().div_ceil(CHUNK)).map(|index| self.chunk(index))
    }

    /// The sum of `exp((logit - largest) · inverse)` over the logits below `threshold`.
    fn tail(&self, largest: f32, inverse: f32, threshold: f32) -> f64 {
        let mut total = 0.0;
        let mut lanes = [0f32; CHUNK];
        for (index, chunk) in self.chunks().enumerate() {
            for (lane, logit) in lanes.iter_mut().zip(chunk) {
                let p = exp((logit - largest) * inverse);
                *lane += if logit < threshold { p } else { 0.0 };
            }
            if index % 8 == 7 {
                total += f64::from(sum(&lanes));
                lanes = [0.0; CHUNK];
            }
        }
        total + f64::from(sum(&lanes))
    }
}

/// The largest logit of a chunk, in lanes that compilers vectorise. NaN is not larger than any.
pub(crate) fn largest_of(chunk: &[f32; CHUNK]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 8];
    for eight in chunk.as_chunks::<8>().0 {
        for (lane, logit) in lanes.iter_mut().zip(eight) {
            *lane = if *logit > *lane { *logit } else { *lane };
        }
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

fn sum(lanes: &[f32; CHUNK]) -> f32 {
    let mut eight = [0f32; 8];
    for lanes in lanes.as_chunks::<8>().0 {
        eight.iter_mut().zip(lanes).for_each(|(sum, lane)| *sum += lane);
    }
    eight.iter().sum()
}

/// The exponential of a number that is not positive, with a relative error below 5e-7; about 1e-38 from -87 down.
pub(crate) fn exp(x: f32) -> f32 {
    /// Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = if x > -87.0 { x } else { -87.0 };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut p = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + coefficient;
    }
    // 2^n by adding n to the exponent's bits.
    f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23))
}

impl Sampler {
    /// The token that the definition gives, if that is certain.
    pub(crate) fn choose_quickly(
        &self,
        logits: &[f32],
        counts: &Counts,
        step: u64,
        scratch: &mut Vec<(f32, u32)>,
    ) -> Option<u32> {
        let chunks = logits.len().div_ceil(CHUNK);
        let wanted = FEW.max(self.top_k as usize);
        let inverse = if self.is_greedy() { 0.0 } else { 1.0 / f64::from(self.temperature) };
        if wanted > chunks || inverse > MOST_INVERSE {
            return None;
        }
        let replaced = if self.has_penalties() { counts.len() } else { 0 };
        let size = replaced + chunks + logits.len() / 4;
        if scratch.len() < size {
            scratch.resize(size, (0.0, 0));
        }
        let (replaced, rest) = scratch.split_at_mut(replaced);
        let (maxima, candidates) = rest.split_at_mut(chunks);
        for (entry, (&id, &n)) in replaced.iter_mut().zip(counts) {
            *entry = (logits.get(id as usize).map_or(f32::NAN, |logit| self.penalised(*logit, n)), id);
        }
        replaced.sort_unstable_by_key(|(_, id)| *id);
        let row = Row { logits, replaced };
        for ((entry, chunk), id) in maxima.iter_mut().zip(row.chunks()).zip(0..) {
            *entry = (largest_of(&chunk), id);
        }
        if self.is_greedy() {
            return greedy(&row, maxima);
        }
        let largest = maxima.iter().map(|(largest, _)| *largest).fold(f32::NEG_INFINITY, f32::max);
        let (_, &mut (threshold, _), _) = maxima.select_nth_unstable_by(wanted - 1, more_likely);
        if !largest.is_finite() {
            return None;
        }
        // Tokens that are not allowed are no candidates.
        let threshold = threshold.max(f32::MIN);
        let far = (f64::from(largest) - FAR * f64::from(self.temperature)) as f32;
        let thresholds = [threshold, if self.top_k == 0 && far < threshold { far } else { threshold }];
        let tries = if thresholds[0] == thresholds[1] { 1 } else { 2 };
        thresholds[..tries].iter().find_map(|&threshold| {
            let mut count = 0;
            for (_, index) in maxima.iter().filter(|(largest, _)| *largest >= threshold) {
                let first = index * CHUNK as u32;
                for (logit, id) in row.chunk(*index as usize).into_iter().zip(first..) {
                    if logit >= threshold {
                        *candidates.get_mut(count)? = (logit, id);
                        count += 1;
                    }
                }
            }
            self.choose_among(&row, &mut candidates[..count], threshold, largest, step)
        })
    }

    /// Draws among the tokens whose logits are at least `threshold`.
    fn choose_among(
        &self,
        row: &Row<'_>,
        mut kept: &mut [(f32, u32)],
        threshold: f32,
        largest: f32,
        step: u64,
    ) -> Option<u32> {
        let inverse = 1.0 / f64::from(self.temperature);
        let p_of = |logit: f32| {
            let exponent = (f64::from(logit) - f64::from(largest)) * inverse;
            if exponent < NEGLIGIBLE { 0.0 } else { exponent.exp() }
        };
        let k = self.top_k as usize;
        if k > 0 && k < kept.len() {
            kept.select_nth_unstable_by(k - 1, more_likely);
            kept = &mut kept[..k];
        }
        let candidates = kept.len();
        let best = kept.iter().min_by(|a, b| more_likely(a, b))?.1;
        let mut total = 0.0;
        for (logit, _) in kept.iter_mut() {
            let p = p_of(*logit);
            total += p;
            *logit = p as f32;
        }
        // Tokens below the threshold are not more likely than this. Their order relative to others as likely is not known.
        let floor = if k > 0 { -1.0 } else { p_of(threshold) * (1.0 + 1e-6) };
        let mut error = ORDER_ERROR * total;
        if k == 0 && (self.top_p < 1.0 || self.min_p == 0.0) {
            let tail = row.tail(largest, inverse as f32, threshold);
            total += tail;
            error += TAIL_ERROR * tail + LEAST_ERROR;
        }
        let mut kept = Descending::new(kept);
        // The next token in order; `None` if it is not among the candidates.
        let mut at = |i: usize| (i < candidates).then(|| kept.at(i)).filter(|(p, _)| f64::from(*p) > floor);
        // With top-k all tokens that are kept are candidates, except for some whose probability is 0.
        let mut count = (k > 0).then_some(candidates);
        if self.top_p < 1.0 {
            let (goal, error) = (f64::from(self.top_p) * total, 2.0 * error);
            let mut sum = 0.0;
            let mut i = 0;
            while sum < goal - error {
                if Some(i) == count {
                    return None;
                }
                sum += f64::from(at(i)?.0);
                i += 1;
            }
            if sum < goal + error {
                return None;
            }
            count = Some(i);
        }
        if self.min_p > 0.0 {
            let mut i = 0;
            count = loop {
                match at(i) {
                    _ if Some(i) == count => break count,
                    Some((p, _)) if p < self.min_p => break Some(i.max(1)),
                    Some(_) => i += 1,
                    None if floor < f64::from(self.min_p) => break Some(i.max(1)),
                    None => return None,
                }
            };
        }
        let is_cut = self.top_p < 1.0 || self.min_p > 0.0;
        if is_cut {
            // The definition sums these in this order.
            total = 0.0;
            for i in 0..count? {
                total += f64::from(at(i)?.0);
            }
            error = 0.0;
        }
        let goal = self.number(step) * total;
        let mut left = goal;
        let mut i = 0;
        while Some(i) != count {
            let (p, id) = at(i)?;
            left -= f64::from(p);
            if left < -error {
                return Some(id);
            }
            if left < error {
                return None;
            }
            i += 1;
        }
        is_cut.then_some(best)
    }
}

/// The first token with the largest logit.
fn greedy(row: &Row<'_>, maxima: &[(f32, u32)]) -> Option<u32> {
    let best =
        maxima.iter().fold((f32::NEG_INFINITY, 0), |best, &(l, i)| if l > best.0 { (l, i) } else { best });
    let at = row.chunk(best.1 as usize).iter().position(|logit| *logit == best.0)?;
    Some(best.1 * CHUNK as u32 + at as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Noise;

    fn samplers() -> Vec<Sampler> {
        let mut all = Vec::new();
        for temperature in [0.0, 0.3, 0.8, 1.5, 1e-3] {
            for top_k in [0, 1, 40, 200] {
                for (top_p, min_p) in [(1.0, 0.0), (0.95, 0.0), (1.0, 0.05), (0.7, 0.01), (1.0, 1.0)] {
                    for repetition_penalty in [1.0, 1.2] {
                        all.push(Sampler {
                            temperature,
                            top_k,
                            top_p,
                            min_p,
                            repetition_penalty,
                            ..Sampler::default()
                        });
                    }
                }
            }
        }
        all
    }

    /// Rows of all shapes: steep, flat, with ties, all equal, mostly not allowed, with NaN.
    fn rows(noise: &mut Noise) -> Vec<Vec<f32>> {
        let scaled = |noise: &mut Noise, n, by: f32| -> Vec<f32> {
            noise.gaussians(n).iter().map(|logit| logit * by).collect()
        };
        let mut few = vec![f32::NEG_INFINITY; 9000];
        few.iter_mut().step_by(700).for_each(|logit| *logit = noise.gaussian() as f32);
        let mut with_nan = scaled(noise, 5000, 2.0);
        with_nan.iter_mut().step_by(300).for_each(|logit| *logit = f32::NAN);
        vec![
            scaled(noise, 8000, 1.0),
            scaled(noise, 20_001, 4.0),
            scaled(noise, 6000, 0.1),
            noise.gaussians(5000).iter().map(|logit| (logit * 3.0).round()).collect(),
            vec![0.5; 5000],
            (0..7000).map(|i| -0.01 * i as f32).collect(),
            vec![f32::NEG_INFINITY; 5000],
            few,
            with_nan,
        ]
    }

    /// Quick draws have the token of the definition, and are most of the draws, though some rows are flat.
    #[test]
    fn quick_draws_are_those_of_the_definition() {
        let mut noise = Noise::new(1);
        let counts: Counts = (0..60).map(|i| (i * 89 % 5100, 1 + i % 3)).collect();
        let (mut scratch, mut exact_scratch) = (Vec::new(), Vec::new());
        let (mut quick, mut all) = (0, 0);
        for (row, logits) in rows(&mut noise).iter().enumerate() {
            for sampler in samplers() {
                for step in 0..3 {
                    let sampler = Sampler { seed: noise.bits().into(), ..sampler.clone() };
                    let exact = sampler.choose(logits, &counts, step, &mut exact_scratch);
                    let token = sampler.choose_quickly(logits, &counts, step, &mut scratch);
                    assert!(
                        token.is_none_or(|token| token == exact),
                        "row {row} {sampler:?}: {token:?} {exact}"
                    );
                    quick += usize::from(token.is_some());
                    all += 1;
                }
            }
        }
        assert!(2 * quick > all, "{quick} of {all}");
    }

    #[test]
    fn exponentials_are_within_their_bound() {
        for i in 0..870_000 {
            let x = -0.0001 * i as f32;
            let relative = f64::from(exp(x)) / f64::from(x).exp() - 1.0;
            assert!(relative.abs() < 5e-7, "{x}: {relative}");
        }
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn tails_are_within_their_bound() {
        let logits: Vec<f32> = Noise::new(3).gaussians(150_000).iter().map(|logit| logit * 3.0).collect();
        for (inverse, threshold) in [(1.0f32, 2.0), (0.5, 100.0), (3.0, 9.0)] {
            let below = logits.iter().filter(|logit| **logit < threshold);
            let exact: f64 = below.map(|l| ((f64::from(*l) - 12.0) * f64::from(inverse)).exp()).sum();
            let tail = Row { logits: &logits, replaced: &[] }.tail(12.0, inverse, threshold);
            assert!((tail - exact).abs() < TAIL_ERROR * exact, "{tail} {exact}");
        }
    }
}

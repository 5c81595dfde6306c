//! The definition of a draw with any sampler: its stages one after the other.

use super::candidates::Candidates;
use super::dry::DryScratch;
use super::{Mirostat, Sampler, Stage};
use crate::random::random;
use crate::select::Counts;

/// The seed of XTC's random numbers differs from that of draws by these bits.
const XTC_SEED: u64 = 0x5851_F42D_4C95_7F2D;

/// What a draw depends on besides the logits, the seed and the position.
#[derive(Debug, Clone, Copy)]
pub struct Past<'a> {
    /// How often each token occurred within the penalty window.
    pub counts: &'a Counts,
    /// The tokens that DRY searches, at least.
    pub tokens: &'a [u32],
    /// Mirostat's state.
    pub mu: f32,
}

/// A token that was drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Drawn {
    /// The token.
    pub id: u32,
    /// Mirostat's state after it.
    pub mu: f32,
}

/// Memory that is used again from draw to draw.
#[derive(Debug, Default)]
pub struct SamplerScratch {
    pub(crate) plain: Vec<(f32, u32)>,
    candidates: Candidates,
    dry: DryScratch,
}

impl Sampler {
    /// Chooses a token. Logits of tokens that are not allowed are NaN. `step` numbers the draws of a sequence; with the
    /// seed it determines the random numbers.
    pub fn sample(&self, logits: &[f32], past: Past<'_>, step: u64, scratch: &mut SamplerScratch) -> Drawn {
        if self.is_plain() {
            return Drawn { id: self.draw(logits, past.counts, step, &mut scratch.plain), mu: past.mu };
        }
        self.run_stages(logits, past, step, scratch)
    }

    /// Chooses a token by the stages, whether or not they are plain.
    pub(crate) fn run_stages(
        &self,
        logits: &[f32],
        past: Past<'_>,
        step: u64,
        scratch: &mut SamplerScratch,
    ) -> Drawn {
        let SamplerScratch { candidates, dry, .. } = scratch;
        candidates.fill(logits);
        if !self.logit_bias.is_empty() {
            let biases = self.logit_bias.iter().copied();
            // Nothing was dropped yet.
            candidates.change(biases, |_| None, |logit, bias| logit + bias);
        }
        for stage in self.stages() {
            match stage {
                Stage::Penalties => {
                    let counts = past.counts.iter().map(|(id, count)| (*id, *count));
                    let find = |id| past.counts.get(&id).copied();
                    candidates.change(counts, find, |logit, count| self.penalised(logit, count));
                }
                Stage::Dry => {
                    self.dry.search(past.tokens, dry);
                    let all = &dry.penalties;
                    let find = |id| all.binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| all[at].1);
                    candidates.change(all.iter().copied(), find, |logit, penalty| logit - penalty);
                }
                other => {
                    candidates.leave_out();
                    if candidates.len() > 1 {
                        self.cut(other, candidates, step);
                    }
                }
            }
        }
        candidates.leave_out();
        match self.mirostat {
            Some(mirostat) => self.draw_with_mirostat(mirostat, candidates, past.mu, step),
            None => Drawn { id: self.draw_from(candidates, step).0, mu: past.mu },
        }
    }

    /// Applies a stage that drops tokens or heats.
    fn cut(&self, stage: Stage, candidates: &mut Candidates, step: u64) {
        let largest = candidates.largest();
        match stage {
            Stage::Penalties | Stage::Dry => {}
            Stage::Temperature => candidates.heat(self.temperature_of(candidates)),
            Stage::TopK => candidates.truncate((self.top_k as usize).min(candidates.len())),
            Stage::TopNSigma => {
                let least = f64::from(largest) - f64::from(self.top_n_sigma) * candidates.deviation();
                candidates.keep_large(|logit| f64::from(logit) >= least);
            }
            Stage::TypicalP => candidates.keep_typical(self.typical_p),
            Stage::TopP => {
                let goal = f64::from(self.top_p) * candidates.total(largest);
                let (mut sum, mut count) = (0.0, 0);
                while count < candidates.len() && sum < goal {
                    let (logit, _) = candidates.at(count);
                    sum += f64::from(candidates.relative(logit, largest));
                    count += 1;
                }
                candidates.truncate(count.max(1));
            }
            Stage::MinP => {
                let least = self.min_p.ln();
                let scaled = candidates.exponents(largest);
                candidates.keep_large(|logit| scaled(logit) >= least);
            }
            Stage::Xtc => {
                if uniform(random(self.seed ^ XTC_SEED, step)) >= f64::from(self.xtc.probability) {
                    return;
                }
                let least = f64::from(self.xtc.threshold) * candidates.total(largest);
                let mut top = 0;
                while top < candidates.len() {
                    let (logit, _) = candidates.at(top);
                    if f64::from(candidates.relative(logit, largest)) < least {
                        break;
                    }
                    top += 1;
                }
                candidates.skip(top.saturating_sub(1));
            }
        }
    }

    /// The temperature for these candidates.
    fn temperature_of(&self, candidates: &Candidates) -> f32 {
        let dynamic = self.dynamic_temperature;
        if dynamic.range <= 0.0 {
            return self.temperature;
        }
        let largest = candidates.largest();
        let entropy = candidates.entropy(largest, candidates.total(largest));
        let share = (entropy / (candidates.len() as f64).ln()).clamp(0.0, 1.0);
        let least = (self.temperature - dynamic.range).max(0.0);
        let most = self.temperature + dynamic.range;
        (f64::from(least) + f64::from(most - least) * share.powf(f64::from(dynamic.exponent))) as f32
    }

    /// Draws one of the candidates, and returns its probability, too. The order of the candidates does not depend on how
    /// they were found.
    fn draw_from(&self, candidates: &mut Candidates, step: u64) -> (u32, f64) {
        if candidates.len() == 0 {
            return (0, 1.0);
        }
        let largest = candidates.largest();
        let total = candidates.total(largest);
        let mut left = self.number(step) * total;
        for i in 0..candidates.len() {
            let (logit, id) = candidates.at(i);
            let p = f64::from(candidates.relative(logit, largest));
            left -= p;
            if left < 0.0 {
                return (id, p / total);
            }
        }
        // The sum in another order is larger by a rounding.
        (candidates.at(0).1, 1.0 / total)
    }

    fn draw_with_mirostat(
        &self,
        mirostat: Mirostat,
        candidates: &mut Candidates,
        mu: f32,
        step: u64,
    ) -> Drawn {
        if candidates.len() == 0 {
            return Drawn { id: 0, mu };
        }
        let largest = candidates.largest();
        // A surprise of at most mu bits.
        let least = f64::from(-mu).exp2() * candidates.total(largest);
        let mut count = 0;
        while count < candidates.len() {
            let (logit, _) = candidates.at(count);
            if f64::from(candidates.relative(logit, largest)) < least {
                break;
            }
            count += 1;
        }
        candidates.truncate(count.max(1));
        let (id, p) = self.draw_from(candidates, step);
        let error = -p.log2() - f64::from(mirostat.tau);
        let next = f64::from(mu) - f64::from(mirostat.eta) * error;
        Drawn { id, mu: next.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32 }
    }
}

/// A number in `[0, 1)` of random bits.
pub(crate) fn uniform(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

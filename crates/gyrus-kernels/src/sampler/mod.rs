//! What a sampler is: its parameters, their ranges and the order of its stages. `docs/sampling.md` explains each.

pub(crate) mod candidates;
pub(crate) mod chain;
pub(crate) mod dry;
mod exact;
mod order;
pub(crate) mod row;
mod validate;

pub use dry::{Breakers, Dry};
pub use order::{Order, Stage};
pub use validate::SamplerError;

/// How the next token is chosen: a chain of stages, then a draw. The default is greedy. Ties go to the lowest id.
///
/// A stage whose parameters are neutral does nothing. The default [order](Order) is penalties → DRY → top-n-sigma →
/// temperature → top-k → typical-p → top-p → min-p → XTC. Logit biases come before all stages, and tokens that a mask
/// does not allow are left out before that.
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
    /// Makes the temperature depend on the entropy of the distribution.
    pub dynamic_temperature: DynamicTemperature,
    /// Keep the tokens whose surprise is closest to the entropy until their probabilities exceed this sum; 1 keeps all.
    pub typical_p: f32,
    /// Keep tokens whose logits are within this many standard deviations of the largest; 0 keeps all.
    pub top_n_sigma: f32,
    /// Sometimes drops the most likely tokens.
    pub xtc: Xtc,
    /// Penalises tokens that would continue a repetition.
    pub dry: Dry,
    /// Replaces the stages that drop tokens by a bound on the surprise that follows the text.
    pub mirostat: Option<Mirostat>,
    /// Added to the logits of tokens. -infinity forbids a token, unless no other is allowed.
    pub logit_bias: Vec<(u32, f32)>,
    /// The stages that are applied, in this order.
    pub order: Order,
}

/// A temperature between `temperature - range` and `temperature + range`, larger for a larger entropy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DynamicTemperature {
    /// How far the temperature varies; 0 keeps it constant.
    pub range: f32,
    /// The power of the normalised entropy.
    pub exponent: f32,
}

/// XTC ("exclude top choices"): with this probability, drops all tokens that are at least as likely as the threshold,
/// except for the least likely of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// How often tokens are dropped; 0 for never.
    pub probability: f32,
    /// The probability from which on tokens are top choices. Above 0.5 there is never more than one.
    pub threshold: f32,
}

/// Mirostat 2: drops tokens whose surprise in bits is above `mu`, which then moves so that the mean surprise is `tau`.
/// Of the other stages only penalties, DRY and temperature are applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// The surprise to aim at, in bits.
    pub tau: f32,
    /// How fast `mu` moves.
    pub eta: f32,
    /// `mu` before the first token; `None`: two times `tau`.
    pub mu: Option<f32>,
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
            dynamic_temperature: DynamicTemperature::default(),
            typical_p: 1.0,
            top_n_sigma: 0.0,
            xtc: Xtc::default(),
            dry: Dry::default(),
            mirostat: None,
            logit_bias: Vec::new(),
            order: Order::default(),
        }
    }
}

impl Default for DynamicTemperature {
    fn default() -> DynamicTemperature {
        DynamicTemperature { range: 0.0, exponent: 1.0 }
    }
}

impl Default for Xtc {
    fn default() -> Xtc {
        Xtc { probability: 0.0, threshold: 0.1 }
    }
}

impl Default for Mirostat {
    fn default() -> Mirostat {
        Mirostat { tau: 5.0, eta: 0.1, mu: None }
    }
}

impl Mirostat {
    /// `mu` before the next token.
    pub fn mu(&self) -> f32 {
        self.mu.unwrap_or(2.0 * self.tau)
    }
}

impl Sampler {
    /// Whether the temperature is 0.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether any penalty is set.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether a stage changes anything.
    fn is_active(&self, stage: Stage) -> bool {
        match stage {
            Stage::Penalties => self.has_penalties(),
            Stage::Dry => self.dry.is_active(),
            Stage::TopNSigma => self.top_n_sigma > 0.0,
            Stage::TopK => self.top_k > 0,
            Stage::TypicalP => self.typical_p < 1.0,
            Stage::TopP => self.top_p < 1.0,
            Stage::MinP => self.min_p > 0.0,
            Stage::Xtc => self.xtc.probability > 0.0 && self.xtc.threshold <= 0.5,
            Stage::Temperature => self.temperature != 1.0 || self.dynamic_temperature.range > 0.0,
        }
    }

    /// The stages that change something, in their order.
    pub(crate) fn stages(&self) -> impl Iterator<Item = Stage> + '_ {
        let kept_by_mirostat = [Stage::Penalties, Stage::Dry, Stage::Temperature];
        let applies = move |stage: &Stage| self.mirostat.is_none() || kept_by_mirostat.contains(stage);
        self.order.stages().filter(move |stage| applies(stage) && self.is_active(*stage))
    }

    /// Whether the sampler is no more than penalties → temperature → top-k → top-p → min-p → draw. Every backend draws
    /// with plain samplers itself; GPUs leave others to the host.
    pub fn is_plain(&self) -> bool {
        let is_constant = self.dynamic_temperature.range <= 0.0;
        if self.mirostat.is_some() || !self.logit_bias.is_empty() || !is_constant {
            return false;
        }
        const PLAIN: [Stage; 5] =
            [Stage::Penalties, Stage::Temperature, Stage::TopK, Stage::TopP, Stage::MinP];
        let expected = || PLAIN.into_iter().filter(|stage| self.is_active(*stage));
        // A temperature does not change which tokens are the most likely.
        let swapped = |stage| match stage {
            Stage::Temperature => Stage::TopK,
            Stage::TopK => Stage::Temperature,
            other => other,
        };
        let has_both = self.is_active(Stage::Temperature) && self.is_active(Stage::TopK);
        self.stages().eq(expected()) || has_both && self.stages().eq(expected().map(swapped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_samplers_are_those_of_the_default_order() {
        let base = Sampler {
            temperature: 0.7,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.05,
            presence_penalty: 0.1,
            ..Sampler::default()
        };
        let ordered = |order: &str| Sampler { order: order.parse().unwrap(), ..base.clone() };
        assert!(Sampler::default().is_plain() && base.is_plain());
        assert!(ordered("penalties;top_k;temperature;top_p;min_p").is_plain());
        assert!(ordered("penalties;dry;top_k;temperature;typ_p;top_p;xtc;min_p").is_plain());
        assert!(!ordered("penalties;top_k;top_p;min_p;temperature").is_plain());
        assert!(!ordered("temperature;top_k;top_p;min_p").is_plain(), "penalties are left out");
        assert!(!ordered("penalties;temperature;top_k;min_p;top_p").is_plain());
        // What is neutral may be anywhere.
        let few = Sampler { temperature: 1.0, top_p: 0.9, ..Sampler::default() };
        assert!(Sampler { order: "top_p;top_k;temperature".parse().unwrap(), ..few.clone() }.is_plain());
        let others = [
            Sampler { typical_p: 0.9, ..base.clone() },
            Sampler { top_n_sigma: 1.0, ..base.clone() },
            Sampler { xtc: Xtc { probability: 0.5, threshold: 0.1 }, ..base.clone() },
            Sampler { dry: Dry { multiplier: 0.8, ..Dry::default() }, ..base.clone() },
            Sampler { mirostat: Some(Mirostat::default()), ..base.clone() },
            Sampler { logit_bias: vec![(3, 1.0)], ..base.clone() },
            Sampler { dynamic_temperature: DynamicTemperature { range: 0.2, exponent: 1.0 }, ..base.clone() },
        ];
        assert!(others.iter().all(|sampler| !sampler.is_plain() && sampler.validate().is_ok()));
    }
}

use super::Sampler;

/// A sampler parameter that means nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// A parameter is out of its range.
    #[error("{name} is {value}, it must be {expected}")]
    Range {
        /// Which parameter.
        name: &'static str,
        /// Its value.
        value: f32,
        /// What is possible.
        expected: &'static str,
    },
    /// A logit bias that is no number, or +infinity.
    #[error("the logit bias of token {token} is {value}, it must be a number or -infinity")]
    Bias {
        /// The token.
        token: u32,
        /// Its bias.
        value: f32,
    },
    /// A logit bias of a token that does not exist.
    #[error("a logit bias is of token {token}, but the vocabulary has {vocab} tokens")]
    BiasToken {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        vocab: usize,
    },
    /// A token with two logit biases.
    #[error("token {token} has two logit biases")]
    BiasTwice {
        /// The token.
        token: u32,
    },
    /// An order names a stage twice.
    #[error("the sampler {name} is named twice")]
    Twice {
        /// The stage.
        name: String,
    },
    /// An order names a stage that does not exist.
    #[error("there is no sampler '{name}'; there are {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The stages that exist.
        known: String,
    },
}

impl Sampler {
    /// Whether every parameter is in its range.
    pub fn validate(&self) -> Result<(), SamplerError> {
        let check = |ok: bool, name, value, expected| {
            if ok { Ok(()) } else { Err(SamplerError::Range { name, value, expected }) }
        };
        let not_negative = |x: f32| x.is_finite() && x >= 0.0;
        let fraction = |x: f32| (0.0..=1.0).contains(&x);
        check(not_negative(self.temperature), "temperature", self.temperature, "0 or more")?;
        check(self.top_p > 0.0 && self.top_p <= 1.0, "top-p", self.top_p, "above 0 and at most 1")?;
        check(fraction(self.min_p), "min-p", self.min_p, "from 0 to 1")?;
        let penalty = self.repetition_penalty;
        check(penalty.is_finite() && penalty > 0.0, "repetition penalty", penalty, "above 0")?;
        let finite = |name, value: f32| check(value.is_finite(), name, value, "a number");
        finite("presence penalty", self.presence_penalty)?;
        finite("frequency penalty", self.frequency_penalty)?;
        let dynamic = self.dynamic_temperature;
        check(not_negative(dynamic.range), "dynamic temperature range", dynamic.range, "0 or more")?;
        let exponent = dynamic.exponent;
        check(not_negative(exponent), "dynamic temperature exponent", exponent, "0 or more")?;
        let typical = self.typical_p;
        check(typical > 0.0 && typical <= 1.0, "typical-p", typical, "above 0 and at most 1")?;
        check(not_negative(self.top_n_sigma), "top-n-sigma", self.top_n_sigma, "0 or more")?;
        check(fraction(self.xtc.probability), "XTC probability", self.xtc.probability, "from 0 to 1")?;
        check(fraction(self.xtc.threshold), "XTC threshold", self.xtc.threshold, "from 0 to 1")?;
        let (multiplier, base) = (self.dry.multiplier, self.dry.base);
        check(not_negative(multiplier), "DRY multiplier", multiplier, "0 or more")?;
        check(base.is_finite() && base >= 1.0, "DRY base", base, "1 or more")?;
        if let Some(mirostat) = self.mirostat {
            check(not_negative(mirostat.tau), "mirostat tau", mirostat.tau, "0 or more")?;
            check(not_negative(mirostat.eta), "mirostat eta", mirostat.eta, "0 or more")?;
            finite("mirostat mu", mirostat.mu())?;
        }
        let wrong = |(_, bias): &&(u32, f32)| bias.is_nan() || *bias == f32::INFINITY;
        match self.logit_bias.iter().find(wrong) {
            Some(&(token, value)) => Err(SamplerError::Bias { token, value }),
            None => Ok(()),
        }
    }

    /// Whether every parameter is in its range for a vocabulary of this many tokens.
    pub fn validate_for(&self, vocab: usize) -> Result<(), SamplerError> {
        self.validate()?;
        let mut tokens: Vec<u32> = self.logit_bias.iter().map(|(token, _)| *token).collect();
        tokens.sort_unstable();
        if let Some(&token) = tokens.last().filter(|token| **token as usize >= vocab) {
            return Err(SamplerError::BiasToken { token, vocab });
        }
        match tokens.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(SamplerError::BiasTwice { token: pair[0] }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{Dry, DynamicTemperature, Mirostat, Xtc};

    #[test]
    fn parameters_are_checked_by_name() {
        let error = |sampler: Sampler| sampler.validate().unwrap_err().to_string();
        let base = Sampler::default;
        let dry = |multiplier, base| Dry { multiplier, base, ..Dry::default() };
        let mirostat = |tau, eta| Some(Mirostat { tau, eta, mu: None });
        let dynamic = |range, exponent| DynamicTemperature { range, exponent };
        for (sampler, name) in [
            (Sampler { temperature: f32::NAN, ..base() }, "temperature is NaN"),
            (Sampler { top_p: 0.0, ..base() }, "top-p is 0, it must be above 0 and at most 1"),
            (Sampler { min_p: 1.5, ..base() }, "min-p is 1.5"),
            (Sampler { repetition_penalty: 0.0, ..base() }, "repetition penalty is 0"),
            (Sampler { presence_penalty: f32::INFINITY, ..base() }, "presence penalty is inf"),
            (Sampler { frequency_penalty: f32::NAN, ..base() }, "frequency penalty is NaN"),
            (Sampler { typical_p: 0.0, ..base() }, "typical-p is 0"),
            (Sampler { top_n_sigma: -1.0, ..base() }, "top-n-sigma is -1"),
            (Sampler { xtc: Xtc { probability: 1.1, threshold: 0.1 }, ..base() }, "XTC probability is 1.1"),
            (
                Sampler { xtc: Xtc { probability: 0.5, threshold: f32::NAN }, ..base() },
                "XTC threshold is NaN",
            ),
            (Sampler { dry: dry(-1.0, 2.0), ..base() }, "DRY multiplier is -1"),
            (Sampler { dry: dry(1.0, 0.5), ..base() }, "DRY base is 0.5, it must be 1 or more"),
            (Sampler { mirostat: mirostat(-1.0, 0.1), ..base() }, "mirostat tau is -1"),
            (Sampler { mirostat: mirostat(5.0, f32::INFINITY), ..base() }, "mirostat eta is inf"),
            (
                Sampler { dynamic_temperature: dynamic(-0.5, 1.0), ..base() },
                "dynamic temperature range is -0.5",
            ),
            (
                Sampler { dynamic_temperature: dynamic(0.5, -1.0), ..base() },
                "dynamic temperature exponent is -1",
            ),
            (
                Sampler { logit_bias: vec![(1, 2.0), (7, f32::NAN)], ..base() },
                "the logit bias of token 7 is NaN, it must be a number or -infinity",
            ),
        ] {
            assert!(error(sampler.clone()).starts_with(name), "{}", error(sampler));
        }
        assert_eq!(base().validate(), Ok(()));
        let biased = |bias: &[(u32, f32)]| {
            Sampler { logit_bias: bias.to_vec(), ..base() }.validate_for(10).map_err(|e| e.to_string())
        };
        assert_eq!(biased(&[(9, f32::NEG_INFINITY), (0, 3.0)]), Ok(()));
        let beyond = "a logit bias is of token 10, but the vocabulary has 10 tokens";
        assert_eq!(biased(&[(10, 1.0)]), Err(beyond.to_owned()));
        assert_eq!(biased(&[(4, 1.0), (2, 0.0), (4, 2.0)]), Err("token 4 has two logit biases".to_owned()));
    }
}

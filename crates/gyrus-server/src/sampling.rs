//! The sampler of a request. Each parameter is one line of the table.

use gyrus::{Sampler, Sampling};

use crate::failure::Failure;
use crate::fields::Fields;
use crate::random;

/// A parameter of the sampler, under the names that clients use for it.
type Parameter = (&'static [&'static str], Put);

/// Sets a parameter of a sampler.
type Put = fn(&mut Sampler, f64);

/// All parameters that are numbers. Ranges are checked by the sampler itself.
const PARAMETERS: &[Parameter] = &[
    (&["temperature"], |s, v| s.temperature = v as f32),
    (&["top_k"], |s, v| s.top_k = v.max(0.0) as u32),
    (&["top_p"], |s, v| s.top_p = v as f32),
    (&["min_p"], |s, v| s.min_p = v as f32),
    (&["repetition_penalty", "repeat_penalty"], |s, v| s.repetition_penalty = v as f32),
    (&["presence_penalty"], |s, v| s.presence_penalty = v as f32),
    (&["frequency_penalty"], |s, v| s.frequency_penalty = v as f32),
    (&["penalty_window", "repeat_last_n"], |s, v| {
        s.penalty_window = if v < 0.0 { u32::MAX } else { v as u32 }
    }),
];

/// Samplers of other engines. A request that uses one is refused.
const UNSUPPORTED: &[&str] = &[
    "logit_bias",
    "typical_p",
    "tfs_z",
    "mirostat",
    "dynatemp_range",
    "xtc_probability",
    "dry_multiplier",
    "top_a",
    "top_n_sigma",
    "min_tokens",
    "bad_words",
    "use_beam_search",
    "length_penalty",
];

/// Parameters of samplers that are refused: alone they change nothing.
const WITHOUT_EFFECT: &[&str] = &[
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_exponent",
    "xtc_threshold",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "penalize_nl",
];

/// The sampling parameters of a request; those that it does not have come from the model.
#[derive(Debug, Clone, Default)]
pub(crate) struct SamplerFields {
    set: Vec<(Put, f64)>,
    seed: Option<u64>,
}

impl SamplerFields {
    /// Takes all sampling parameters.
    pub(crate) fn take(fields: &mut Fields) -> Result<SamplerFields, Failure> {
        let mut set = Vec::new();
        for (names, put) in PARAMETERS {
            for name in *names {
                if let Some(value) = fields.number(name)? {
                    set.push((*put, value));
                }
            }
        }
        // `typical_p` is off at 1, unlike the others.
        if fields.number("typical_p")?.is_some_and(|value| value != 1.0) {
            let failure = fields.wrong("typical_p", "it is not supported, and the answer would depend on it");
            return Err(failure.with_code("unsupported_parameter"));
        }
        fields.refuse(UNSUPPORTED)?;
        fields.ignore(WITHOUT_EFFECT);
        // A negative seed of llama.cpp and Ollama is a random one; OpenAI's may be any number.
        let seed = fields.integer("seed", i64::MIN, i64::MAX)?.filter(|seed| *seed != -1);
        Ok(SamplerFields { set, seed: seed.map(|seed| seed as u64) })
    }

    /// The sampler of a model.
    pub(crate) fn sampler(&self, model: &Sampling) -> Sampler {
        let mut sampler = Sampler {
            temperature: model.temperature.unwrap_or(0.8),
            top_k: model.top_k.unwrap_or(40),
            top_p: model.top_p.unwrap_or(0.95),
            min_p: model.min_p.unwrap_or(0.05),
            repetition_penalty: model.repetition_penalty.unwrap_or(1.0),
            penalty_window: model.penalty_window.unwrap_or(64),
            seed: self.seed.unwrap_or_else(random::number),
            ..Sampler::default()
        };
        self.set.iter().for_each(|(put, value)| put(&mut sampler, *value));
        sampler
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beat_models_and_models_beat_defaults() {
        let mut fields = Fields::parse(br#"{"temperature": 0, "repeat_penalty": 1.2, "seed": 7}"#).unwrap();
        let asked = SamplerFields::take(&mut fields).unwrap();
        fields.finish().unwrap();
        let mut model = Sampling::default();
        model.top_k = Some(3);
        let sampler = asked.sampler(&model);
        assert_eq!((sampler.temperature, sampler.top_k, sampler.top_p), (0.0, 3, 0.95));
        assert_eq!((sampler.repetition_penalty, sampler.seed), (1.2, 7));
    }

    #[test]
    fn other_samplers_are_refused_by_name() {
        for (body, name) in [(r#"{"mirostat": 2}"#, "mirostat"), (r#"{"typical_p": 0.9}"#, "typical_p")] {
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            assert_eq!(SamplerFields::take(&mut fields).unwrap_err().param.as_deref(), Some(name));
        }
    }
}

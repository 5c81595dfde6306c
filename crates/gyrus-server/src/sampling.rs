//! The sampler of a request. Each parameter is one line of the table.

use gyrus::{Mirostat, Order, Sampler, Sampling};
use serde_json::Value;

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
    (&["typical_p"], |s, v| s.typical_p = v as f32),
    (&["top_n_sigma"], |s, v| s.top_n_sigma = v.max(0.0) as f32),
    (&["xtc_probability"], |s, v| s.xtc.probability = v as f32),
    (&["xtc_threshold"], |s, v| s.xtc.threshold = v as f32),
    (&["dynatemp_range"], |s, v| s.dynamic_temperature.range = v as f32),
    (&["dynatemp_exponent"], |s, v| s.dynamic_temperature.exponent = v as f32),
    (&["dry_multiplier"], |s, v| s.dry.multiplier = v as f32),
    (&["dry_base"], |s, v| s.dry.base = v as f32),
    (&["dry_allowed_length"], |s, v| s.dry.allowed_length = v.max(0.0) as u32),
    (&["dry_penalty_last_n"], |s, v| s.dry.window = if v < 0.0 { u32::MAX } else { v as u32 }),
];

/// Parameters of mirostat, which count if it is on.
const MIROSTAT: &[Parameter] = &[
    (&["mirostat_tau"], |s, v| s.mirostat.iter_mut().for_each(|mirostat| mirostat.tau = v as f32)),
    (&["mirostat_eta"], |s, v| s.mirostat.iter_mut().for_each(|mirostat| mirostat.eta = v as f32)),
];

/// The names of all parameters that are numbers.
pub(crate) fn numbers() -> impl Iterator<Item = &'static str> {
    PARAMETERS.iter().chain(MIROSTAT).flat_map(|(names, _)| names.iter().copied())
}

/// Samplers of other engines. A request that uses one is refused.
const UNSUPPORTED: &[&str] = &["top_a", "min_keep", "min_tokens", "bad_words", "use_beam_search"];

/// The same of samplers that are off at 1, which clients send by default.
const OFF_AT_ONE: &[&str] = &["tfs_z", "length_penalty"];

/// Parameters that change nothing here.
const WITHOUT_EFFECT: &[&str] = &["penalize_nl"];

/// The sampling parameters of a request; those that it does not have come from the model.
#[derive(Debug, Clone, Default)]
pub(crate) struct SamplerFields {
    set: Vec<(Put, f64)>,
    logit_bias: Vec<(u32, f32)>,
    seed: Option<u64>,
    order: Option<Order>,
}

impl SamplerFields {
    /// Takes all sampling parameters.
    pub(crate) fn take(fields: &mut Fields) -> Result<SamplerFields, Failure> {
        let mut set = Vec::new();
        if let Some(version) = fields.integer("mirostat", 0, 2)? {
            let put: Put = match version {
                0 => |s, _| s.mirostat = None,
                2 => |s, _| s.mirostat = Some(Mirostat::default()),
                _ => return Err(fields.wrong("mirostat", "version 1 is not supported, only 2 is")),
            };
            set.push((put, 0.0));
        }
        for (names, put) in PARAMETERS.iter().chain(MIROSTAT) {
            for name in *names {
                if let Some(value) = fields.number(name)? {
                    set.push((*put, value));
                }
            }
        }
        let logit_bias = logit_bias(fields)?;
        for name in OFF_AT_ONE {
            if let Some(value) = fields.number(name)?.filter(|value| *value != 1.0) {
                let failure =
                    fields.wrong(name, format!("only 1 is supported, which turns it off, not {value}"));
                return Err(failure.with_code("unsupported_parameter"));
            }
        }
        fields.refuse(UNSUPPORTED)?;
        fields.ignore(WITHOUT_EFFECT);
        Ok(SamplerFields { set, logit_bias, seed: seed(fields)?, order: order(fields)? })
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
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(random::number),
            order: self.order.unwrap_or_default(),
            ..Sampler::default()
        };
        self.set.iter().for_each(|(put, value)| put(&mut sampler, *value));
        sampler
    }
}

/// The most samplers of a request.
const MOST_SAMPLERS: usize = 64;

/// llama.cpp's sampler that weighs ends of a gap in code against going on. It is accepted since editors name it; without it
/// the same tokens are drawn from.
const INFILL: &str = "infill";

/// The stages that are applied, in this order, by the names of llama.cpp.
fn order(fields: &mut Fields) -> Result<Option<Order>, Failure> {
    let Some(mut names) = fields.strings("samplers", MOST_SAMPLERS)? else { return Ok(None) };
    names.retain(|name| name != INFILL);
    let order = names.join(";").parse::<Order>();
    order.map(Some).map_err(|error| fields.wrong("samplers", error.to_string()))
}

/// The seed: any whole number of 64 bits, with a sign or without. -1 is a random one, as in llama.cpp and Ollama.
fn seed(fields: &mut Fields) -> Result<Option<u64>, Failure> {
    let Some(value) = fields.take("seed") else { return Ok(None) };
    let signed = || value.as_i64().map(|seed| seed as u64);
    // Some clients write whole numbers with a point.
    let whole = || value.as_f64().filter(|seed| seed.fract() == 0.0);
    let float = || match whole()? {
        seed if (0.0..u64::MAX as f64).contains(&seed) => Some(seed as u64),
        seed if (i64::MIN as f64..0.0).contains(&seed) => Some(seed as i64 as u64),
        _ => None,
    };
    match value.as_u64().or_else(signed).or_else(float) {
        Some(seed) => Ok(Some(seed).filter(|seed| *seed as i64 != -1 || value.as_u64().is_some())),
        None => {
            Err(fields.wrong("seed", format!("it must be a whole number from {} to {}", i64::MIN, u64::MAX)))
        }
    }
}

/// Biases of tokens: `{"ID": BIAS}`, or a list of `[ID, BIAS]` in which `false` forbids a token.
fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, Failure> {
    let name = "logit_bias";
    let pairs: Vec<(Option<u64>, Option<f64>)> = match fields.take(name) {
        None => Vec::new(),
        Some(Value::Object(map)) => map.iter().map(|(id, bias)| (id.parse().ok(), bias.as_f64())).collect(),
        Some(Value::Array(list)) => list
            .iter()
            .map(|pair| match pair.as_array().map(Vec::as_slice) {
                Some([id, Value::Bool(false)]) => (id.as_u64(), Some(f64::NEG_INFINITY)),
                Some([id, bias]) => (id.as_u64(), bias.as_f64()),
                _ => (None, None),
            })
            .collect(),
        Some(_) => return Err(fields.wrong(name, "it must be an object, or a list of pairs")),
    };
    let pair = |(id, bias): (Option<u64>, Option<f64>)| Some((u32::try_from(id?).ok()?, bias? as f32));
    let pairs: Option<Vec<(u32, f32)>> = pairs.into_iter().map(pair).collect();
    pairs.ok_or_else(|| fields.wrong(name, "each entry must have a token id and a number"))
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
    fn every_sampler_has_its_field() {
        let body = br#"{"typical_p": 0.9, "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.2, "dynatemp_range": 0.3,
            "dry_multiplier": 0.8, "dry_penalty_last_n": -1, "mirostat_tau": 4, "mirostat": 2, "logit_bias": {"7": -100}}"#;
        let mut fields = Fields::parse(body).unwrap();
        let sampler = SamplerFields::take(&mut fields).unwrap().sampler(&Sampling::default());
        fields.finish().unwrap();
        assert_eq!((sampler.typical_p, sampler.top_n_sigma, sampler.dry.multiplier), (0.9, 1.5, 0.8));
        assert_eq!((sampler.xtc.probability, sampler.xtc.threshold), (0.5, 0.2));
        assert_eq!((sampler.dynamic_temperature.range, sampler.dry.window), (0.3, u32::MAX));
        assert_eq!(sampler.mirostat.map(|mirostat| mirostat.tau), Some(4.0));
        assert_eq!(sampler.logit_bias, [(7, -100.0)]);
    }

    #[test]
    fn seeds_are_all_numbers_of_64_bits() {
        let of = |body: &str| seed(&mut Fields::parse(body.as_bytes()).unwrap());
        for (text, expected) in [
            ("7", Some(7)),
            ("7.0", Some(7)),
            ("-1", None),
            ("-1.0", None),
            ("-2", Some(u64::MAX - 1)),
            ("9223372036854775808", Some(1 << 63)),
            ("18446744073709551614", Some(u64::MAX - 1)),
            ("18446744073709551615", Some(u64::MAX)),
        ] {
            assert_eq!(of(&format!(r#"{{"seed": {text}}}"#)).unwrap(), expected, "{text}");
        }
        for wrong in ["1.5", "1e20", "-1e19", "\"7\""] {
            let error = of(&format!(r#"{{"seed": {wrong}}}"#)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("seed"), "{wrong}");
        }
    }

    #[test]
    fn biases_are_maps_or_lists() {
        let biases = |body: &str| logit_bias(&mut Fields::parse(body.as_bytes()).unwrap());
        assert_eq!(
            biases(r#"{"logit_bias": [[3, 1.5], [4, false]]}"#).unwrap(),
            [(3, 1.5), (4, f32::NEG_INFINITY)]
        );
        assert_eq!(biases("{}").unwrap(), []);
        for wrong in
            [r#"{"x": 1}"#, r#"{"1": "a"}"#, "[[1]]", "[1]", "3", r#"[["a", 1]]"#, r#"{"5000000000": 1}"#]
        {
            let error = biases(&format!(r#"{{"logit_bias": {wrong}}}"#)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("logit_bias"), "{wrong}");
        }
    }

    #[test]
    fn samplers_have_an_order() {
        let of = |body: &str| order(&mut Fields::parse(body.as_bytes()).unwrap());
        for (samplers, expected) in [
            (r#"["top_k", "top_p", "infill"]"#, "top_k;top_p"),
            (
                r#"["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]"#,
                "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature",
            ),
            (r#""top-k;temp""#, "top_k;temperature"),
            ("[]", ""),
        ] {
            let found = of(&format!(r#"{{"samplers": {samplers}}}"#)).unwrap();
            assert_eq!(found.map(|order| order.to_string()).as_deref(), Some(expected));
        }
        assert_eq!(of("{}").unwrap(), None);
        for wrong in [r#"["top_q"]"#, r#"["top_k", "top-k"]"#, "[1]", "{}"] {
            let error = of(&format!(r#"{{"samplers": {wrong}}}"#)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some("samplers"), "{wrong}");
        }
    }

    #[test]
    fn other_samplers_are_refused_by_name() {
        let mut off =
            Fields::parse(br#"{"tfs_z": 1, "length_penalty": 1.0, "top_a": 0, "min_keep": 0}"#).unwrap();
        SamplerFields::take(&mut off).unwrap();
        off.finish().unwrap();
        for (body, name) in [
            (r#"{"mirostat": 1}"#, "mirostat"),
            (r#"{"tfs_z": 0.9}"#, "tfs_z"),
            (r#"{"top_a": 0.2}"#, "top_a"),
        ] {
            let mut fields = Fields::parse(body.as_bytes()).unwrap();
            assert_eq!(SamplerFields::take(&mut fields).unwrap_err().param.as_deref(), Some(name));
        }
    }
}

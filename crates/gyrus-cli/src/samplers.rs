//! Flags of samplers beyond temperature, top-k, top-p, min-p and penalties. Their names are those of llama.cpp.

use clap::Args;
use gyrus::{DynamicTemperature, Mirostat, Order, Request, Sampler, Xtc};

/// The flags. docs/sampling.md explains what each sampler does.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling options")]
pub(crate) struct MoreSamplerArgs {
    /// Sample from the tokens whose surprise is closest to the entropy, until their probabilities exceed P; 1 for all
    #[arg(long, value_name = "P", default_value_t = 1.0, value_parser = number(|s, p| s.typical_p = p))]
    typical_p: f32,

    /// Sample from tokens whose logits are at most N standard deviations below the largest; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0.0, value_parser = number(|s, n| s.top_n_sigma = n))]
    top_n_sigma: f32,

    /// How often XTC drops the most likely tokens; 0 for never
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = number(|s, p| s.xtc.probability = p))]
    xtc_probability: f32,

    /// XTC drops tokens with at least this probability, but the least likely of them
    #[arg(long, value_name = "P", default_value_t = 0.1, value_parser = number(|s, p| s.xtc.threshold = p))]
    xtc_threshold: f32,

    /// DRY's penalty on tokens that would continue a repetition; 0 for none
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = number(|s, f| s.dry.multiplier = f))]
    dry_multiplier: f32,

    /// By how much each further token of a repetition multiplies DRY's penalty
    #[arg(long, value_name = "F", default_value_t = 1.75, value_parser = number(|s, f| s.dry.base = f))]
    dry_base: f32,

    /// The shortest repetition whose continuation DRY penalises
    #[arg(long, value_name = "N", default_value_t = 2)]
    dry_allowed_length: u32,

    /// Number of last tokens that DRY searches; -1 for all
    #[arg(long, value_name = "N", default_value = "-1", allow_negative_numbers = true, value_parser = last_tokens)]
    dry_penalty_last_n: u32,

    /// Text that DRY's repetitions do not reach over; may be given several times; none for no such text [default: line
    /// breaks, :, ", *]
    #[arg(long, value_name = "TEXT")]
    pub(crate) dry_sequence_breaker: Vec<String>,

    /// Version of mirostat, instead of top-k, typical-p, top-p, min-p, XTC and top-n-sigma: 0 for none, or 2
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = mirostat_version)]
    mirostat: u32,

    /// The surprise that mirostat aims at, in bits
    #[arg(long, value_name = "F", default_value_t = 5.0, value_parser = number(|s, f| mirostat_of(s).tau = f))]
    mirostat_tau: f32,

    /// How fast mirostat learns
    #[arg(long, value_name = "F", default_value_t = 0.1, value_parser = number(|s, f| mirostat_of(s).eta = f))]
    mirostat_eta: f32,

    /// How far the temperature varies with the entropy; 0 for a constant one
    #[arg(long, value_name = "F", default_value_t = 0.0, value_parser = number(|s, f| s.dynamic_temperature.range = f))]
    dynatemp_range: f32,

    /// The power of the entropy in a temperature that varies
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = number(|s, f| s.dynamic_temperature.exponent = f))]
    dynatemp_exponent: f32,

    /// Add BIAS to the logit of token ID; -inf forbids it; may be given several times
    #[arg(long, value_name = "ID=BIAS", value_parser = bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,

    /// The samplers in the order in which they are applied, separated by semicolons; those left out are not applied
    #[arg(long, value_name = "ORDER", default_value_t = Order::default())]
    samplers: Order,
}

impl MoreSamplerArgs {
    /// The sampler with these flags.
    pub(crate) fn add_to(&self, sampler: Sampler) -> Sampler {
        let mirostat = Mirostat { tau: self.mirostat_tau, eta: self.mirostat_eta, mu: None };
        let mut sampler = Sampler {
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            xtc: Xtc { probability: self.xtc_probability, threshold: self.xtc_threshold },
            mirostat: (self.mirostat == 2).then_some(mirostat),
            dynamic_temperature: DynamicTemperature {
                range: self.dynatemp_range,
                exponent: self.dynatemp_exponent,
            },
            logit_bias: self.logit_bias.clone(),
            order: self.samplers,
            ..sampler
        };
        (sampler.dry.multiplier, sampler.dry.base) = (self.dry_multiplier, self.dry_base);
        (sampler.dry.allowed_length, sampler.dry.window) = (self.dry_allowed_length, self.dry_penalty_last_n);
        sampler
    }
}

/// A request with DRY's sequence breakers, as the flag names them.
pub(crate) fn with_breakers(request: Request, breakers: &[String]) -> Request {
    match breakers {
        [] => request,
        [none] if none == "none" => request.dry_breakers([]),
        texts => request.dry_breakers(texts.iter().cloned()),
    }
}

/// DRY's sequence breakers on one line: `none`, `default`, a list in JSON, or one text.
pub(crate) fn breakers(text: &str) -> Result<Vec<String>, String> {
    match text {
        "default" => Ok(Vec::new()),
        _ if text.starts_with('[') => match serde_json::from_str::<Vec<String>>(text) {
            Ok(none) if none.is_empty() => Ok(vec!["none".to_owned()]),
            Ok(texts) => Ok(texts),
            Err(_) => {
                Err("a list of strings in JSON, such as [\"\\n\", \":\"], a text, none or default is needed"
                    .into())
            }
        },
        text => Ok(vec![text.to_owned()]),
    }
}

/// Parses a number for one field of a sampler, with the sampler's own range check.
pub(crate) fn number(
    put: fn(&mut Sampler, f32),
) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let value = text.parse().map_err(|_| "a number is needed".to_owned())?;
        let mut sampler = Sampler::default();
        put(&mut sampler, value);
        sampler.validate().map(|()| value).map_err(|error| error.to_string())
    }
}

fn mirostat_of(sampler: &mut Sampler) -> &mut Mirostat {
    sampler.mirostat.get_or_insert_default()
}

pub(crate) fn mirostat_version(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(version @ (0 | 2)) => Ok(version),
        Ok(1) => Err("only version 2 is implemented".to_owned()),
        _ => Err("0 or 2 is needed".to_owned()),
    }
}

pub(crate) fn last_tokens(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(-1) => Ok(u32::MAX),
        Ok(n) => u32::try_from(n).map_err(|_| "a number of tokens or -1 is needed".to_owned()),
        Err(_) => Err("a number of tokens or -1 is needed".to_owned()),
    }
}

/// A token's id and its bias: `15=-3.5`.
pub(crate) fn bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) =
        text.split_once('=').ok_or("a token's id, = and a number are needed, such as 15=-3.5")?;
    let id = id.trim().parse().map_err(|_| format!("'{id}' is no token id"))?;
    let bias: f32 = bias.trim().parse().map_err(|_| format!("'{bias}' is no number"))?;
    let sampler = Sampler { logit_bias: vec![(id, bias)], ..Sampler::default() };
    sampler.validate().map(|()| (id, bias)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        samplers: MoreSamplerArgs,
    }

    fn parsed(flags: &[&str]) -> Result<Sampler, String> {
        let flags = Flags::try_parse_from([&["gyrus"], flags].concat()).map_err(|error| error.to_string())?;
        Ok(flags.samplers.add_to(Sampler::default()))
    }

    #[test]
    fn without_flags_samplers_are_plain() {
        assert_eq!(parsed(&[]).unwrap(), Sampler::default());
    }

    #[test]
    fn flags_set_the_sampler() {
        let sampler = parsed(&[
            "--typical-p=0.9",
            "--top-n-sigma=1.5",
            "--xtc-probability=0.5",
            "--xtc-threshold=0.2",
            "--dry-multiplier=0.8",
            "--dry-base=2",
            "--dry-allowed-length=3",
            "--dry-penalty-last-n=100",
            "--mirostat=2",
            "--mirostat-tau=4",
            "--mirostat-eta=0.2",
            "--dynatemp-range=0.3",
            "--dynatemp-exponent=2",
            "--logit-bias",
            "7=-inf",
            "--logit-bias",
            "9=+1.5",
            "--samplers",
            "top_k;temperature",
        ]);
        let sampler = sampler.unwrap();
        assert_eq!((sampler.typical_p, sampler.top_n_sigma), (0.9, 1.5));
        assert_eq!(sampler.xtc, Xtc { probability: 0.5, threshold: 0.2 });
        let dry = &sampler.dry;
        assert_eq!((dry.multiplier, dry.base, dry.allowed_length, dry.window), (0.8, 2.0, 3, 100));
        assert_eq!(sampler.mirostat, Some(Mirostat { tau: 4.0, eta: 0.2, mu: None }));
        assert_eq!(sampler.dynamic_temperature, DynamicTemperature { range: 0.3, exponent: 2.0 });
        assert_eq!(sampler.logit_bias, [(7, f32::NEG_INFINITY), (9, 1.5)]);
        assert_eq!(sampler.order.to_string(), "top_k;temperature");
        assert_eq!(parsed(&["--dry-penalty-last-n=-1"]).unwrap().dry.window, u32::MAX);
    }

    #[test]
    fn bad_values_are_named() {
        for (flag, expected) in [
            ("--typical-p=0", "typical-p is 0"),
            ("--xtc-threshold=2", "XTC threshold is 2"),
            ("--dry-base=0.5", "DRY base is 0.5"),
            ("--dry-penalty-last-n=-2", "a number of tokens or -1"),
            ("--mirostat=1", "only version 2"),
            ("--mirostat-tau=nan", "mirostat tau is NaN"),
            ("--top-n-sigma=-1", "top-n-sigma is -1"),
            ("--dynatemp-range=-1", "dynamic temperature range is -1"),
            ("--logit-bias=7", "a token's id, = and a number"),
            ("--logit-bias=x=1", "'x' is no token id"),
            ("--logit-bias=7=inf", "logit bias of token 7 is inf"),
            ("--samplers=top_k;best", "no sampler 'best'"),
        ] {
            let error = parsed(&[flag]).unwrap_err();
            assert!(error.contains(expected), "{flag}: {error}");
        }
    }
}

//! What `/set` shows and changes: how answers are sampled, and whether the model reasons.

use std::fmt::Write;
use std::str::FromStr;

use anyhow::{Result, anyhow, bail};
use gyrus::{Mirostat, Sampler};
use serde_json::Value;

use crate::decoding::Decoding;
use crate::samplers::{bias, breakers, last_tokens, mirostat_version};

/// The settings of a chat that can be changed while it runs.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) sampler: Sampler,
    pub(crate) decoding: Decoding,
    /// Tokens of an answer at most.
    pub(crate) max_tokens: Option<usize>,
    /// DRY's sequence breakers, as the flag names them.
    pub(crate) dry_breakers: Vec<String>,
}

struct Setting {
    name: &'static str,
    get: fn(&Settings) -> String,
    set: fn(&mut Settings, &str) -> Result<()>,
}

/// Settings that are numbers of the sampler.
macro_rules! numbers {
    ($($name:literal: $($field:ident).+,)*) => {
        [$(Setting {
            name: $name,
            get: |all| all.sampler.$($field).+.to_string(),
            set: |all, text| put(&mut all.sampler.$($field).+, text),
        },)*]
    };
}

const NUMBERS: [Setting; 18] = numbers![
    "temp": temperature,
    "dynatemp-range": dynamic_temperature.range,
    "dynatemp-exponent": dynamic_temperature.exponent,
    "top-k": top_k,
    "top-p": top_p,
    "min-p": min_p,
    "typical-p": typical_p,
    "top-n-sigma": top_n_sigma,
    "xtc-probability": xtc.probability,
    "xtc-threshold": xtc.threshold,
    "repeat-penalty": repetition_penalty,
    "presence-penalty": presence_penalty,
    "frequency-penalty": frequency_penalty,
    "penalty-window": penalty_window,
    "dry-multiplier": dry.multiplier,
    "dry-base": dry.base,
    "dry-allowed-length": dry.allowed_length,
    "seed": seed,
];

const OTHERS: [Setting; 9] = [
    Setting {
        name: "dry-penalty-last-n",
        get: |all| match all.sampler.dry.window {
            u32::MAX => "-1".to_owned(),
            window => window.to_string(),
        },
        set: |all, text| {
            all.sampler.dry.window = last_tokens(text).map_err(|error| anyhow!(error))?;
            Ok(())
        },
    },
    Setting {
        name: "dry-sequence-breaker",
        get: |all| match &all.dry_breakers[..] {
            [] => "default".to_owned(),
            [none] if none == "none" => "none".to_owned(),
            texts => Value::from(texts).to_string(),
        },
        set: |all, text| {
            all.dry_breakers = breakers(text).map_err(|error| anyhow!(error))?;
            Ok(())
        },
    },
    Setting {
        name: "mirostat",
        get: |all| if all.sampler.mirostat.is_some() { "2".to_owned() } else { "0".to_owned() },
        set: |all, text| {
            let is_on = mirostat_version(text).map_err(|error| anyhow!(error))? == 2;
            all.sampler.mirostat = is_on.then(|| all.sampler.mirostat.unwrap_or_default());
            Ok(())
        },
    },
    Setting {
        name: "mirostat-tau",
        get: |all| mirostat(all, |mirostat| mirostat.tau),
        set: |all, text| put(&mut mirostat_mut(all)?.tau, text),
    },
    Setting {
        name: "mirostat-eta",
        get: |all| mirostat(all, |mirostat| mirostat.eta),
        set: |all, text| put(&mut mirostat_mut(all)?.eta, text),
    },
    Setting {
        name: "logit-bias",
        get: |all| match &all.sampler.logit_bias[..] {
            [] => "none".to_owned(),
            biases => biases.iter().map(|(id, by)| format!("{id}={by}")).collect::<Vec<_>>().join(","),
        },
        set: |all, text| {
            let biases = if text == "none" { Ok(Vec::new()) } else { text.split(',').map(bias).collect() };
            all.sampler.logit_bias = biases.map_err(|error: String| anyhow!(error))?;
            Ok(())
        },
    },
    Setting {
        name: "samplers",
        get: |all| all.sampler.order.to_string(),
        set: |all, text| {
            all.sampler.order = text.parse()?;
            Ok(())
        },
    },
    Setting {
        name: "max-tokens",
        get: |all| all.max_tokens.map_or_else(|| "none".to_owned(), |n| n.to_string()),
        set: |all, text| {
            all.max_tokens = if text == "none" { None } else { Some(number(text)?) };
            Ok(())
        },
    },
    Setting {
        name: "think",
        get: |all| match all.decoding.reasoning() {
            None => "auto".to_owned(),
            Some(true) => "on".to_owned(),
            Some(false) => "off".to_owned(),
        },
        set: |all, text| {
            all.decoding.set_reasoning(match text {
                "on" => Some(true),
                "off" => Some(false),
                "auto" => None,
                _ => bail!("on, off or auto is needed"),
            });
            Ok(())
        },
    },
];

fn all() -> impl Iterator<Item = &'static Setting> {
    NUMBERS.iter().chain(&OTHERS)
}

fn mirostat(all: &Settings, field: fn(&Mirostat) -> f32) -> String {
    all.sampler.mirostat.as_ref().map_or_else(|| "off".to_owned(), |mirostat| field(mirostat).to_string())
}

fn mirostat_mut(all: &mut Settings) -> Result<&mut Mirostat> {
    all.sampler.mirostat.as_mut().ok_or_else(|| anyhow!("mirostat is off: /set mirostat 2 comes first"))
}

impl Settings {
    /// All settings, one to a line.
    pub(crate) fn list(&self) -> String {
        let mut text = String::new();
        for setting in all() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:<20} {}", setting.name, (setting.get)(self));
        }
        text
    }

    /// Changes a setting. One that is refused is as it was.
    pub(crate) fn change(&mut self, name: &str, value: &str) -> Result<()> {
        let Some(setting) = all().find(|setting| setting.name == name) else {
            let names: Vec<&str> = all().map(|setting| setting.name).collect();
            bail!("there is no setting '{name}', only {}", names.join(", "));
        };
        if value.is_empty() {
            bail!("/set {name} needs a value; it is {}", (setting.get)(self));
        }
        let mut changed = self.clone();
        (setting.set)(&mut changed, value).map_err(|error| error.context(format!("/set {name} {value}")))?;
        changed.sampler.validate()?;
        *self = changed;
        Ok(())
    }
}

fn put<T: FromStr>(to: &mut T, text: &str) -> Result<()> {
    *to = number(text)?;
    Ok(())
}

fn number<T: FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| anyhow!("a number is needed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        decoding: crate::decoding::DecodingArgs,
    }

    #[test]
    fn settings_are_changed_or_stay_as_they_were() {
        let decoding = Flags::parse_from(["gyrus"]).decoding.read().unwrap();
        let mut settings =
            Settings { sampler: Sampler::default(), decoding, max_tokens: None, dry_breakers: Vec::new() };
        let before = settings.list();
        for (name, value, complaint) in [
            ("temp", "hot", "number"),
            ("temp", "-1", "temperature"),
            ("temp", "NaN", "temperature"),
            ("top-p", "1.5", "top"),
            ("think", "maybe", "on, off or auto"),
            ("heat", "1", "no setting 'heat', only temp"),
            ("seed", "", "needs a value"),
            ("max-tokens", "-3", "number"),
            ("typical-p", "0", "typical-p is 0"),
            ("xtc-threshold", "2", "XTC threshold is 2"),
            ("dry-penalty-last-n", "-2", "a number of tokens or -1"),
            ("dry-sequence-breaker", "[1]", "a list of strings in JSON"),
            ("mirostat", "1", "only version 2"),
            ("mirostat-tau", "4", "mirostat is off"),
            ("logit-bias", "7", "a token's id, = and a number"),
            ("samplers", "top_k;best", "no sampler 'best'"),
        ] {
            let error = format!("{:#}", settings.change(name, value).unwrap_err());
            assert!(error.contains(complaint), "{name} {value}: {error}");
        }
        assert_eq!(settings.list(), before);
        for (name, value) in [
            ("temp", "0.25"),
            ("dynatemp-range", "0.5"),
            ("top-k", "7"),
            ("typical-p", "0.9"),
            ("top-n-sigma", "1.5"),
            ("xtc-probability", "0.5"),
            ("dry-multiplier", "0.8"),
            ("dry-penalty-last-n", "64"),
            ("dry-penalty-last-n", "-1"),
            ("dry-sequence-breaker", "[\"\\n\",\"; \"]"),
            ("dry-sequence-breaker", "default"),
            ("dry-sequence-breaker", "none"),
            ("mirostat", "2"),
            ("mirostat-tau", "4"),
            ("logit-bias", "7=-inf,9=1.5"),
            ("samplers", "top_k;temperature"),
            ("think", "off"),
            ("max-tokens", "9"),
        ] {
            settings.change(name, value).unwrap();
            assert!(settings.list().lines().any(|line| line.starts_with(name) && line.ends_with(value)));
        }
        assert_eq!((settings.sampler.top_k, settings.decoding.reasoning()), (7, Some(false)));
        assert_eq!(settings.sampler.mirostat.map(|mirostat| mirostat.tau), Some(4.0));
        assert_eq!(settings.sampler.logit_bias, [(7, f32::NEG_INFINITY), (9, 1.5)]);
        settings.change("dry-sequence-breaker", "[]").unwrap();
        assert_eq!(settings.dry_breakers, ["none"]);
        settings.change("dry-sequence-breaker", "User:").unwrap();
        assert_eq!(settings.dry_breakers, ["User:"]);
        settings.change("mirostat", "0").unwrap();
        settings.change("logit-bias", "none").unwrap();
        assert_eq!((settings.sampler.mirostat, settings.sampler.logit_bias.len()), (None, 0));
        settings.change("think", "auto").unwrap();
        settings.change("max-tokens", "none").unwrap();
        assert_eq!((settings.max_tokens, settings.decoding.reasoning()), (None, None));
    }
}

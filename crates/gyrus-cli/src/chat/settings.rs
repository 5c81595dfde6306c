//! What `/set` shows and changes: how answers are sampled, and whether the model reasons.

use std::fmt::Write;
use std::str::FromStr;

use anyhow::{Result, anyhow, bail};
use gyrus::Sampler;

use crate::decoding::Decoding;

/// The settings of a chat that can be changed while it runs.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) sampler: Sampler,
    pub(crate) decoding: Decoding,
    /// Tokens of an answer at most.
    pub(crate) max_tokens: Option<usize>,
}

struct Setting {
    name: &'static str,
    get: fn(&Settings) -> String,
    set: fn(&mut Settings, &str) -> Result<()>,
}

const ALL: [Setting; 11] = [
    Setting {
        name: "temp",
        get: |all| all.sampler.temperature.to_string(),
        set: |all, text| put(&mut all.sampler.temperature, text),
    },
    Setting {
        name: "top-k",
        get: |all| all.sampler.top_k.to_string(),
        set: |all, text| put(&mut all.sampler.top_k, text),
    },
    Setting {
        name: "top-p",
        get: |all| all.sampler.top_p.to_string(),
        set: |all, text| put(&mut all.sampler.top_p, text),
    },
    Setting {
        name: "min-p",
        get: |all| all.sampler.min_p.to_string(),
        set: |all, text| put(&mut all.sampler.min_p, text),
    },
    Setting {
        name: "repeat-penalty",
        get: |all| all.sampler.repetition_penalty.to_string(),
        set: |all, text| put(&mut all.sampler.repetition_penalty, text),
    },
    Setting {
        name: "presence-penalty",
        get: |all| all.sampler.presence_penalty.to_string(),
        set: |all, text| put(&mut all.sampler.presence_penalty, text),
    },
    Setting {
        name: "frequency-penalty",
        get: |all| all.sampler.frequency_penalty.to_string(),
        set: |all, text| put(&mut all.sampler.frequency_penalty, text),
    },
    Setting {
        name: "penalty-window",
        get: |all| all.sampler.penalty_window.to_string(),
        set: |all, text| put(&mut all.sampler.penalty_window, text),
    },
    Setting {
        name: "seed",
        get: |all| all.sampler.seed.to_string(),
        set: |all, text| put(&mut all.sampler.seed, text),
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

impl Settings {
    /// All settings, one to a line.
    pub(crate) fn list(&self) -> String {
        let mut text = String::new();
        for setting in &ALL {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{:<18} {}", setting.name, (setting.get)(self));
        }
        text
    }

    /// Changes a setting. One that is refused is as it was.
    pub(crate) fn change(&mut self, name: &str, value: &str) -> Result<()> {
        let Some(setting) = ALL.iter().find(|setting| setting.name == name) else {
            let names: Vec<&str> = ALL.iter().map(|setting| setting.name).collect();
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
        let mut settings = Settings { sampler: Sampler::default(), decoding, max_tokens: None };
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
        ] {
            let error = format!("{:#}", settings.change(name, value).unwrap_err());
            assert!(error.contains(complaint), "{name} {value}: {error}");
        }
        assert_eq!(settings.list(), before);
        for (name, value) in [("temp", "0.25"), ("top-k", "7"), ("think", "off"), ("max-tokens", "9")] {
            settings.change(name, value).unwrap();
            assert!(settings.list().lines().any(|line| line.starts_with(name) && line.ends_with(value)));
        }
        assert_eq!((settings.sampler.top_k, settings.decoding.reasoning()), (7, Some(false)));
        settings.change("think", "auto").unwrap();
        settings.change("max-tokens", "none").unwrap();
        assert_eq!((settings.max_tokens, settings.decoding.reasoning()), (None, None));
    }
}

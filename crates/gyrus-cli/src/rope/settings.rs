//! Rotary embeddings from options: what `--scaling` and `--compare` mean.

use std::ffi::OsString;
use std::str::FromStr;

use gyrus::rope::{LongRope, Magnitude, Pairing, RopeSpec, Scaling, Sections, Yarn};

use crate::cli::PairingArg;

/// A scaling as it is typed: `yarn:factor=4,original=32768`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ScalingFlag {
    /// One that needs nothing else.
    Known(Scaling),
    /// The rotated share of a head; the number of pairs follows from the head dimension.
    Proportional { part: f64, factor: f64 },
}

impl ScalingFlag {
    fn scaling(&self, head_dim: usize) -> Scaling {
        match self {
            ScalingFlag::Known(scaling) => scaling.clone(),
            ScalingFlag::Proportional { part, factor } => {
                Scaling::Proportional { rotated: (part * head_dim as f64 / 2.0) as usize, factor: *factor }
            }
        }
    }
}

/// Keys and values of a scaling; each is used once, and none may be left over.
struct Values<'a> {
    kind: &'a str,
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> Values<'a> {
    fn text(&mut self, key: &str) -> Option<&'a str> {
        let at = self.left.iter().position(|(k, _)| *k == key)?;
        Some(self.left.remove(at).1)
    }

    fn optional(&mut self, key: &str) -> Result<Option<f64>, String> {
        let Some(text) = self.text(key) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("{key} is \"{text}\", not a number"))
    }

    fn need(&mut self, key: &str) -> Result<f64, String> {
        self.optional(key)?.ok_or_else(|| format!("{} needs {key}=…", self.kind))
    }

    fn list(&mut self, key: &str) -> Result<Vec<f64>, String> {
        let text = self.text(key).ok_or_else(|| format!("{} needs {key}=…", self.kind))?;
        let items: Result<Vec<f64>, _> = text.split('/').map(str::parse).collect();
        items.map_err(|_| format!("{key} is \"{text}\", not numbers with / between them"))
    }

    fn flag(&mut self, key: &str) -> Result<Option<bool>, String> {
        match self.text(key) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(text) => Err(format!("{key} is \"{text}\", not true or false")),
        }
    }
}

impl FromStr for ScalingFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<ScalingFlag, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut left = Vec::new();
        for item in rest.split(',').filter(|item| !item.is_empty()) {
            left.push(item.split_once('=').ok_or_else(|| format!("\"{item}\" is not KEY=VALUE"))?);
        }
        let mut values = Values { kind, left };
        let flag = match kind {
            "none" => ScalingFlag::Known(Scaling::None),
            "linear" => ScalingFlag::Known(Scaling::Linear { factor: values.need("factor")? }),
            "ntk" => ScalingFlag::Known(Scaling::Ntk { factor: values.need("factor")? }),
            "dynamic" => ScalingFlag::Known(Scaling::DynamicNtk {
                factor: values.need("factor")?,
                original: values.need("original")?,
            }),
            "yarn" => ScalingFlag::Known(Scaling::Yarn(yarn(&mut values)?)),
            "llama3" => ScalingFlag::Known(Scaling::Llama3 {
                factor: values.need("factor")?,
                low: values.optional("low")?.unwrap_or(1.0),
                high: values.optional("high")?.unwrap_or(4.0),
                original: values.need("original")?,
            }),
            "longrope" => {
                let original = values.need("original")?;
                let factor = values.optional("factor")?.unwrap_or(1.0);
                let rule = LongRope::attention_factor(factor, original);
                let attention_factors = [values.optional("attention_factor")?.unwrap_or(rule); 2];
                let (short, long) = (values.list("short")?, values.list("long")?);
                ScalingFlag::Known(Scaling::LongRope(LongRope { short, long, original, attention_factors }))
            }
            "proportional" => {
                let part = values.need("part")?;
                if !(part > 0.0 && part <= 1.0) {
                    return Err(format!("part is {part}, not a part of 1"));
                }
                ScalingFlag::Proportional { part, factor: values.optional("factor")?.unwrap_or(1.0) }
            }
            other => return Err(format!("there is no kind \"{other}\"")),
        };
        match values.left.first() {
            Some((key, _)) => Err(format!("{kind} has no {key}")),
            None => Ok(flag),
        }
    }
}

fn yarn(values: &mut Values<'_>) -> Result<Yarn, String> {
    let mut yarn = Yarn::new(values.need("factor")?, values.need("original")?);
    yarn.beta_fast = values.optional("beta_fast")?.unwrap_or(yarn.beta_fast);
    yarn.beta_slow = values.optional("beta_slow")?.unwrap_or(yarn.beta_slow);
    yarn.truncate = values.flag("truncate")?.unwrap_or(true);
    let mscales = (values.optional("mscale")?, values.optional("mscale_all_dim")?);
    yarn.magnitude = match (values.optional("attention_factor")?, mscales) {
        (Some(given), _) => Magnitude::Given(given),
        (None, (Some(mscale), Some(all_dim))) => Magnitude::Quotient { mscale, all_dim },
        (None, (None, None)) => Magnitude::Rule,
        (None, _) => return Err("mscale and mscale_all_dim go together".to_owned()),
    };
    Ok(yarn)
}

/// Changes to a rotary embedding.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Options {
    pub(crate) head_dim: Option<usize>,
    pub(crate) rope_dim: Option<usize>,
    pub(crate) offset: Option<usize>,
    pub(crate) base: Option<f64>,
    pub(crate) pairing: Option<Pairing>,
    pub(crate) scaling: Option<ScalingFlag>,
    pub(crate) sections: Option<Sections>,
}

impl Options {
    /// The rotary embedding of these options alone.
    pub(crate) fn spec(&self) -> RopeSpec {
        let mut spec = RopeSpec::new(Pairing::Split, self.head_dim.unwrap_or_default(), 10000.0);
        self.apply(&mut spec);
        spec
    }

    /// These options, and those of `below` that they leave open.
    pub(crate) fn over(&self, below: &Options) -> Options {
        Options {
            head_dim: self.head_dim.or(below.head_dim),
            rope_dim: self.rope_dim.or(below.rope_dim),
            offset: self.offset.or(below.offset),
            base: self.base.or(below.base),
            pairing: self.pairing.or(below.pairing),
            scaling: self.scaling.clone().or_else(|| below.scaling.clone()),
            sections: self.sections.clone().or_else(|| below.sections.clone()),
        }
    }

    /// Applies the changes.
    pub(crate) fn apply(&self, spec: &mut RopeSpec) {
        if let Some(head_dim) = self.head_dim {
            // If the whole head was rotated, it stays so.
            let whole = spec.rope_dim == spec.head_dim;
            spec.head_dim = head_dim;
            spec.rope_dim = if whole { head_dim } else { spec.rope_dim };
        }
        spec.rope_dim = self.rope_dim.unwrap_or(spec.rope_dim);
        spec.offset = self.offset.unwrap_or(spec.offset);
        spec.base = self.base.unwrap_or(spec.base);
        spec.pairing = self.pairing.unwrap_or(spec.pairing);
        if let Some(scaling) = &self.scaling {
            spec.scaling = scaling.scaling(spec.head_dim);
            // Factors of a file are scaling too.
            spec.factors = None;
        }
        if let Some(sections) = &self.sections {
            spec.sections = Some(sections.clone());
        }
    }
}

impl From<PairingArg> for Pairing {
    fn from(pairing: PairingArg) -> Pairing {
        match pairing {
            PairingArg::Adjacent => Pairing::Adjacent,
            PairingArg::Split => Pairing::Split,
        }
    }
}

/// What `--compare` names: a model, or changes such as `base=1e6 scaling=linear:factor=8`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Changes {
    Model(OsString),
    Options { text: String, options: Box<Options> },
}

const KEYS: [&str; 6] = ["head-dim", "rope-dim", "offset", "base", "pairing", "scaling"];

impl Changes {
    /// Reads what was typed: changes begin with one of their keys.
    pub(crate) fn parse(argument: OsString) -> Result<Changes, String> {
        let is_change = |word: &str| word.split_once('=').is_some_and(|(key, _)| KEYS.contains(&key));
        let text = match argument.to_str() {
            Some(text) if text.split_whitespace().next().is_some_and(is_change) => text,
            _ => return Ok(Changes::Model(argument)),
        };
        let mut options = Options::default();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("\"{word}\" is not KEY=VALUE"))?;
            let size = || value.parse().map_err(|_| format!("{key} is \"{value}\", not a whole number"));
            match key {
                "head-dim" => options.head_dim = Some(size()?),
                "rope-dim" => options.rope_dim = Some(size()?),
                "offset" => options.offset = Some(size()?),
                "base" => {
                    let base = value.parse().map_err(|_| format!("base is \"{value}\", not a number"))?;
                    options.base = Some(base);
                }
                "pairing" => {
                    let pairing = <PairingArg as clap::ValueEnum>::from_str(value, false);
                    options.pairing =
                        Some(pairing.map_err(|_| format!("no pairing is called \"{value}\""))?.into());
                }
                "scaling" => options.scaling = Some(value.parse()?),
                _ => return Err(format!("\"{key}\" is none of {}", KEYS.join(", "))),
            }
        }
        Ok(Changes::Options { text: text.to_owned(), options: Box::new(options) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalings_are_read_and_refused() {
        let read = |text: &str| text.parse::<ScalingFlag>();
        assert_eq!(read("linear:factor=8"), Ok(ScalingFlag::Known(Scaling::Linear { factor: 8.0 })));
        let yarn = Yarn { truncate: false, magnitude: Magnitude::Given(1.0), ..Yarn::new(4.0, 32768.0) };
        assert_eq!(
            read("yarn:factor=4,original=32768,truncate=false,attention_factor=1"),
            Ok(ScalingFlag::Known(Scaling::Yarn(yarn)))
        );
        for (text, reason) in [
            ("", "no kind"),
            ("bent", "no kind \"bent\""),
            ("linear", "linear needs factor"),
            ("linear:factor", "not KEY=VALUE"),
            ("linear:factor=x", "not a number"),
            ("linear:factor=2,beta=3", "linear has no beta"),
            ("linear:factor=2,factor=3", "linear has no factor"),
            ("yarn:factor=2,original=9,mscale=1", "go together"),
            ("yarn:factor=2,original=9,truncate=maybe", "not true or false"),
            ("proportional:part=2", "not a part of 1"),
            ("longrope:original=9,short=1/2,long=1/x", "numbers with / between"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn changes_are_told_from_models() {
        let read = |text: &str| Changes::parse(text.into());
        assert_eq!(read("model.gguf"), Ok(Changes::Model("model.gguf".into())));
        assert_eq!(read("odd=name.gguf"), Ok(Changes::Model("odd=name.gguf".into())));
        let Ok(Changes::Options { options, .. }) = read("base=1e6 pairing=adjacent scaling=ntk:factor=2")
        else {
            panic!("changes");
        };
        assert_eq!((options.base, options.pairing), (Some(1e6), Some(Pairing::Adjacent)));
        assert!(read("base=x").unwrap_err().contains("not a number"));
        assert!(read("base=1 size=2").unwrap_err().contains("none of"));
    }
}

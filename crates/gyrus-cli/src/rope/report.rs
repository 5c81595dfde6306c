//! The facts about a rotary embedding that are printed.

use std::f64::consts::TAU;

use gyrus::rope::{Direction, LongRope, Magnitude, Pairing, Rope, Scaling, Spectrum, Yarn};
use gyrus::{LayerRope, ModelRopes};
use serde::Serialize;
use serde_json::{Value, json};

/// The name of a rope that options make.
pub(crate) const AS_GIVEN: &str = "as given";

/// A model, or options, with all its ropes.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) name: String,
    pub(crate) architecture: Option<String>,
    pub(crate) context: Option<u64>,
    pub(crate) kinds: Vec<Kind>,
}

/// The rope of one kind of layer.
#[derive(Debug, Serialize)]
pub(crate) struct Kind {
    pub(crate) layers: String,
    pub(crate) which: Vec<usize>,
    pub(crate) pairing: &'static str,
    pub(crate) head_dim: usize,
    pub(crate) rope_dim: usize,
    pub(crate) offset: usize,
    pub(crate) base: f64,
    pub(crate) scaling: Value,
    pub(crate) factors_from_file: bool,
    pub(crate) sections: Option<Vec<usize>>,
    pub(crate) interleaved: bool,
    pub(crate) length: usize,
    pub(crate) attention_factor: f64,
    pub(crate) score_factor: f64,
    pub(crate) pairs: Vec<Pair>,
    #[serde(skip)]
    pub(crate) rope: Rope,
    #[serde(skip)]
    pub(crate) spectrum: Spectrum,
}

/// One pair of a head.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Pair {
    pub(crate) pair: usize,
    pub(crate) elements: (usize, usize),
    pub(crate) row: u8,
    /// Radians per position.
    pub(crate) frequency: f64,
    /// Positions per full rotation; none for a pair that is not rotated.
    pub(crate) wavelength: Option<f64>,
    /// Wavelength over that without scaling.
    pub(crate) stretch: Option<f64>,
    pub(crate) band: Band,
    /// Phase per position in units of 2⁻⁶⁴ of a turn; text, since it exceeds the range of exact JSON numbers.
    pub(crate) turns: String,
}

/// What scaling does to a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Band {
    /// Nothing.
    Kept,
    /// Something in between.
    Ramp,
    /// All it does.
    Stretched,
    /// The pair is not rotated.
    Still,
}

impl Band {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Band::Kept => "unchanged",
            Band::Ramp => "ramp",
            Band::Stretched => "stretched",
            Band::Still => "not rotated",
        }
    }
}

impl Report {
    pub(crate) fn of_model(name: &str, ropes: ModelRopes, length: Option<usize>) -> Report {
        Report {
            name: name.to_owned(),
            architecture: Some(ropes.architecture),
            context: ropes.context,
            kinds: ropes.kinds.into_iter().map(|kind| Kind::new(kind, length)).collect(),
        }
    }

    pub(crate) fn of_rope(name: &str, rope: Rope, length: Option<usize>) -> Report {
        let kind = LayerRope { name: "all".to_owned(), layers: Vec::new(), rope, score_factor: 1.0 };
        Report {
            name: name.to_owned(),
            architecture: None,
            context: None,
            kinds: vec![Kind::new(kind, length)],
        }
    }
}

impl Kind {
    fn new(kind: LayerRope, length: Option<usize>) -> Kind {
        let LayerRope { name, layers, rope, score_factor } = kind;
        let length = length.unwrap_or(0);
        let spectrum = rope.spectrum(length).into_owned();
        let spec = rope.spec();
        let pairs = pairs(&rope, &spectrum);
        Kind {
            layers: name,
            which: layers,
            pairing: match spec.pairing {
                Pairing::Adjacent => "adjacent",
                Pairing::Split => "split",
            },
            head_dim: spec.head_dim,
            rope_dim: spec.rope_dim,
            offset: spec.offset,
            base: spec.base,
            scaling: scaling(&spec.scaling),
            factors_from_file: spec.factors.is_some(),
            sections: spec.sections.as_ref().map(|s| s.sizes.clone()),
            interleaved: spec.sections.as_ref().is_some_and(|s| s.interleaved),
            length,
            attention_factor: spectrum.attention_factor(),
            score_factor,
            pairs,
            spectrum,
            rope,
        }
    }

    /// How many pairs are in a band.
    pub(crate) fn count(&self, band: Band) -> usize {
        self.pairs.iter().filter(|pair| pair.band == band).count()
    }

    /// The shortest and the longest wave.
    pub(crate) fn waves(&self) -> Option<(f64, f64)> {
        let waves = || self.pairs.iter().filter_map(|pair| pair.wavelength);
        Some((waves().reduce(f64::min)?, waves().reduce(f64::max)?))
    }

    /// The context of the first training, where scaling knows one.
    pub(crate) fn original(&self) -> Option<f64> {
        match &self.rope.spec().scaling {
            Scaling::DynamicNtk { original, .. }
            | Scaling::Yarn(Yarn { original, .. })
            | Scaling::LongRope(LongRope { original, .. })
            | Scaling::Llama3 { original, .. } => Some(*original),
            _ => None,
        }
    }
}

fn pairs(rope: &Rope, spectrum: &Spectrum) -> Vec<Pair> {
    let plain = rope.unscaled();
    let stretches: Vec<Option<f64>> = spectrum
        .frequencies()
        .iter()
        .zip(spectrum.turns())
        .zip(&plain)
        // Files disable the rotation of a pair by a huge factor.
        .map(|((&f, &turns), plain)| (turns != 0).then(|| plain / f))
        .collect();
    let full = stretches.iter().flatten().copied().fold(1.0, f64::max);
    // Where every pair has a factor of its own, there is no ramp.
    let own = matches!(
        rope.spec().scaling,
        Scaling::Ntk { .. } | Scaling::DynamicNtk { .. } | Scaling::LongRope(_)
    );
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
    let band = |stretch: Option<f64>| match stretch {
        None => Band::Still,
        Some(s) if near(s, 1.0) => Band::Kept,
        Some(s) if own || near(s, full) => Band::Stretched,
        Some(_) => Band::Ramp,
    };
    (0..rope.pairs())
        .map(|pair| Pair {
            pair,
            elements: rope.elements(pair),
            row: rope.rows()[pair],
            frequency: spectrum.frequencies()[pair],
            wavelength: stretches[pair].map(|_| TAU / spectrum.frequencies()[pair]),
            stretch: stretches[pair],
            band: band(stretches[pair]),
            turns: spectrum.turns()[pair].to_string(),
        })
        .collect()
}

fn scaling(scaling: &Scaling) -> Value {
    let kind = scaling.name();
    match scaling {
        Scaling::None => json!({ "type": kind }),
        Scaling::Linear { factor } | Scaling::Ntk { factor } => json!({ "type": kind, "factor": factor }),
        Scaling::DynamicNtk { factor, original } => {
            json!({ "type": kind, "factor": factor, "original": original })
        }
        Scaling::Yarn(yarn) => {
            let mut value = json!({
                "type": kind, "factor": yarn.factor, "original": yarn.original, "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow, "truncate": yarn.truncate,
            });
            match yarn.magnitude {
                Magnitude::Rule => {}
                Magnitude::Quotient { mscale, all_dim } => {
                    value["mscale"] = json!(mscale);
                    value["mscale_all_dim"] = json!(all_dim);
                }
                Magnitude::Given(factor) => value["attention_factor"] = json!(factor),
            }
            value
        }
        Scaling::LongRope(long) => json!({
            "type": kind, "original": long.original, "short": long.short, "long": long.long,
            "attention_factors": long.attention_factors,
        }),
        Scaling::Llama3 { factor, low, high, original } => {
            json!({ "type": kind, "factor": factor, "low": low, "high": high, "original": original })
        }
        Scaling::Proportional { rotated, factor } => {
            json!({ "type": kind, "rotated": rotated, "factor": factor })
        }
    }
}

/// A scaling for people.
pub(crate) fn scaling_in_words(kind: &Kind) -> String {
    let mut scaling = match &kind.rope.spec().scaling {
        Scaling::None => "not scaled".to_owned(),
        Scaling::Linear { factor } => format!("linear by {factor}"),
        Scaling::Ntk { factor } => format!("NTK by {factor}"),
        Scaling::DynamicNtk { factor, original } => format!("dynamic NTK by {factor} beyond {original}"),
        Scaling::Yarn(yarn) => {
            let ramp = if yarn.truncate { "" } else { ", ramp not truncated" };
            format!("YaRN by {} over {}{ramp}", yarn.factor, yarn.original)
        }
        Scaling::LongRope(long) => format!("LongRoPE over {}", long.original),
        Scaling::Llama3 { factor, original, .. } => format!("Llama 3 by {factor} over {original}"),
        Scaling::Proportional { rotated, factor } if *factor == 1.0 => {
            format!("proportional, {rotated} pairs rotated")
        }
        Scaling::Proportional { rotated, factor } => {
            format!("proportional by {factor}, {rotated} pairs rotated")
        }
    };
    if kind.factors_from_file {
        scaling.push_str(", factors from the file");
    }
    scaling
}

/// A rope in one line for people.
pub(crate) fn in_words(kind: &Kind) -> String {
    let mut facts = vec![match (kind.rope_dim == kind.head_dim, kind.offset) {
        (true, _) => format!("{} pairs over heads of {}", kind.pairing, kind.head_dim),
        (false, 0) => format!("{} pairs over the first {} of {}", kind.pairing, kind.rope_dim, kind.head_dim),
        (false, offset) if offset + kind.rope_dim == kind.head_dim => {
            format!("{} pairs over the last {} of {}", kind.pairing, kind.rope_dim, kind.head_dim)
        }
        (false, offset) => {
            format!("{} pairs over {} of {} from {offset} on", kind.pairing, kind.rope_dim, kind.head_dim)
        }
    }];
    facts.push(format!("base {}", kind.base));
    facts.push(scaling_in_words(kind));
    if let Some(sizes) = &kind.sections {
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        let how = if kind.interleaved { " interleaved" } else { "" };
        facts.push(format!("sections {}{how}", sizes.join(" + ")));
    }
    if kind.rope.direction() == Direction::Inverse {
        facts.push("inverse".to_owned());
    }
    facts.join(" · ")
}

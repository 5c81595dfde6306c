//! Rotary embeddings from a `config.json` in Hugging Face's layout, old or new.

use gyrus_kernels::{LongRope, Magnitude, Pairing, RopeSpec, Scaling, Sections, Yarn};
use serde_json::Value;

use super::config_defaults;
use super::fields::Fields;
use super::pairings;
use super::reader::text_config;
use super::ropes::{GLOBAL, LOCAL, LayerRope, ModelRopes, layer_count, rope};
use crate::Error;

/// The default base (theta).
const DEFAULT_BASE: f64 = 10000.0;

/// The default sliding-window pattern, Gemma 3's: every sixth layer has full attention.
const DEFAULT_PERIOD: u64 = 6;

/// Reads the rotary embeddings of a model.
pub(super) fn read(config: &Value, pairing: Option<Pairing>) -> Result<ModelRopes, Error> {
    let config = config_defaults::complete(config);
    let (model, name) = text_config(&config)?;
    let pairing = match (pairing, model.flag("rope_interleave")?) {
        (Some(pairing), _) => pairing,
        (None, Some(true)) => Pairing::Adjacent,
        (None, Some(false)) => Pairing::Split,
        (None, None) => pairings::config(name),
    };
    let count = layer_count(model.optional_number("num_hidden_layers")?)?;
    let reader = Reader { model, pairing, context: model.float("max_position_embeddings")? };
    let parameters = match model.get("rope_parameters") {
        Some(_) => model.object("rope_parameters"),
        None => model.object("rope_scaling"),
    };
    let types = reader.layer_types(count)?;
    let layers_of = |kind: &str| -> Vec<usize> {
        types.iter().enumerate().filter(|(_, t)| **t == kind).map(|(i, _)| i).collect()
    };
    let mut kinds = Vec::new();
    let nested = nested(parameters);
    if !nested.is_empty() {
        for (kind, parameters) in nested {
            let layers = layers_of(kind);
            kinds.push(reader.kind(kind, layers, Some(kind), parameters, None)?);
        }
    } else if let Some(base) = model.float("rope_local_base_freq")? {
        kinds.push(reader.kind(GLOBAL, layers_of(GLOBAL), Some(GLOBAL), parameters, None)?);
        // Only layers with full attention are scaled.
        kinds.push(reader.kind(LOCAL, layers_of(LOCAL), Some(LOCAL), Fields(&Value::Null), Some(base))?);
    } else {
        kinds.push(reader.kind("all", (0..count).collect(), None, parameters, None)?);
    }
    let context = model.optional_number("max_position_embeddings")?;
    Ok(ModelRopes { architecture: name.to_owned(), context, kinds })
}

/// The parameters of each layer type, if the object's values are objects. A layer type with a null value has no rotary
/// embedding.
fn nested<'a>(parameters: Fields<'a>) -> Vec<(&'a str, Fields<'a>)> {
    let Value::Object(fields) = parameters.0 else { return Vec::new() };
    fields.iter().filter(|(_, v)| v.is_object()).map(|(kind, v)| (kind.as_str(), Fields(v))).collect()
}

struct Reader<'a> {
    model: Fields<'a>,
    pairing: Pairing,
    context: Option<f64>,
}

impl<'a> Reader<'a> {
    /// The type of each layer: from a list, or full attention in every n-th layer.
    fn layer_types(&self, count: usize) -> Result<Vec<&'a str>, Error> {
        if let Some(types) = self.model.list("layer_types", Value::as_str)? {
            return Ok(types);
        }
        let period = match self.model.optional_number("sliding_window_pattern")? {
            Some(period) => period,
            None => self.model.optional_number("_sliding_window_pattern")?.unwrap_or(DEFAULT_PERIOD),
        };
        let kind = |i| if period > 0 && (i + 1) % period == 0 { GLOBAL } else { LOCAL };
        Ok((0..count as u64).map(kind).collect())
    }

    /// The rotary embedding of one layer type; `base` overrides the parameters.
    fn kind(
        &self,
        name: &str,
        layers: Vec<usize>,
        layer_type: Option<&str>,
        parameters: Fields<'a>,
        base: Option<f64>,
    ) -> Result<LayerRope, Error> {
        let head_dim = self.head_dim(layer_type, &layers)?;
        let base = match base.or(parameters.float("rope_theta")?).or(self.model.float("rope_theta")?) {
            Some(base) => base,
            None => self.model.float("rotary_emb_base")?.unwrap_or(DEFAULT_BASE),
        };
        let kind = parameters.optional_text("rope_type")?.or(parameters.optional_text("type")?);
        let kind = kind.unwrap_or("default");
        let fraction = self.rotary_fraction(parameters)?;
        let latent = match self.model.optional_number("qk_rope_head_dim")? {
            Some(rope_dim) if self.model.get("kv_lora_rank").is_some() => {
                Some((rope_dim as usize, self.model.number("qk_nope_head_dim")? as usize))
            }
            _ => None,
        };
        let mut spec = RopeSpec::new(self.pairing, head_dim, base);
        match latent {
            // Multi-head latent attention rotates the last elements of a head.
            Some((rope_dim, nope)) => {
                spec.head_dim = rope_dim.saturating_add(nope);
                spec.rope_dim = rope_dim;
                spec.offset = nope;
            }
            None if kind == "proportional" => {}
            None => {
                let dim = match self.model.optional_number("rotary_dim")? {
                    Some(dim) => dim as usize,
                    None => (head_dim as f64 * fraction) as usize,
                };
                spec.rope_dim = dim;
            }
        }
        spec.scaling = match kind {
            "proportional" => {
                let rotated = (fraction * head_dim as f64 / 2.0) as usize;
                Scaling::Proportional { rotated, factor: parameters.float("factor")?.unwrap_or(1.0) }
            }
            kind => self.scaling(kind, parameters)?,
        };
        if let Some(sizes) = parameters.list("mrope_section", Value::as_u64)? {
            let sizes = sizes.into_iter().map(|n| n as usize).collect();
            let interleaved = parameters.flag("mrope_interleaved")?.unwrap_or(false);
            spec.sections = Some(Sections { sizes, interleaved });
        }
        let mut score_factor = 1.0;
        if let (Scaling::Yarn(yarn), Some(_)) = (&spec.scaling, latent)
            && let Some(all_dim) = parameters.float("mscale_all_dim")?
        {
            score_factor = Yarn::mscale(yarn.factor, all_dim).powi(2);
        }
        Ok(LayerRope { name: name.to_owned(), layers, rope: rope(spec)?, score_factor })
    }

    /// The head dimension, which may depend on the layer type.
    fn head_dim(&self, layer_type: Option<&str>, layers: &[usize]) -> Result<usize, Error> {
        if let (Some(GLOBAL), Some(n)) = (layer_type, self.model.optional_number("global_head_dim")?) {
            return Ok(n as usize);
        }
        // Newer files override fields of single layers, by the layer's index.
        if let (Value::Object(special), Some(_)) = (self.model.object("per_layer_config").0, layer_type) {
            for (layer, fields) in special {
                let here = layer.parse().is_ok_and(|n: usize| layers.contains(&n));
                if here && let Some(n) = Fields(fields).optional_number("head_dim")? {
                    return Ok(n as usize);
                }
            }
        }
        if let Some(n) = self.model.optional_number("head_dim")? {
            return Ok(n as usize);
        }
        let (dim, heads) = (self.model.number("hidden_size")?, self.model.number("num_attention_heads")?);
        let head_dim = dim.checked_div(heads).filter(|n| n * heads == dim);
        head_dim.map(|n| n as usize).ok_or_else(|| Error::Dimension {
            name: "head count",
            value: heads,
            expected: format!("it must divide the embedding length {dim}"),
        })
    }

    /// The fraction of a head that is rotated.
    fn rotary_fraction(&self, parameters: Fields<'_>) -> Result<f64, Error> {
        let given = match parameters.float("partial_rotary_factor")? {
            Some(fraction) => Some(fraction),
            None => self.model.float("partial_rotary_factor")?.or(self.model.float("rotary_pct")?),
        };
        let fraction = given.unwrap_or(1.0);
        if fraction > 0.0 && fraction <= 1.0 {
            return Ok(fraction);
        }
        Err(Error::Config(format!("'partial_rotary_factor' is {fraction}, not a part of 1")))
    }

    /// The scaling of this `rope_type`, in newer and older spellings.
    fn scaling(&self, kind: &str, parameters: Fields<'_>) -> Result<Scaling, Error> {
        let context = || self.context.ok_or_else(|| Error::Config(missing("max_position_embeddings")));
        let stated = match self.model.float("original_max_position_embeddings")? {
            Some(original) => Some(original),
            None => parameters.float("original_max_position_embeddings")?,
        };
        let original = || stated.map_or_else(context, Ok);
        Ok(match kind {
            // M-RoPE differs in the sections only, not in the frequencies.
            "default" | "mrope" => Scaling::None,
            "linear" => Scaling::Linear { factor: parameters.require_rope_float("factor")? },
            "ntk" => Scaling::Ntk { factor: parameters.require_rope_float("factor")? },
            "dynamic" => match parameters.float("alpha")? {
                // Hunyuan: the type is called dynamic, but the base is constant.
                Some(alpha) => Scaling::Ntk { factor: alpha },
                None => Scaling::DynamicNtk {
                    factor: parameters.require_rope_float("factor")?,
                    original: context()?,
                },
            },
            "llama3" => Scaling::Llama3 {
                factor: parameters.require_rope_float("factor")?,
                low: parameters.require_rope_float("low_freq_factor")?,
                high: parameters.require_rope_float("high_freq_factor")?,
                original: original()?,
            },
            "yarn" => {
                let original = original()?;
                let factor = match parameters.float("factor")? {
                    Some(factor) => factor,
                    None => context()? / original,
                };
                let number = |name: &str| Ok::<_, Error>(parameters.float(name)?.filter(|&v| v != 0.0));
                let mscales = number("mscale")?.zip(number("mscale_all_dim")?);
                Scaling::Yarn(Yarn {
                    factor,
                    original,
                    beta_fast: number("beta_fast")?.unwrap_or(32.0),
                    beta_slow: number("beta_slow")?.unwrap_or(1.0),
                    truncate: parameters.flag("truncate")?.unwrap_or(true),
                    magnitude: match (parameters.float("attention_factor")?, mscales) {
                        (Some(given), _) => Magnitude::Given(given),
                        (None, Some((mscale, all_dim))) => Magnitude::Quotient { mscale, all_dim },
                        (None, None) => Magnitude::Rule,
                    },
                })
            }
            "longrope" | "su" => self.long_rope(parameters, original()?)?,
            other => return Err(Error::Unsupported(format!("rope scaling '{other}'"))),
        })
    }

    fn long_rope(&self, parameters: Fields<'_>, original: f64) -> Result<Scaling, Error> {
        let list = |name: &str| {
            let factors = parameters.list(name, Value::as_f64)?;
            factors.ok_or_else(|| Error::Config(format!("rope '{name}' is missing")))
        };
        let factor = match (parameters.float("factor")?, self.context) {
            (Some(factor), _) => factor,
            (None, Some(context)) => context / original,
            (None, None) => 1.0,
        };
        let rule = LongRope::attention_factor(factor, original);
        let both = parameters.float("attention_factor")?.unwrap_or(rule);
        let short = parameters.float("short_mscale")?.unwrap_or(both);
        let long = parameters.float("long_mscale")?.unwrap_or(both);
        Ok(Scaling::LongRope(LongRope {
            short: list("short_factor")?,
            long: list("long_factor")?,
            original,
            attention_factors: [short, long],
        }))
    }
}

fn missing(name: &str) -> String {
    format!("'{name}' is missing")
}

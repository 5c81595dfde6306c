use gyrus_kernels::{Magnitude, Pairing, Rope, RopeSpec, Scaling, Yarn};
use serde_json::Value;

use super::config::{Config, Raw};
use super::{ARCHS, unknown};
use crate::Error;

/// Reads the configuration of a model in Hugging Face's layout from its `config.json`.
pub(crate) fn read(config: &Value) -> Result<Config, Error> {
    let fields = Fields(config);
    let name = fields.text("model_type")?;
    if !ARCHS.iter().any(|a| a.hugging_face.contains(&name)) {
        return Err(unknown(name, ARCHS.iter().flat_map(|a| a.hugging_face.iter().copied())));
    }
    let activation = fields.get("hidden_act").and_then(Value::as_str).unwrap_or("silu");
    if activation != "silu" {
        return Err(Error::Unsupported(format!("activation '{activation}'")));
    }
    for quantization in ["quantization", "quantization_config"] {
        if fields.get(quantization).is_some() {
            return Err(Error::Unsupported(format!("'{quantization}' in config.json")));
        }
    }
    if fields.float("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        return Err(Error::Unsupported("'partial_rotary_factor' in config.json".to_owned()));
    }
    if fields.get("use_sliding_window") == Some(&Value::Bool(true)) {
        return Err(Error::Unsupported("a sliding window on some layers only".to_owned()));
    }
    // Mistral states a window and means it; Qwen states one and switches it off.
    let window = match fields.get("use_sliding_window") {
        None => fields.optional_number("sliding_window")?,
        Some(_) => None,
    };
    let heads = fields.number("num_attention_heads")?;
    let raw = Raw {
        architecture: name.to_owned(),
        dim: fields.number("hidden_size")?,
        layers: fields.number("num_hidden_layers")?,
        heads,
        kv_heads: fields.optional_number("num_key_value_heads")?.unwrap_or(heads),
        head_dim: fields.optional_number("head_dim")?,
        ffn_dim: fields.number("intermediate_size")?,
        context: fields.number("max_position_embeddings")?,
        norm_eps: fields.float("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        window: window.map(|w| u32::try_from(w).unwrap_or(u32::MAX)),
    };
    let context = raw.context;
    raw.check(|head_dim| {
        let (base, scaling) = rope(&fields, context)?;
        Ok(Rope::new(RopeSpec { scaling, ..RopeSpec::new(Pairing::Split, head_dim, base) })?)
    })
}

/// Base and scaling, from `rope_parameters` (new files) or `rope_theta` and `rope_scaling` (older ones).
fn rope(fields: &Fields<'_>, context: u64) -> Result<(f64, Scaling), Error> {
    let parameters = fields.get("rope_parameters").or_else(|| fields.get("rope_scaling"));
    let inner = Fields(parameters.unwrap_or(&Value::Null));
    let base = match inner.float("rope_theta")? {
        Some(base) => base,
        None => fields.float("rope_theta")?.unwrap_or(10000.0),
    };
    let kind = inner.get("rope_type").or_else(|| inner.get("type"));
    let kind = match kind {
        None => "default",
        Some(kind) => kind.as_str().ok_or_else(|| Error::Config("rope type is not a string".to_owned()))?,
    };
    let need =
        |name: &str| inner.float(name)?.ok_or_else(|| Error::Config(format!("rope '{name}' is missing")));
    let original =
        || Ok::<f64, Error>(inner.float("original_max_position_embeddings")?.unwrap_or(context as f64));
    let scaling = match kind {
        "default" => Scaling::None,
        "linear" => Scaling::Linear { factor: need("factor")? },
        "llama3" => Scaling::Llama3 {
            factor: need("factor")?,
            low: need("low_freq_factor")?,
            high: need("high_freq_factor")?,
            original: original()?,
        },
        "yarn" => {
            if inner.get("mscale").is_some() || inner.get("mscale_all_dim").is_some() {
                return Err(Error::Unsupported("YaRN with mscale".to_owned()));
            }
            let factor = need("factor")?;
            let given = inner.float("attention_factor")?;
            Scaling::Yarn(Yarn {
                factor,
                original: original()?,
                beta_fast: inner.float("beta_fast")?.unwrap_or(32.0),
                beta_slow: inner.float("beta_slow")?.unwrap_or(1.0),
                truncate: true,
                magnitude: given.map_or(Magnitude::Rule, Magnitude::Given),
            })
        }
        other => return Err(Error::Unsupported(format!("rope scaling '{other}'"))),
    };
    Ok((base, scaling))
}

/// Typed access to a JSON object; `null` counts as absent, as in Python.
struct Fields<'a>(&'a Value);

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.0.get(name).filter(|v| !v.is_null())
    }

    fn text(&self, name: &str) -> Result<&'a str, Error> {
        let value = self.get(name).ok_or_else(|| Error::Config(format!("'{name}' is missing")))?;
        value.as_str().ok_or_else(|| Error::Config(format!("'{name}' is not a string")))
    }

    fn optional_number(&self, name: &str) -> Result<Option<u64>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_u64();
        number.map(Some).ok_or_else(|| Error::Config(format!("'{name}' is not an unsigned integer")))
    }

    fn number(&self, name: &str) -> Result<u64, Error> {
        self.optional_number(name)?.ok_or_else(|| Error::Config(format!("'{name}' is missing")))
    }

    fn float(&self, name: &str) -> Result<Option<f64>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| Error::Config(format!("'{name}' is not a number")))
    }
}

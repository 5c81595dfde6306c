use serde_json::Value;

use super::config::{Config, RawConfig};
use super::fields::Fields;
use super::{ARCHS, rope_config, unsupported_architecture};
use crate::Error;

/// Reads the configuration of a model in Hugging Face's layout from its `config.json`.
pub(crate) fn read(config: &Value) -> Result<Config, Error> {
    let fields = Fields(config);
    let name = fields.text("model_type")?;
    if !ARCHS.iter().any(|a| a.hugging_face.contains(&name)) {
        return Err(unsupported_architecture(
            name,
            ARCHS.iter().flat_map(|a| a.hugging_face.iter().copied()),
        ));
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
    if fields.get("use_sliding_window") == Some(&Value::Bool(true)) {
        return Err(Error::Unsupported("a sliding window on some layers only".to_owned()));
    }
    // Mistral has `sliding_window` alone. Qwen also has `use_sliding_window: false`, which disables the window.
    let window = match fields.get("use_sliding_window") {
        None => fields.optional_number("sliding_window")?,
        Some(_) => None,
    };
    let heads = fields.number("num_attention_heads")?;
    let raw = RawConfig {
        architecture: name.to_owned(),
        dim: fields.number("hidden_size")?,
        layers: fields.number("num_hidden_layers")?,
        heads,
        kv_heads: fields.optional_number("num_key_value_heads")?.unwrap_or(heads),
        head_dim: fields.optional_number("head_dim")?,
        ffn_dim: fields.number("intermediate_size")?,
        context: fields.number("max_position_embeddings")?,
        norm_eps: fields.require_float("rms_norm_eps")? as f32,
        window: window.map(|w| u32::try_from(w).unwrap_or(u32::MAX)),
    };
    raw.validate(|| rope_config::read(config, None)?.single())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Hyperparameters have no defaults.
    #[test]
    fn a_missing_hyperparameter_is_an_error_with_its_name() {
        let whole = json!({
            "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 128, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        });
        assert_eq!(read(&whole).unwrap().norm_eps, 1e-5);
        let needed = [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "rms_norm_eps",
        ];
        for name in needed {
            let mut without = whole.clone();
            without.as_object_mut().unwrap().remove(name);
            let error = read(&without).unwrap_err().to_string();
            assert!(error.ends_with(&format!("'{name}' is missing")), "{error}");
        }
    }
}

//! Fields that published `config.json` files leave out, since the configuration class of `transformers` has them as
//! defaults.
//!
//! Files are written with the fields that differ from the class's defaults, by versions of `transformers` that did so. A
//! type is listed here if a published model needs it; for others a missing field is an error.

use std::borrow::Cow;

use serde_json::{Value, json};

/// The fields of `Gemma3TextConfig`. The configuration of Gemma 3 4B leaves out the numbers of heads, among others.
fn gemma3() -> Value {
    json!({
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    })
}

/// A configuration with the fields that it leaves out. A field that is null is not left out.
pub(super) fn complete(config: &Value) -> Cow<'_, Value> {
    let nested = config.get("text_config").filter(|text| text.is_object());
    let name = nested.and_then(|text| text.get("model_type")).or(config.get("model_type"));
    let defaults = match name.and_then(Value::as_str) {
        Some("gemma3" | "gemma3_text") => gemma3(),
        _ => return Cow::Borrowed(config),
    };
    let mut config = config.clone();
    let text = match nested {
        Some(_) => config.get_mut("text_config"),
        None => Some(&mut config),
    };
    if let (Some(Value::Object(fields)), Value::Object(defaults)) = (text, defaults) {
        for (name, value) in defaults {
            fields.entry(name).or_insert(value);
        }
    }
    Cow::Owned(config)
}

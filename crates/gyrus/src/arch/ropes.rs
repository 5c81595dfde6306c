use gyrus_formats::Checkpoint;
use gyrus_kernels::{Pairing, Rope, RopeSpec};
use serde_json::Value;

use super::{rope_config, rope_gguf};
use crate::Error;

/// The rotary embeddings of a model, read from its file. The architecture need not be supported.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRopes {
    /// The architecture's name in the file.
    pub architecture: String,
    /// The maximum context in tokens, if the file contains it.
    pub context: Option<u64>,
    /// One for each kind of layer; most models have one kind.
    pub kinds: Vec<LayerRope>,
}

/// The rotary embedding of one kind of layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerRope {
    /// The layer type: `all`, or for example `full_attention` and `sliding_attention`.
    pub name: String,
    /// Layer indices; empty if the file does not contain them.
    pub layers: Vec<usize>,
    /// The rotary embedding.
    pub rope: Rope,
    /// A factor on these layers' attention scores that comes with the scaling but is not applied to cosine and sine:
    /// DeepSeek's `mscale_all_dim`. 1 for other models.
    pub score_factor: f64,
}

/// The layer type of layers with full attention.
pub(super) const GLOBAL: &str = "full_attention";
/// The layer type of layers without attention.
pub(super) const RECURRENT: &str = "linear_attention";
/// The layer type of layers with a sliding window.
pub(super) const LOCAL: &str = "sliding_attention";

/// More layers than any model has. It bounds the list of layers, whose length comes from the file.
const MAX_LAYERS: u64 = 1 << 12;

impl ModelRopes {
    /// Reads a model's rotary embeddings. `pairing` overrides the architecture's pairing; it is required if the
    /// architecture is unknown.
    pub fn read(model: &Checkpoint, pairing: Option<Pairing>) -> Result<ModelRopes, Error> {
        match (model.gguf(), model.config()) {
            (Some(metadata), _) => rope_gguf::read(model, metadata, pairing),
            (None, Some(config)) => rope_config::read(config, pairing),
            (None, None) => {
                let path = model.path().display();
                Err(Error::Unsupported(format!("{path}: a model without a config.json beside it")))
            }
        }
    }

    /// Reads them from the text of a `config.json`.
    pub fn from_config(text: &str, pairing: Option<Pairing>) -> Result<ModelRopes, Error> {
        let config: Value = serde_json::from_str(text).map_err(|e| Error::Config(e.to_string()))?;
        rope_config::read(&config, pairing)
    }
}

impl LayerRope {
    /// One rotary embedding for all layers.
    pub(super) fn all(rope: Rope, layers: Option<u64>) -> Result<LayerRope, Error> {
        let layers = (0..layer_count(layers)?).collect();
        Ok(LayerRope { name: "all".to_owned(), layers, rope, score_factor: 1.0 })
    }
}

/// The rotary embedding of a model's file. It must rotate at least one pair.
pub(super) fn rope(spec: RopeSpec) -> Result<Rope, Error> {
    if spec.rope_dim == 0 {
        let expected = "it must be at least 2".to_owned();
        return Err(Error::Dimension { name: "number of rotated elements", value: 0, expected });
    }
    Ok(Rope::new(spec)?)
}

/// The number of layers, checked against the limit; 0 if the file does not contain it.
pub(super) fn layer_count(layers: Option<u64>) -> Result<usize, Error> {
    match layers {
        None => Ok(0),
        Some(n @ 1..=MAX_LAYERS) => Ok(n as usize),
        Some(value) => {
            let expected = format!("it must be from 1 to {MAX_LAYERS}");
            Err(Error::Dimension { name: "layer count", value, expected })
        }
    }
}

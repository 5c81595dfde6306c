use gyrus_formats::Checkpoint;
use gyrus_kernels::{Pairing, Rope, RopeSpec};
use serde_json::Value;

use super::{rope_config, rope_gguf};
use crate::Error;

/// The rotary embeddings of a model, as its file describes them. It needs no plan for the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRopes {
    /// The architecture's name in the file.
    pub architecture: String,
    /// The longest context the model was made for, if the file says.
    pub context: Option<u64>,
    /// One for each kind of layer; most models have one kind.
    pub kinds: Vec<LayerRope>,
}

/// The rotary embedding of one kind of layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerRope {
    /// What files call these layers: `all`, or for instance `full_attention` and `sliding_attention`.
    pub name: String,
    /// Which layers; empty if the file does not say.
    pub layers: Vec<usize>,
    /// The rope.
    pub rope: Rope,
    /// A factor on these layers' attention scores that belongs to the rope's scaling but is not in it:
    /// DeepSeek's `mscale_all_dim`. 1 for others.
    pub score_factor: f64,
}

/// Layers that see everything, in files.
pub(super) const GLOBAL: &str = "full_attention";
/// Layers that see a window, in files.
pub(super) const LOCAL: &str = "sliding_attention";

/// More layers than any model has; a list of them is made.
const MAX_LAYERS: u64 = 1 << 12;

impl ModelRopes {
    /// Reads a model's rotary embeddings. `pairing` is for architectures whose pairing is not known here,
    /// and overrides it for others.
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

    /// The rope of all layers, for plans that know no other.
    pub(super) fn single(self) -> Result<Rope, Error> {
        let kinds = self.kinds.len();
        match <[LayerRope; 1]>::try_from(self.kinds) {
            Ok([LayerRope { rope, score_factor: 1.0, .. }]) => Ok(rope),
            Ok([LayerRope { score_factor, .. }]) => {
                Err(Error::Unsupported(format!("a rope that scales attention scores by {score_factor}")))
            }
            Err(_) => Err(Error::Unsupported(format!("a model with {kinds} kinds of rotary embedding"))),
        }
    }
}

impl LayerRope {
    /// The rope of all layers.
    pub(super) fn all(rope: Rope, layers: Option<u64>) -> Result<LayerRope, Error> {
        let layers = (0..layer_count(layers)?).collect();
        Ok(LayerRope { name: "all".to_owned(), layers, rope, score_factor: 1.0 })
    }
}

/// A rope of a model's file, which turns something.
pub(super) fn rope(spec: RopeSpec) -> Result<Rope, Error> {
    if spec.rope_dim == 0 {
        let expected = "it must be at least 2".to_owned();
        return Err(Error::Dimension { name: "number of rotated elements", value: 0, expected });
    }
    Ok(Rope::new(spec)?)
}

/// The number of layers, within reason; none if the file does not say.
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

use gyrus_formats::Checkpoint;
use gyrus_formats::gguf::Metadata;

use super::config::{Config, RawConfig};
use super::{ARCHS, rope_gguf, unsupported_architecture};
use crate::Error;

/// Reads the configuration of a GGUF model.
pub(crate) fn read(model: &Checkpoint, metadata: Metadata<'_>) -> Result<Config, Error> {
    let name: &str = metadata.require("general.architecture")?;
    let arch = ARCHS
        .iter()
        .find(|a| a.gguf == name)
        .ok_or_else(|| unsupported_architecture(name, ARCHS.iter().map(|a| a.gguf)))?;
    let key = |rest: &str| format!("{name}.{rest}");
    if let Some(experts @ 1..) = metadata.get::<u64>(&key("expert_count"))? {
        return Err(Error::Unsupported(format!("a mixture of {experts} experts")));
    }
    let heads = metadata.require(&key("attention.head_count"))?;
    let head_dim = metadata.get::<u64>(&key("attention.key_length"))?;
    let value_dim = metadata.get::<u64>(&key("attention.value_length"))?;
    if let (Some(k), Some(v)) = (head_dim, value_dim)
        && k != v
    {
        return Err(Error::Unsupported(format!("a value size {v} other than the key size {k}")));
    }
    let window = metadata.get::<u32>(&key("attention.sliding_window"))?;
    let raw = RawConfig {
        architecture: name.to_owned(),
        dim: metadata.require(&key("embedding_length"))?,
        layers: metadata.require(&key("block_count"))?,
        heads,
        kv_heads: metadata.get(&key("attention.head_count_kv"))?.unwrap_or(heads),
        head_dim,
        ffn_dim: metadata.require(&key("feed_forward_length"))?,
        context: metadata.require(&key("context_length"))?,
        norm_eps: metadata.require(&key("attention.layer_norm_rms_epsilon"))?,
        window,
    };
    raw.validate(|| rope_gguf::read(model, metadata, Some(arch.gguf_pairing))?.single())
}

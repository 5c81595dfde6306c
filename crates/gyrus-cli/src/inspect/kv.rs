//! How much memory the attention cache of a model takes.

use gyrus_formats::Checkpoint;
use gyrus_formats::gguf::Metadata;
use serde::Serialize;
use serde_json::Value;

/// The KV cache at a context length, in half precision, with every layer of attention holding every position.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct KvCache {
    pub(crate) context: u64,
    /// Layers of attention. Those of a recurrent state have no part of it.
    pub(crate) layers: u64,
    /// Key and value elements of one position over all layers.
    pub(crate) elements_per_token: u64,
    pub(crate) bytes: u64,
}

/// What the cache's size follows from.
struct Dimensions {
    layers: u64,
    elements_per_token: u64,
    max_context: Option<u64>,
}

const HALF_BYTES: u64 = 2;

impl KvCache {
    /// `None` if the file does not say enough, or says what cannot be.
    pub(crate) fn of(model: &Checkpoint, context: Option<u64>) -> Option<KvCache> {
        let d = match model.gguf() {
            Some(metadata) => from_gguf(metadata)?,
            None => from_config(model.config()?)?,
        };
        let context = context.or(d.max_context)?;
        let bytes = d.elements_per_token.checked_mul(context)?.checked_mul(HALF_BYTES)?;
        Some(KvCache { context, layers: d.layers, elements_per_token: d.elements_per_token, bytes })
    }
}

fn from_gguf(metadata: Metadata<'_>) -> Option<Dimensions> {
    let architecture = metadata.require::<&str>("general.architecture").ok()?;
    let key = |name: &str| format!("{architecture}.{name}");
    let number = |name: &str| metadata.get::<u64>(&key(name)).ok().flatten();
    // In hybrids one layer of so many attends.
    let layers = number("block_count")?.checked_div(number("full_attention_interval").unwrap_or(1))?;
    let heads = number("attention.head_count");
    let head_dim = || number("embedding_length")?.checked_div(heads?);
    let key_dim = number("attention.key_length").or_else(head_dim)?;
    let value_dim = number("attention.value_length").or_else(head_dim)?;
    // The number of KV heads may differ from layer to layer.
    let kv_heads = match metadata.get::<Vec<u64>>(&key("attention.head_count_kv")) {
        Ok(Some(each)) => each.iter().try_fold(0u64, |sum, &n| sum.checked_add(n))?,
        _ => number("attention.head_count_kv").or(heads)?.checked_mul(layers)?,
    };
    let elements_per_token = kv_heads.checked_mul(key_dim.checked_add(value_dim)?)?;
    Some(Dimensions { layers, elements_per_token, max_context: number("context_length") })
}

fn from_config(config: &Value) -> Option<Dimensions> {
    // Models that also see or hear keep the language model's numbers one level down.
    let config = config.get("text_config").filter(|c| c.is_object()).unwrap_or(config);
    let number = |name: &str| config.get(name)?.as_u64();
    let layers = number("num_hidden_layers")?;
    let kinds = config.get("layer_types").and_then(Value::as_array);
    let recurrent = kinds.map_or(0, |kinds| kinds.iter().filter(|kind| *kind == "linear_attention").count());
    let layers = layers.checked_sub(recurrent as u64)?;
    let heads = number("num_attention_heads")?;
    let kv_heads = number("num_key_value_heads").unwrap_or(heads);
    let head_dim = number("head_dim").or_else(|| number("hidden_size")?.checked_div(heads))?;
    let elements_per_token = layers.checked_mul(kv_heads)?.checked_mul(head_dim)?.checked_mul(2)?;
    Some(Dimensions { layers, elements_per_token, max_context: number("max_position_embeddings") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gyrus_formats::Bytes;
    use gyrus_formats::gguf::Writer;

    fn gguf(change: impl FnOnce(&mut Writer<'_>)) -> Checkpoint {
        let mut writer = Writer::new();
        writer.string("general.architecture", "llama").u32("llama.context_length", 4096);
        change(&mut writer);
        let mut file = Vec::new();
        writer.write_to(&mut file).unwrap();
        Checkpoint::from_gguf("test", Bytes::Owned(file)).unwrap()
    }

    /// One layer of four attends; a prediction layer beside them is rounded off.
    #[test]
    fn hybrids_cache_only_layers_of_attention() {
        let model = gguf(|w| {
            w.u32("llama.block_count", 33).u32("llama.full_attention_interval", 4);
            w.u32("llama.attention.head_count", 16).u32("llama.attention.head_count_kv", 4);
            w.u32("llama.attention.key_length", 256).u32("llama.attention.value_length", 256);
        });
        let cache = KvCache::of(&model, Some(8192)).unwrap();
        assert_eq!((cache.layers, cache.bytes), (8, 8192 * 8 * 2 * 4 * 256 * 2));
        let path = gyrus_testkit::data("tiny/qwen35").unwrap();
        let cache = KvCache::of(&Checkpoint::open(&path).unwrap(), Some(32)).unwrap();
        assert_eq!((cache.layers, cache.bytes), (1, 32 * 2 * 2 * 16 * 2));
    }

    #[test]
    fn known_sizes() {
        // Llama 3.1 8B: 32 layers, 8 KV heads of 128, 512 MiB at 4096 positions.
        let model = gguf(|w| {
            w.u32("llama.block_count", 32).u32("llama.embedding_length", 4096);
            w.u32("llama.attention.head_count", 32).u32("llama.attention.head_count_kv", 8);
        });
        assert_eq!(KvCache::of(&model, None).unwrap().bytes, 512 << 20);
        assert_eq!(KvCache::of(&model, Some(8192)).unwrap().bytes, 1024 << 20);
    }

    #[test]
    fn heads_may_differ_by_layer() {
        let model = gguf(|w| {
            w.u32("llama.block_count", 3).u32("llama.attention.key_length", 64);
            w.u32("llama.attention.value_length", 32).i32s("llama.attention.head_count_kv", &[4, 0, 2]);
        });
        assert_eq!(KvCache::of(&model, Some(10)).unwrap().elements_per_token, 6 * 96);
    }

    #[test]
    fn impossible_numbers_give_no_estimate() {
        let zero_heads = gguf(|w| {
            w.u32("llama.block_count", 3).u32("llama.embedding_length", 64);
            w.u32("llama.attention.head_count", 0);
        });
        assert_eq!(KvCache::of(&zero_heads, None), None);
        let overflow = gguf(|w| {
            w.u64("llama.block_count", u64::MAX).u64("llama.attention.head_count", u64::MAX);
            w.u64("llama.attention.key_length", 2).u64("llama.attention.value_length", 2);
        });
        assert_eq!(KvCache::of(&overflow, None), None);
        assert_eq!(KvCache::of(&gguf(|_| {}), None), None);
    }
}

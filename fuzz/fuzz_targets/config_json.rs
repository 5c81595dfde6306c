//! Any bytes as a config.json beside the tensors of a tiny model: refused with a reason, or a plan for these tensors.
#![no_main]

mod meter;

use gyrus::{Config, Precision};
use gyrus_formats::{Bytes, Checkpoint};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static METER: meter::Meter = meter::Meter;

/// A value of serde_json takes 32 bytes and at least two bytes of text. A list grows by doubling, and while it is copied
/// both copies exist. The configuration is completed in a copy.
const BYTES_PER_BYTE: usize = 96;
/// The vectors of 4096 layers, the most that a configuration may have, and the plan of a tiny model.
const LAYERS: usize = 4 << 20;

macro_rules! tensors {
    ($($kind:literal $name:literal)*) => {
        &[$(($kind, include_bytes!(concat!("../../tests/data/tiny/", $name, "/model.safetensors")))),*]
    };
}

/// The tensors of the tiny models, by what a configuration says of its type.
const TENSORS: &[(&str, &[u8])] = tensors! {
    "\"llama\"" "llama"
    "\"mistral\"" "mistral"
    "\"qwen2\"" "qwen2"
    "\"qwen3\"" "qwen3"
    "\"gemma\"" "gemma"
    "\"gemma2\"" "gemma2"
    "\"gemma3_text\"" "gemma3"
    "\"top_k_experts\"" "gemma4moe"
    "\"gemma4_text\"" "gemma4"
    "\"qwen3_moe\"" "qwen3moe"
    "\"qwen3_5_text\"" "qwen35"
    "\"qwen3_5_moe_text\"" "qwen35moe"
    "\"qwen3_next\"" "qwen3next"
    "\"mixtral\"" "mixtral"
    "\"gpt_oss\"" "gpt_oss"
    "\"phi3\"" "phi3"
    "\"smollm3\"" "smollm3"
    "\"granite\"" "granite"
    "\"olmo2\"" "olmo2"
    "\"ernie4_5\"" "ernie4_5"
};

fuzz_target!(|data: &[u8]| {
    let says = |kind: &str| data.windows(kind.len()).any(|bytes| bytes == kind.as_bytes());
    let tensors = TENSORS.iter().find(|(kind, _)| says(kind)).unwrap_or(&TENSORS[0]).1;
    let precision = if data.len() % 2 == 0 { Precision::Exact } else { Precision::Fast };
    let model = |bytes| Checkpoint::from_safetensors("model.safetensors", Bytes::Static(tensors), bytes);
    meter::within(BYTES_PER_BYTE * data.len() + LAYERS, || {
        let read = model(data).map_err(gyrus::Error::from).and_then(|model| Config::read(&model, precision));
        match read {
            Ok((config, plan)) => {
                assert_eq!(plan.layers.len(), config.layers.len());
                assert!(config.layers.iter().all(|layer| {
                    let Some(attention) = layer.attention() else { return true };
                    attention.rope.is_none_or(|rope| rope < config.ropes.len())
                        && attention.kv_owner.is_none_or(|owner| owner < config.layers.len())
                        && attention.heads % attention.kv_heads == 0
                }));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
});

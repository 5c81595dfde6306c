//! A GGUF file of one layer, as llama.cpp's converter names its parts.
#![allow(dead_code, reason = "tests use some of it")]

use gyrus_formats::gguf::Writer;
use gyrus_tensor::{DType, Shape};
use gyrus_testkit::Rng;

const NUMBERS: [(&str, u32); 10] = [
    ("embedding_length", 8),
    ("block_count", 1),
    ("attention.head_count", 2),
    ("attention.head_count_kv", 1),
    ("feed_forward_length", 20),
    ("context_length", 64),
    ("expert_count", 3),
    ("expert_used_count", 2),
    ("expert_feed_forward_length", 12),
    ("rope.dimension_count", 4),
];

/// Its tensors beside those of the feed-forward.
pub(crate) const TENSORS: [(&str, &[usize]); 8] = [
    ("token_embd.weight", &[16, 8]),
    ("blk.0.attn_norm.weight", &[8]),
    ("blk.0.attn_q.weight", &[8, 8]),
    ("blk.0.attn_k.weight", &[4, 8]),
    ("blk.0.attn_v.weight", &[4, 8]),
    ("blk.0.attn_output.weight", &[8, 8]),
    ("blk.0.ffn_norm.weight", &[8]),
    ("output_norm.weight", &[8]),
];

const EXPERTS: [(&str, &[usize]); 4] = [
    ("blk.0.ffn_gate_inp.weight", &[3, 8]),
    ("blk.0.ffn_gate_exps.weight", &[3, 12, 8]),
    ("blk.0.ffn_up_exps.weight", &[3, 12, 8]),
    ("blk.0.ffn_down_exps.weight", &[3, 8, 12]),
];

/// The file with experts, with other or further numbers, without a tensor, and with another one.
pub(crate) fn with_experts(numbers: &[(&str, u32)], skip: &str, add: Option<(&str, &[usize])>) -> Vec<u8> {
    let mut rng = Rng::new(41);
    let random: Vec<f32> = (0..1024).map(|_| rng.gaussian() as f32).collect();
    let bytes: Vec<u8> = random.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut writer = Writer::new();
    writer.string("general.architecture", "llama").f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let is_changed = |key: &str| numbers.iter().any(|(changed, _)| *changed == key);
    for (key, number) in NUMBERS.iter().filter(|(key, _)| !is_changed(key)).chain(numbers) {
        writer.u32(&format!("llama.{key}"), *number);
    }
    for (name, dims) in TENSORS.into_iter().chain(EXPERTS).filter(|(name, _)| *name != skip).chain(add) {
        let shape = Shape::new(dims).unwrap();
        writer.tensor(name, DType::F32, shape, &bytes[..4 * shape.elems()]).unwrap();
    }
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    file
}

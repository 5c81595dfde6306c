//! A Llama of a few kilobytes with random weights and any rotary embedding.

use gyrus_formats::gguf::Writer;
use gyrus_tensor::{DType, Shape};
use gyrus_testkit::Rng;

/// The vocabulary size.
pub(crate) const VOCAB: usize = 64;
/// The maximum context.
const CONTEXT: u32 = 96;
const DIM: usize = 32;
const LAYERS: usize = 2;

/// A GGUF file with two layers, two query heads and one KV head. `keys` writes more metadata of its rotary embedding,
/// `factors` are the tensors of its frequency factors.
pub(crate) fn file(head_dim: usize, keys: impl Fn(&mut Writer<'_>), factors: &[(&str, Vec<f32>)]) -> Vec<u8> {
    let parts: [(&str, &[usize]); 9] = [
        ("attn_norm", &[DIM]),
        ("attn_q", &[2 * head_dim, DIM]),
        ("attn_k", &[head_dim, DIM]),
        ("attn_v", &[head_dim, DIM]),
        ("attn_output", &[DIM, 2 * head_dim]),
        ("ffn_norm", &[DIM]),
        ("ffn_gate", &[48, DIM]),
        ("ffn_up", &[48, DIM]),
        ("ffn_down", &[DIM, 48]),
    ];
    let mut shapes = vec![("token_embd.weight".to_owned(), vec![VOCAB, DIM])];
    for layer in 0..LAYERS {
        shapes.extend(parts.map(|(name, dims)| (format!("blk.{layer}.{name}.weight"), dims.to_vec())));
    }
    shapes.push(("output_norm.weight".to_owned(), vec![DIM]));

    let mut rng = Rng::new(35);
    let mut tensors = Vec::new();
    for (name, dims) in shapes {
        let mut value = || if name.contains("norm") { 1.0 } else { 0.4 * rng.gaussian() as f32 };
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| value()).collect();
        tensors.push((name, dims, values));
    }
    tensors.extend(factors.iter().map(|(name, f)| ((*name).to_owned(), vec![f.len()], f.clone())));
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(.., values)| values.iter().flat_map(|v| v.to_le_bytes()).collect()).collect();

    let mut writer = Writer::new();
    writer.string("general.architecture", "llama").f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    writer.string("tokenizer.ggml.model", "no_vocab").u32("llama.vocab_size", VOCAB as u32);
    for (key, value) in [
        ("embedding_length", DIM as u32),
        ("block_count", LAYERS as u32),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
        ("feed_forward_length", 48),
        ("context_length", CONTEXT),
        ("attention.key_length", head_dim as u32),
        ("attention.value_length", head_dim as u32),
        ("rope.dimension_count", head_dim as u32),
    ] {
        writer.u32(&format!("llama.{key}"), value);
    }
    keys(&mut writer);
    for ((name, dims, _), bytes) in tensors.iter().zip(&bytes) {
        writer.tensor(name, DType::F32, Shape::new(dims).unwrap(), bytes).unwrap();
    }
    let mut file = Vec::new();
    writer.write_to(&mut file).unwrap();
    file
}

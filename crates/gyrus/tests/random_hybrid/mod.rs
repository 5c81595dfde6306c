//! A Qwen 3.5 with random weights and heads of published size, written to a GGUF file in memory.

use gyrus::DType;
use gyrus_formats::Checkpoint;
use gyrus_tensor::quantize;
use gyrus_testkit::Rng;

use crate::written;

pub(crate) const VOCAB: usize = 256;
const DIM: usize = 256;
const FFN: usize = 512;
const KEY_HEADS: usize = 2;
const VALUE_HEADS: usize = 4;
const HEAD: usize = 128;

/// A model of four layers. One of `interval` has attention, the others Gated DeltaNet.
pub(crate) fn checkpoint(interval: u32) -> Checkpoint {
    let mut rng = Rng::new(9);
    let mut tensors: Vec<written::Tensor> = Vec::new();
    let mut add = |name: String, shape: &[usize], (mean, spread): (f64, f64)| {
        let elems: usize = shape.iter().product();
        let values: Vec<f32> = (0..elems).map(|_| (mean + spread * rng.gaussian()) as f32).collect();
        let dtype = if shape.len() == 2 && !name.contains("conv1d") { DType::F16 } else { DType::F32 };
        tensors.push((name, dtype, shape.to_vec(), quantize(dtype, &values).unwrap()));
    };
    let (norm, matrix) = ((1.0, 0.3), |cols: usize| (0.0, 1.1 / (cols as f64).sqrt()));
    add("token_embd.weight".to_owned(), &[VOCAB, DIM], (0.0, 0.3));
    add("output.weight".to_owned(), &[VOCAB, DIM], matrix(DIM));
    add("output_norm.weight".to_owned(), &[DIM], norm);
    let (values, channels) = (VALUE_HEADS * HEAD, (2 * KEY_HEADS + VALUE_HEADS) * HEAD);
    for layer in 0..4 {
        let mut part = |name: &str, shape: &[usize], like| add(format!("blk.{layer}.{name}"), shape, like);
        part("attn_norm.weight", &[DIM], norm);
        part("post_attention_norm.weight", &[DIM], norm);
        if (layer + 1) % interval == 0 {
            part("attn_q_norm.weight", &[64], norm);
            part("attn_k_norm.weight", &[64], norm);
            part("attn_q.weight", &[512, DIM], matrix(DIM));
            part("attn_k.weight", &[128, DIM], matrix(DIM));
            part("attn_v.weight", &[128, DIM], matrix(DIM));
            part("attn_output.weight", &[DIM, 256], matrix(256));
        } else {
            part("attn_qkv.weight", &[channels, DIM], matrix(DIM));
            part("attn_gate.weight", &[values, DIM], matrix(DIM));
            part("ssm_beta.weight", &[VALUE_HEADS, DIM], matrix(DIM));
            part("ssm_alpha.weight", &[VALUE_HEADS, DIM], matrix(DIM));
            part("ssm_conv1d.weight", &[channels, 4], (0.0, 1.0));
            part("ssm_a", &[VALUE_HEADS], (-1.0, 0.2));
            part("ssm_dt.bias", &[VALUE_HEADS], (0.0, 0.3));
            part("ssm_norm.weight", &[HEAD], norm);
            part("ssm_out.weight", &[DIM, values], matrix(values));
        }
        part("ffn_gate.weight", &[FFN, DIM], matrix(DIM));
        part("ffn_up.weight", &[FFN, DIM], matrix(DIM));
        part("ffn_down.weight", &[DIM, FFN], matrix(FFN));
    }
    let numbers = [
        ("embedding_length", DIM as u32),
        ("block_count", 4),
        ("context_length", 512),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 64),
        ("attention.value_length", 64),
        ("rope.dimension_count", 16),
        ("feed_forward_length", FFN as u32),
        ("full_attention_interval", interval),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", HEAD as u32),
        ("ssm.group_count", KEY_HEADS as u32),
        ("ssm.time_step_rank", VALUE_HEADS as u32),
        ("ssm.inner_size", values as u32),
    ];
    written::checkpoint("qwen35", 1e-6, &numbers, &tensors)
}

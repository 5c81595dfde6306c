//! The tensors of a synthetic model.

use anyhow::{Context, Result, ensure};
use gyrus_tensor::{DType, Shape};

use super::shapes::Dims;
use crate::text;

/// Size limit of a synthetic model, above what any machine that could run it has.
const MAX_BYTES: usize = 1 << 37;
const MAX_LAYERS: usize = 4096;

/// A tensor to be made.
pub(super) type Wanted = (String, DType, Vec<usize>);

/// All tensors of a model.
pub(super) fn tensors(d: Dims, dtype: DType) -> Result<Vec<Wanted>> {
    ensure!(d.layers <= MAX_LAYERS, "{} layers, at most {MAX_LAYERS} are possible", d.layers);
    let (q, kv) = (d.heads * d.head_dim, d.kv_heads * d.head_dim);
    let mut tensors: Vec<Wanted> =
        vec![("token_embd.weight".to_owned(), d.embedding_type(dtype), vec![d.vocab, d.dim])];
    for layer in 0..d.layers {
        let is_gpt_oss = d.architecture == "gpt-oss";
        let mut biases: Vec<(&str, Vec<usize>)> = Vec::new();
        if d.architecture == "qwen2" || is_gpt_oss {
            biases.extend([("attn_q", vec![q]), ("attn_k", vec![kv]), ("attn_v", vec![kv])]);
        }
        if let Some([count, _, width]) = d.experts.filter(|_| is_gpt_oss) {
            biases.extend([("attn_output", vec![d.dim]), ("ffn_gate_inp", vec![count])]);
            biases.extend([("ffn_gate_exps", vec![count, width]), ("ffn_up_exps", vec![count, width])]);
            biases.push(("ffn_down_exps", vec![count, d.dim]));
        }
        if let Some([_, values, _]) = d.delta.filter(|_| d.is_recurrent(layer)) {
            biases.push(("ssm_dt", vec![values]));
            tensors.push((format!("blk.{layer}.ssm_a"), DType::F32, vec![values]));
        }
        for (name, shape) in biases {
            tensors.push((format!("blk.{layer}.{name}.bias"), DType::F32, shape));
        }
        let mut add = |name: &str, dtype, dims: &[usize]| {
            tensors.push((format!("blk.{layer}.{name}.weight"), dtype, dims.to_vec()));
        };
        // Published files of gpt-oss have experts in MXFP4 and other matrices in Q8_0.
        let (dtype, of_experts) = if is_gpt_oss { (DType::Q8_0, dtype) } else { (dtype, dtype) };
        add("attn_norm", DType::F32, &[d.dim]);
        if let Some([keys, values, size]) = d.delta.filter(|_| d.is_recurrent(layer)) {
            let channels = (2 * keys + values) * size;
            add("attn_qkv", dtype, &[channels, d.dim]);
            add("attn_gate", dtype, &[values * size, d.dim]);
            add("ssm_beta", dtype, &[values, d.dim]);
            add("ssm_alpha", dtype, &[values, d.dim]);
            add("ssm_conv1d", DType::F32, &[channels, 4]);
            add("ssm_norm", DType::F32, &[size]);
            add("ssm_out", dtype, &[d.dim, values * size]);
        } else {
            // Hybrids have an output gate beside the queries.
            add("attn_q", dtype, &[if d.delta.is_some() { 2 * q } else { q }, d.dim]);
            add("attn_k", dtype, &[kv, d.dim]);
            add("attn_v", dtype, &[kv, d.dim]);
            add("attn_output", dtype, &[d.dim, q]);
        }
        if d.architecture == "gemma3" {
            add("post_attention_norm", DType::F32, &[d.dim]);
            add("post_ffw_norm", DType::F32, &[d.dim]);
        }
        let normed = ["qwen3", "gemma3", "qwen3moe", "qwen35", "qwen35moe"].contains(&d.architecture);
        if normed && !d.is_recurrent(layer) {
            add("attn_q_norm", DType::F32, &[d.head_dim]);
            add("attn_k_norm", DType::F32, &[d.head_dim]);
        }
        if is_gpt_oss {
            add("attn_sinks", DType::F32, &[d.heads]);
        }
        let has_post_norm = is_gpt_oss || d.delta.is_some();
        add(if has_post_norm { "post_attention_norm" } else { "ffn_norm" }, DType::F32, &[d.dim]);
        if let Some([count, _, width]) = d.experts {
            add("ffn_gate_inp", DType::F32, &[count, d.dim]);
            add("ffn_gate_exps", of_experts, &[count, width, d.dim]);
            add("ffn_up_exps", of_experts, &[count, width, d.dim]);
            add("ffn_down_exps", of_experts, &[count, d.dim, width]);
            if d.delta.is_some() {
                add("ffn_gate_inp_shexp", DType::F32, &[d.dim]);
                add("ffn_gate_shexp", dtype, &[width, d.dim]);
                add("ffn_up_shexp", dtype, &[width, d.dim]);
                add("ffn_down_shexp", dtype, &[d.dim, width]);
            }
            continue;
        }
        add("ffn_gate", dtype, &[d.ffn, d.dim]);
        add("ffn_up", dtype, &[d.ffn, d.dim]);
        add("ffn_down", dtype, &[d.dim, d.ffn]);
    }
    tensors.push(("output_norm.weight".to_owned(), DType::F32, vec![d.dim]));
    if !d.tied {
        tensors.push(("output.weight".to_owned(), d.embedding_type(dtype), vec![d.vocab, d.dim]));
    }
    Ok(tensors)
}

/// The total size of the tensors, checked against the limit.
pub(super) fn weight_bytes(tensors: &[Wanted]) -> Result<usize> {
    let mut total = 0usize;
    for (name, dtype, dims) in tensors {
        let bytes = dtype.bytes_of(&Shape::new(dims)?).with_context(|| name.clone())?;
        total = total.saturating_add(bytes);
    }
    ensure!(
        total <= MAX_BYTES,
        "{} of weights, at most {} are possible",
        text::bytes(total as u64),
        text::bytes(MAX_BYTES as u64)
    );
    Ok(total)
}

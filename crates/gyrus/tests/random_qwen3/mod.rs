//! A Qwen3 with random weights, written to a GGUF file in memory.

use gyrus::DType;
use gyrus_formats::Checkpoint;
use gyrus_tensor::{dequantize, quantize};
use gyrus_testkit::Rng;

use crate::written;

pub(crate) const VOCAB: usize = 1024;

/// Its sizes.
pub(crate) struct Random {
    pub(crate) dim: usize,
    pub(crate) ffn: usize,
    pub(crate) layers: usize,
}

impl Random {
    /// Its tensors. Matrices have the type that `dtype` returns for their name, and values that `stored` can represent.
    pub(crate) fn tensors(&self, stored: DType, dtype: impl Fn(&str) -> DType) -> Vec<written::Tensor> {
        let (dim, ffn) = (self.dim, self.ffn);
        let mut rng = Rng::new(9);
        let mut tensors = Vec::new();
        let mut add = |name: String, shape: &[usize]| {
            let elems = shape.iter().product();
            let mut values: Vec<f32> = (0..elems).map(|_| 0.05 * rng.gaussian() as f32).collect();
            let is_matrix = shape.len() == 2;
            let bytes = quantize(if is_matrix { stored } else { DType::F32 }, &values).unwrap();
            if !is_matrix {
                return tensors.push((name, DType::F32, shape.to_vec(), bytes));
            }
            dequantize(stored, &bytes, &mut values).unwrap();
            let dtype = dtype(&name);
            tensors.push((name, dtype, shape.to_vec(), quantize(dtype, &values).unwrap()));
        };
        add("token_embd.weight".to_owned(), &[VOCAB, dim]);
        add("output.weight".to_owned(), &[VOCAB, dim]);
        add("output_norm.weight".to_owned(), &[dim]);
        for layer in 0..self.layers {
            let mut part = |name: &str, shape: &[usize]| add(format!("blk.{layer}.{name}.weight"), shape);
            part("attn_norm", &[dim]);
            part("ffn_norm", &[dim]);
            part("attn_q_norm", &[32]);
            part("attn_k_norm", &[32]);
            part("attn_q", &[128, dim]);
            part("attn_k", &[64, dim]);
            part("attn_v", &[64, dim]);
            part("attn_output", &[dim, 128]);
            part("ffn_gate", &[ffn, dim]);
            part("ffn_up", &[ffn, dim]);
            part("ffn_down", &[dim, ffn]);
        }
        tensors
    }

    pub(crate) fn checkpoint(&self, tensors: &[written::Tensor]) -> Checkpoint {
        let numbers = [
            ("embedding_length", self.dim as u32),
            ("block_count", self.layers as u32),
            ("context_length", 128),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 32),
            ("attention.value_length", 32),
            ("feed_forward_length", self.ffn as u32),
        ];
        written::checkpoint("qwen3", 1e-6, &numbers, tensors)
    }
}

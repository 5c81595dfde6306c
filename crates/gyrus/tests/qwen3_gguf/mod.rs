//! The small Qwen3 of the test data in GGUF, under llama.cpp's names and in F32.

use std::collections::BTreeMap;

use gyrus_formats::Checkpoint;
use gyrus_formats::gguf::Writer;
use gyrus_tensor::{DType, Shape, dequantize};
use serde_json::Value;

use super::encoder_fixtures::fixture;

/// A file to be written.
pub(crate) struct Qwen3Gguf {
    pub(crate) numbers: BTreeMap<&'static str, u32>,
    pub(crate) flags: BTreeMap<&'static str, bool>,
    /// Shape and values.
    pub(crate) tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    pub(crate) tokens: Vec<String>,
    merges: Vec<String>,
    special: usize,
}

const NAMES: [(&str, &str); 15] = [
    ("model.", ""),
    ("layers.", "blk."),
    ("embed_tokens.", "token_embd."),
    ("post_attention_layernorm.", "ffn_norm."),
    ("input_layernorm.", "attn_norm."),
    ("self_attn.q_norm.", "attn_q_norm."),
    ("self_attn.k_norm.", "attn_k_norm."),
    ("self_attn.q_proj.", "attn_q."),
    ("self_attn.k_proj.", "attn_k."),
    ("self_attn.v_proj.", "attn_v."),
    ("self_attn.o_proj.", "attn_output."),
    ("mlp.gate_proj.", "ffn_gate."),
    ("mlp.up_proj.", "ffn_up."),
    ("mlp.down_proj.", "ffn_down."),
    ("norm.weight", "output_norm.weight"),
];

impl Qwen3Gguf {
    /// That of a folder of the test data, with the pooling type of llama.cpp.
    pub(crate) fn new(name: &str, pooling: u32) -> Qwen3Gguf {
        let model = Checkpoint::open(&fixture(name)).unwrap();
        let tensor = |tensor: gyrus_formats::TensorView<'_>| {
            let mut renamed = tensor.name.to_owned();
            for (from, to) in NAMES {
                // The last norm alone has nothing before its name.
                if from != "norm.weight" || renamed == from {
                    renamed = renamed.replacen(from, to, 1);
                }
            }
            let mut values = vec![0.0; tensor.shape.elems()];
            dequantize(tensor.dtype, tensor.data, &mut values).unwrap();
            (renamed, (tensor.shape.dims().to_vec(), values))
        };
        let text = std::fs::read_to_string(fixture(name).join("tokenizer.json")).unwrap();
        let tokenizer: Value = serde_json::from_str(&text).unwrap();
        let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap().iter();
        let tokens: BTreeMap<u64, String> =
            vocabulary.map(|(token, id)| (id.as_u64().unwrap(), token.clone())).collect();
        let merges = tokenizer["model"]["merges"].as_array().unwrap().iter();
        let word = |pair: &Value, n: usize| pair[n].as_str().unwrap().to_owned();
        let numbers = [
            ("qwen3.embedding_length", 32),
            ("qwen3.block_count", 3),
            ("qwen3.attention.head_count", 2),
            ("qwen3.attention.head_count_kv", 1),
            ("qwen3.attention.key_length", 16),
            ("qwen3.attention.value_length", 16),
            ("qwen3.feed_forward_length", 64),
            ("qwen3.context_length", 512),
            ("qwen3.pooling_type", pooling),
            ("tokenizer.ggml.eos_token_id", 0),
        ];
        Qwen3Gguf {
            numbers: numbers.into(),
            // Texts to embed end with a token, questions do not.
            flags: [("tokenizer.ggml.add_eos_token", name == "qwen3-embedding")].into(),
            tensors: model.tensors().map(tensor).collect(),
            tokens: tokens.into_values().collect(),
            merges: merges.map(|pair| format!("{} {}", word(pair, 0), word(pair, 1))).collect(),
            special: tokenizer["added_tokens"].as_array().unwrap().len(),
        }
    }

    /// With a classifier whose labels are the rows of these tokens in the embedding.
    pub(crate) fn with_labels(mut self, labels: [&str; 2]) -> Qwen3Gguf {
        let row = |label: &str| {
            let id = self.tokens.iter().position(|token| token == label).unwrap();
            let (shape, values) = &self.tensors["token_embd.weight"];
            values[id * shape[1]..(id + 1) * shape[1]].to_vec()
        };
        let values: Vec<f32> = labels.into_iter().flat_map(row).collect();
        self.tensors.insert("cls.output.weight".to_owned(), (vec![2, values.len() / 2], values));
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let tensors: Vec<(&String, &Vec<usize>, Vec<u8>)> = self
            .tensors
            .iter()
            .map(|(name, (shape, values))| {
                (name, shape, values.iter().flat_map(|x| x.to_le_bytes()).collect())
            })
            .collect();
        let mut writer = Writer::new();
        writer.string("general.architecture", "qwen3").string("general.name", "tiny");
        for (key, value) in &self.numbers {
            writer.u32(key, *value);
        }
        for (key, value) in &self.flags {
            writer.bool(key, *value);
        }
        writer.f32("qwen3.attention.layer_norm_rms_epsilon", 1e-6).f32("qwen3.rope.freq_base", 10000.0);
        writer.string("tokenizer.ggml.model", "gpt2").string("tokenizer.ggml.pre", "gpt-2");
        writer.strings("tokenizer.ggml.tokens", &self.tokens);
        writer.strings("tokenizer.ggml.merges", &self.merges);
        let types: Vec<i32> =
            (0..self.tokens.len()).map(|id| if id < self.special { 3 } else { 1 }).collect();
        writer.i32s("tokenizer.ggml.token_type", &types);
        for (name, shape, bytes) in &tensors {
            writer.tensor(name, DType::F32, Shape::new(shape).unwrap(), bytes).unwrap();
        }
        let mut out = Vec::new();
        writer.write_to(&mut out).unwrap();
        out
    }
}

//! The tiny random Whisper of the test data in GGUF: OpenAI's names of tensors, the vocabulary in byte-level letters.

use std::collections::BTreeMap;

use gyrus_formats::Checkpoint;
use gyrus_formats::gguf::Writer;
use gyrus_tensor::{DType, Shape};
use gyrus_testkit::repository;

/// A file to be written.
pub(crate) struct WhisperGguf {
    pub(crate) strings: BTreeMap<String, String>,
    pub(crate) numbers: BTreeMap<String, u32>,
    pub(crate) tokens: Option<Vec<String>>,
    /// Type, shape, bytes.
    pub(crate) tensors: BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>,
}

/// OpenAI's names of what transformers names differently. Longer ones come before those they contain.
const NAMES: [(&str, &str); 17] = [
    ("model.", ""),
    (".layers.", ".blocks."),
    (".encoder_attn_layer_norm.", ".cross_attn_ln."),
    (".self_attn_layer_norm.", ".attn_ln."),
    (".final_layer_norm.", ".mlp_ln."),
    (".encoder_attn.", ".cross_attn."),
    (".self_attn.", ".attn."),
    (".q_proj.", ".query."),
    (".k_proj.", ".key."),
    (".v_proj.", ".value."),
    (".out_proj.", ".out."),
    (".fc1.", ".mlp.0."),
    (".fc2.", ".mlp.2."),
    ("encoder.layer_norm.", "encoder.ln_post."),
    ("decoder.layer_norm.", "decoder.ln."),
    (".embed_tokens.", ".token_embedding."),
    (".embed_positions.weight", ".positional_embedding"),
];

impl WhisperGguf {
    pub(crate) fn tiny() -> WhisperGguf {
        let folder = repository().join("tests/data/whisper");
        let tensors = Checkpoint::open(&folder).unwrap();
        let tensor = |tensor: gyrus_formats::TensorView<'_>| {
            let renamed =
                NAMES.iter().fold(tensor.name.to_owned(), |name, (from, to)| name.replacen(from, to, 1));
            (renamed, (tensor.dtype, tensor.shape.dims().to_vec(), tensor.data.to_vec()))
        };
        let tensors = tensors.tensors().map(tensor).collect();
        let text = std::fs::read_to_string(folder.join("tokenizer.json")).unwrap();
        let tokenizer: serde_json::Value = serde_json::from_str(&text).unwrap();
        let spelled = tokenizer["model"]["vocab"].as_object().unwrap().iter();
        let spelled = spelled.map(|(token, id)| (id.as_u64().unwrap(), token.clone()));
        let added = tokenizer["added_tokens"].as_array().unwrap().iter();
        let added =
            added.map(|token| (token["id"].as_u64().unwrap(), token["content"].as_str().unwrap().to_owned()));
        let tokens: BTreeMap<u64, String> = spelled.chain(added).collect();
        let strings =
            [("general.architecture", "whisper"), ("general.name", "tiny"), ("tokenizer.ggml.model", "gpt2")];
        let numbers = [
            ("encoder.embedding_length", 32),
            ("encoder.block_count", 2),
            ("encoder.attention.head_count", 2),
            ("encoder.feed_forward_length", 96),
            ("encoder.context_length", 48),
            ("encoder.num_mel_bins", 80),
            ("embedding_length", 32),
            ("block_count", 2),
            ("attention.head_count", 4),
            ("feed_forward_length", 64),
            ("context_length", 64),
            ("vocab_size", 1773),
        ];
        WhisperGguf {
            strings: strings.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
            numbers: numbers.map(|(key, value)| (format!("whisper.{key}"), value)).into(),
            tokens: Some(tokens.into_values().collect()),
            tensors,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        for (key, value) in &self.strings {
            writer.string(key, value);
        }
        for (key, value) in &self.numbers {
            writer.u32(key, *value);
        }
        if let Some(tokens) = &self.tokens {
            writer.strings("tokenizer.ggml.tokens", tokens);
        }
        for (name, (dtype, shape, bytes)) in &self.tensors {
            writer.tensor(name, *dtype, Shape::new(shape).unwrap(), bytes).unwrap();
        }
        let mut out = Vec::new();
        writer.write_to(&mut out).unwrap();
        out
    }
}

//! Shapes of synthetic models: those with a name, and explicit dimensions.

use anyhow::{Context, Result, bail, ensure};
use gyrus_tensor::DType;

/// The dimensions of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dims {
    pub(super) architecture: &'static str,
    pub(super) dim: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    pub(super) ffn: usize,
    pub(super) vocab: usize,
    pub(super) tied: bool,
    /// The number of experts, those of a token, and the width of one; the dense feed-forward is not there then.
    pub(super) experts: Option<[usize; 3]>,
    /// Key heads, value heads and their size in Gated DeltaNet; one of four layers has attention instead.
    pub(super) delta: Option<[usize; 3]>,
}

/// Embedding, layers, heads, KV heads, size of a head, feed-forward, vocabulary; and whether the output
/// matrix is the embedding.
pub(super) const SHAPES: &[(&str, Dims)] = &[
    ("smollm2-135m", dims("llama", [576, 30, 9, 3, 64, 1536, 49152], true)),
    ("llama-3.2-1b", dims("llama", [2048, 16, 32, 8, 64, 8192, 128_256], true)),
    ("llama-3.1-8b", dims("llama", [4096, 32, 32, 8, 128, 14336, 128_256], false)),
    ("qwen3-0.6b", dims("qwen3", [1024, 28, 16, 8, 128, 3072, 151_936], true)),
    ("qwen3-4b", dims("qwen3", [2560, 36, 32, 8, 128, 9728, 151_936], true)),
    ("qwen2.5-0.5b", dims("qwen2", [896, 24, 14, 2, 64, 4864, 151_936], true)),
    ("gemma-3-270m", dims("gemma3", [640, 18, 4, 1, 256, 2048, 262_144], true)),
    ("gemma-3-1b", dims("gemma3", [1152, 26, 4, 1, 256, 6912, 262_144], true)),
    ("moe-1b", experts(dims("qwen3moe", [1024, 24, 16, 4, 64, 3072, 32_000], true), [16, 4, 512])),
    // The first twelve of 48 layers.
    (
        "qwen3-30b-a3b-12l",
        experts(dims("qwen3moe", [2048, 12, 32, 4, 128, 6144, 151_936], false), [128, 8, 768]),
    ),
    ("gpt-oss-20b", experts(dims("gpt-oss", [2880, 24, 64, 8, 64, 2880, 201_088], false), [32, 4, 2880])),
    ("qwen35-0.8b", delta(dims("qwen35", [1024, 24, 8, 2, 256, 3584, 248_320], true), [16, 16, 128])),
    ("qwen35-9b", delta(dims("qwen35", [4096, 32, 16, 4, 256, 12_288, 248_320], false), [16, 32, 128])),
    (
        "qwen35-35b-a3b",
        experts(
            delta(dims("qwen35moe", [2048, 40, 16, 2, 256, 512, 248_320], false), [16, 32, 128]),
            [256, 8, 512],
        ),
    ),
];

/// Architectures that explicit dimensions may name.
pub(super) const ARCHITECTURES: [&str; 8] =
    ["llama", "qwen2", "qwen3", "gemma3", "qwen3moe", "gpt-oss", "qwen35", "qwen35moe"];

/// The windows of local layers.
pub(super) const WINDOWS: [(&str, u32); 2] = [("gemma3", 512), ("gpt-oss", 128)];

/// Experts of explicit dimensions: their number, and those of a token.
const EXPERTS: [usize; 2] = [8, 2];

/// Gated DeltaNet of explicit dimensions: key heads, value heads and their size.
const DELTA: [usize; 3] = [1, 2, 32];

/// In hybrids one layer of so many has attention.
pub(super) const ATTENTION_INTERVAL: usize = 4;

const fn dims(architecture: &'static str, numbers: [usize; 7], tied: bool) -> Dims {
    let [dim, layers, heads, kv_heads, head_dim, ffn, vocab] = numbers;
    let (experts, delta) = (None, None);
    Dims { architecture, dim, layers, heads, kv_heads, head_dim, ffn, vocab, tied, experts, delta }
}

const fn experts(dims: Dims, numbers: [usize; 3]) -> Dims {
    Dims { experts: Some(numbers), ..dims }
}

const fn delta(dims: Dims, numbers: [usize; 3]) -> Dims {
    Dims { delta: Some(numbers), ..dims }
}

impl Dims {
    /// The type of the embedding, which is also the output: files of the four- and five-bit super-block types
    /// commonly have it in six bits.
    pub(super) fn embedding_type(&self, dtype: DType) -> DType {
        match dtype {
            _ if self.architecture == "gpt-oss" => DType::Q8_0,
            DType::Q4_K | DType::Q5_K => DType::Q6_K,
            other => other,
        }
    }

    /// Whether a layer has Gated DeltaNet.
    pub(super) fn is_recurrent(&self, layer: usize) -> bool {
        self.delta.is_some() && !(layer + 1).is_multiple_of(ATTENTION_INTERVAL)
    }
}

/// Explicit dimensions: `dim=512,layers=4,heads=8,kv=4,ffn=1536,vocab=32000`, and optionally `head=64`,
/// `arch=qwen3` (or another of [`ARCHITECTURES`]), `untied`. Mixtures have eight experts of `ffn`, two a token.
pub(super) fn explicit(text: &str) -> Result<Dims> {
    let mut dims = dims("llama", [0; 7], true);
    for part in text.split(',') {
        let number = |value: &str| -> Result<usize> {
            let n = value.parse().with_context(|| format!("'{part}' is not a number"))?;
            ensure!((1..=1 << 20).contains(&n), "'{part}' is out of range");
            Ok(n)
        };
        match part.split_once('=') {
            Some(("dim", v)) => dims.dim = number(v)?,
            Some(("layers", v)) => dims.layers = number(v)?,
            Some(("heads", v)) => dims.heads = number(v)?,
            Some(("kv", v)) => dims.kv_heads = number(v)?,
            Some(("head", v)) => dims.head_dim = number(v)?,
            Some(("ffn", v)) => dims.ffn = number(v)?,
            Some(("vocab", v)) => dims.vocab = number(v)?,
            Some(("arch", name)) => {
                let known = ARCHITECTURES.iter().find(|known| **known == name);
                dims.architecture = known.with_context(|| {
                    format!("'{part}' is none of the architectures {}", ARCHITECTURES.join(", "))
                })?;
            }
            None if part == "untied" => dims.tied = false,
            _ => {
                let known: Vec<&str> = SHAPES.iter().map(|(name, _)| *name).collect();
                bail!(
                    "'{part}' is neither a known shape ({}) nor a dimension \
                     (dim=, layers=, heads=, kv=, head=, ffn=, vocab=, arch=, untied)",
                    known.join(", ")
                );
            }
        }
    }
    if ["qwen3moe", "gpt-oss", "qwen35moe"].contains(&dims.architecture) {
        dims.experts = Some([EXPERTS[0], EXPERTS[1], dims.ffn]);
    }
    if ["qwen35", "qwen35moe"].contains(&dims.architecture) {
        dims.delta = Some(DELTA);
    }
    if dims.head_dim == 0 && dims.heads > 0 {
        dims.head_dim = dims.dim / dims.heads;
    }
    if [dims.dim, dims.layers, dims.heads, dims.kv_heads, dims.head_dim, dims.ffn, dims.vocab].contains(&0) {
        bail!("'{text}' lacks a dimension: dim, layers, heads, kv, ffn and vocab are needed");
    }
    Ok(dims)
}

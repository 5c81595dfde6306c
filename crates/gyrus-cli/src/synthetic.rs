//! Synthetic models: random weights in the shape of a real model, to measure speed without its file.

use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use gyrus_formats::gguf::Writer;
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_tensor::{DType, Shape, can_quantize, quantize};

use crate::output::OutputFile;
use crate::text;

/// The dimensions of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dims {
    architecture: &'static str,
    dim: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    ffn: usize,
    vocab: usize,
    tied: bool,
    /// The number of experts, those of a token, and the width of one; the dense feed-forward is not there then.
    experts: Option<[usize; 3]>,
}

/// Embedding, layers, heads, KV heads, size of a head, feed-forward, vocabulary; and whether the output
/// matrix is the embedding.
const SHAPES: &[(&str, Dims)] = &[
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
];

/// Architectures that explicit dimensions may name.
const ARCHITECTURES: [&str; 6] = ["llama", "qwen2", "qwen3", "gemma3", "qwen3moe", "gpt-oss"];

/// The windows of local layers.
const WINDOWS: [(&str, u32); 2] = [("gemma3", 512), ("gpt-oss", 128)];

/// Experts of explicit dimensions: their number, and those of a token.
const EXPERTS: [usize; 2] = [8, 2];

const fn dims(architecture: &'static str, numbers: [usize; 7], tied: bool) -> Dims {
    let [dim, layers, heads, kv_heads, head_dim, ffn, vocab] = numbers;
    Dims { architecture, dim, layers, heads, kv_heads, head_dim, ffn, vocab, tied, experts: None }
}

const fn experts(dims: Dims, numbers: [usize; 3]) -> Dims {
    Dims { experts: Some(numbers), ..dims }
}

/// Context of a synthetic model: enough for every test.
const CONTEXT: u32 = 131_072;

/// A parsed and checked `SHAPE:QUANT`.
#[derive(Debug, Clone)]
pub(crate) struct Synthetic {
    /// As it was typed.
    text: String,
    dims: Dims,
    dtype: DType,
}

impl Synthetic {
    /// As it was typed.
    pub(crate) fn name(&self) -> &str {
        &self.text
    }

    /// Makes the model.
    pub(crate) fn model(&self) -> Result<Checkpoint> {
        Ok(Checkpoint::from_gguf("synthetic", Bytes::Owned(self.file()?))?)
    }

    /// Writes the model.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        OutputFile::write(path, self.file()?)
    }

    /// The GGUF file.
    fn file(&self) -> Result<Vec<u8>> {
        build(self.dims, self.dtype)
    }
}

impl FromStr for Synthetic {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Synthetic> {
        let (name, dtype) = text.rsplit_once(':').context("a synthetic model is SHAPE:QUANT")?;
        let dims = match SHAPES.iter().find(|(known, _)| *known == name) {
            Some((_, dims)) => *dims,
            None => explicit(name)?,
        };
        let Some(dtype) = dtype.parse::<DType>().ok().filter(|d| can_quantize(*d)) else {
            let can: Vec<&str> = DType::ALL.iter().filter(|d| can_quantize(**d)).map(|d| d.name()).collect();
            bail!(
                "'{dtype}' is not a type that weights can be quantised to; supported are {}",
                can.join(", ")
            );
        };
        weight_bytes(&tensors(dims, dtype)?)?;
        Ok(Synthetic { text: text.to_owned(), dims, dtype })
    }
}

/// Explicit dimensions: `dim=512,layers=4,heads=8,kv=4,ffn=1536,vocab=32000`, and optionally `head=64`,
/// `arch=qwen3` (or `qwen2`, `gemma3`, `qwen3moe`, `gpt-oss`), `untied`. Mixtures have eight experts of `ffn`, two a token.
fn explicit(text: &str) -> Result<Dims> {
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
    if ["qwen3moe", "gpt-oss"].contains(&dims.architecture) {
        dims.experts = Some([EXPERTS[0], EXPERTS[1], dims.ffn]);
    }
    if dims.head_dim == 0 && dims.heads > 0 {
        dims.head_dim = dims.dim / dims.heads;
    }
    if [dims.dim, dims.layers, dims.heads, dims.kv_heads, dims.head_dim, dims.ffn, dims.vocab].contains(&0) {
        bail!("'{text}' lacks a dimension: dim, layers, heads, kv, ffn and vocab are needed");
    }
    Ok(dims)
}

/// Size limit of a synthetic model, above what any machine that could run it has.
const MAX_BYTES: usize = 1 << 37;
const MAX_LAYERS: usize = 4096;

impl Dims {
    /// The type of the embedding, which is also the output: files of the four- and five-bit super-block types
    /// commonly have it in six bits.
    fn embedding_type(&self, dtype: DType) -> DType {
        match dtype {
            _ if self.architecture == "gpt-oss" => DType::Q8_0,
            DType::Q4_K | DType::Q5_K => DType::Q6_K,
            other => other,
        }
    }
}

/// A tensor to be made.
type Wanted = (String, DType, Vec<usize>);

/// All tensors of a model.
fn tensors(d: Dims, dtype: DType) -> Result<Vec<Wanted>> {
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
        for (name, shape) in biases {
            tensors.push((format!("blk.{layer}.{name}.bias"), DType::F32, shape));
        }
        let mut add = |name: &str, dtype, dims: &[usize]| {
            tensors.push((format!("blk.{layer}.{name}.weight"), dtype, dims.to_vec()));
        };
        // Published files of gpt-oss have experts in MXFP4 and other matrices in Q8_0.
        let (dtype, of_experts) = if is_gpt_oss { (DType::Q8_0, dtype) } else { (dtype, dtype) };
        add("attn_norm", DType::F32, &[d.dim]);
        add("attn_q", dtype, &[q, d.dim]);
        add("attn_k", dtype, &[kv, d.dim]);
        add("attn_v", dtype, &[kv, d.dim]);
        if d.architecture == "gemma3" {
            add("post_attention_norm", DType::F32, &[d.dim]);
            add("post_ffw_norm", DType::F32, &[d.dim]);
        }
        if ["qwen3", "gemma3", "qwen3moe"].contains(&d.architecture) {
            add("attn_q_norm", DType::F32, &[d.head_dim]);
            add("attn_k_norm", DType::F32, &[d.head_dim]);
        }
        add("attn_output", dtype, &[d.dim, q]);
        if is_gpt_oss {
            add("attn_sinks", DType::F32, &[d.heads]);
        }
        add(if is_gpt_oss { "post_attention_norm" } else { "ffn_norm" }, DType::F32, &[d.dim]);
        if let Some([count, _, width]) = d.experts {
            add("ffn_gate_inp", DType::F32, &[count, d.dim]);
            add("ffn_gate_exps", of_experts, &[count, width, d.dim]);
            add("ffn_up_exps", of_experts, &[count, width, d.dim]);
            add("ffn_down_exps", of_experts, &[count, d.dim, width]);
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
fn weight_bytes(tensors: &[Wanted]) -> Result<usize> {
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

fn build(d: Dims, dtype: DType) -> Result<Vec<u8>> {
    let tensors = tensors(d, dtype)?;
    let total = weight_bytes(&tensors)?;
    let mut file: Vec<u8> = Vec::new();
    // Asked for before anything is made, so that too little memory is an error and not the end.
    let reserved = file.try_reserve_exact(total.saturating_mul(2));
    reserved.with_context(|| format!("no memory for {} of weights", text::bytes(total as u64)))?;

    let mut random = Random { state: 1 };
    // Matrices and routers are random, vectors and biases are not.
    let pools = [dtype, d.embedding_type(dtype), DType::F32].map(|dtype| Ok((dtype, random.blocks(dtype)?)));
    let pools = pools.into_iter().collect::<Result<Vec<_>>>()?;
    let mut filled = Vec::new();
    for (name, dtype, dims) in &tensors {
        let shape = Shape::new(dims)?;
        let pool = pools.iter().find(|(of, _)| of == dtype).map_or(&[][..], |(_, pool)| pool);
        let pool = if name.ends_with(".bias") { &[] } else { pool };
        filled.push((name, *dtype, shape, random.tensor(*dtype, &shape, pool)?));
    }
    let key = |rest: &str| format!("{}.{rest}", d.architecture);
    let mut writer = Writer::new();
    writer
        .string("general.architecture", d.architecture)
        .u32(&key("embedding_length"), d.dim as u32)
        .u32(&key("block_count"), d.layers as u32)
        .u32(&key("attention.head_count"), d.heads as u32)
        .u32(&key("attention.head_count_kv"), d.kv_heads as u32)
        .u32(&key("attention.key_length"), d.head_dim as u32)
        .u32(&key("attention.value_length"), d.head_dim as u32)
        .u32(&key("feed_forward_length"), d.ffn as u32)
        .u32(&key("context_length"), CONTEXT)
        .u32(&key("rope.dimension_count"), d.head_dim as u32)
        .u32(&key("vocab_size"), d.vocab as u32)
        .string("tokenizer.ggml.model", "none")
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .f32(&key("rope.freq_base"), 500_000.0);
    if let Some((_, window)) = WINDOWS.iter().find(|(name, _)| *name == d.architecture) {
        writer.u32(&key("attention.sliding_window"), *window);
    }
    if let Some([count, used, width]) = d.experts {
        writer
            .u32(&key("expert_count"), count as u32)
            .u32(&key("expert_used_count"), used as u32)
            .u32(&key("expert_feed_forward_length"), width as u32);
    }
    for (name, dtype, shape, data) in &filled {
        writer.tensor(name, *dtype, *shape, data)?;
    }
    writer.write_to(&mut file)?;
    drop(filled);
    file.shrink_to_fit();
    Ok(file)
}

/// Weights drawn from a pool of real blocks: quantising billions of random values would take longer than
/// the measurement.
struct Random {
    state: u64,
}

const POOL_BLOCKS: usize = 256;

impl Random {
    /// The pool of a type.
    fn blocks(&mut self, dtype: DType) -> Result<Vec<u8>> {
        let elems = if dtype.is_quantized() { dtype.block_elems() } else { 32 };
        let values: Vec<f32> = (0..POOL_BLOCKS * elems).map(|_| self.gaussian() * 0.02).collect();
        Ok(quantize(dtype, &values)?)
    }

    fn tensor(&mut self, dtype: DType, shape: &Shape, pool: &[u8]) -> Result<Vec<u8>> {
        let bytes = dtype.bytes_of(shape)?;
        if shape.rank() == 1 {
            // Norms scale by one.
            return Ok(1.0f32.to_le_bytes().repeat(bytes / 4));
        }
        if pool.is_empty() {
            return Ok(vec![0; bytes]);
        }
        // Of floats as many as a quantised block has, so that rows differ.
        let size = pool.len() / POOL_BLOCKS;
        let mut data = Vec::with_capacity(bytes);
        while data.len() < bytes {
            let at = (self.next() >> 33) as usize % POOL_BLOCKS * size;
            data.extend_from_slice(&pool[at..at + size.min(bytes - data.len())]);
        }
        Ok(data)
    }

    fn next(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state
    }

    /// A sum of twelve uniform numbers is close enough to normal for weights.
    fn gaussian(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1u32 << 24) as f32).sum::<f32>() - 6.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_known_by_name_or_spelled_out() {
        let small = "dim=64,layers=1,heads=2,kv=1,ffn=96,vocab=40:q8_0";
        let model = small.parse::<Synthetic>().unwrap().model().unwrap();
        assert_eq!(model.tensor("blk.0.ffn_gate.weight").unwrap().shape.dims(), [96, 64]);
        assert_eq!(explicit("dim=64,layers=1,heads=2,kv=1,ffn=96,vocab=40").unwrap().head_dim, 32);
    }

    /// Every architecture has the tensors and keys that its description needs.
    #[test]
    fn every_architecture_loads() {
        for name in ARCHITECTURES {
            let shape = format!("dim=64,layers=7,heads=2,kv=1,ffn=96,vocab=40,arch={name}:q8_0");
            let model = shape.parse::<Synthetic>().unwrap().model().unwrap();
            let options = gyrus::Options { context: Some(64), ..Default::default() };
            let model = gyrus::Model::load(model, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(model.config().architecture, name);
        }
    }

    #[test]
    fn a_written_model_is_the_one_in_memory() {
        let shape = "dim=256,layers=1,heads=4,kv=2,ffn=256,vocab=40:q4_k";
        let folder = gyrus_testkit::tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let synthetic: Synthetic = shape.parse().unwrap();
        synthetic.write(&path).unwrap();
        assert!(std::fs::read(&path).unwrap() == synthetic.file().unwrap());
        let model = Checkpoint::open(&path).unwrap();
        assert_eq!(model.tensor("token_embd.weight").unwrap().dtype, DType::Q6_K);
        assert_eq!(model.tensor("blk.0.attn_q.weight").unwrap().dtype, DType::Q4_K);
    }

    /// MXFP4 has a scale that is NaN. A clamped activation would hide it, so it is refused at load.
    #[test]
    fn an_mxfp4_scale_that_is_nan_is_refused_by_name() {
        let shape = "dim=64,layers=1,heads=2,kv=1,ffn=96,vocab=40:mxfp4";
        let mut file = shape.parse::<Synthetic>().unwrap().file().unwrap();
        let load = |file: &[u8]| {
            let model = Checkpoint::from_gguf("synthetic", Bytes::Owned(file.to_vec())).unwrap();
            let device = gyrus::Device::Cpu;
            gyrus::Model::load(model, &gyrus::Options { device, context: Some(64), ..Default::default() })
        };
        assert!(load(&file).is_ok());
        let model = Checkpoint::from_gguf("synthetic", Bytes::Owned(file.clone())).unwrap();
        let at = model.tensor("blk.0.ffn_down.weight").unwrap().at as usize;
        file[at + 17 * 5] = 0xFF;
        let error = load(&file).err().unwrap().to_string();
        assert!(error.contains("blk.0.ffn_down.weight"), "{error}");
        assert!(error.contains("the scale of MXFP4 block 5 is NaN"), "{error}");
    }

    #[test]
    fn what_is_wrong_with_a_shape_is_said() {
        let error = |text: &str| text.parse::<Synthetic>().unwrap_err().to_string();
        assert!(error("llama-3.2-1b").contains("SHAPE:QUANT"));
        assert!(error("llama-3.2-1b:q9").contains("'q9' is not a type that weights can be quantised to"));
        assert!(error("gpt:q4_0").contains("'gpt' is neither a known shape"));
        assert!(error("dim=64:q4_0").contains("lacks a dimension"));
        assert!(error("dim=99999999999:q4_0").contains("out of range"));
        assert!(error("dim=64,layers=4097,heads=2,kv=1,ffn=96,vocab=40:q8_0").contains("4097 layers"));
        let much = "dim=1048576,layers=9,heads=1,kv=1,ffn=1048576,vocab=9:f32";
        assert!(error(much).contains("of weights, at most"), "{}", error(much));
    }
}

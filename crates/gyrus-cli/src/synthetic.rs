//! Synthetic models: random weights in the shape of a real model, to measure speed without its file.

mod encoders;
mod shapes;
mod tensors;
mod vocabulary;

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use gyrus_formats::gguf::Writer;
use gyrus_formats::{Bytes, Checkpoint};
use gyrus_tensor::{DType, Shape, can_quantize, quantize};

use self::encoders::ENCODERS;
pub(crate) use self::encoders::{EncoderDims, SpeechDims};
use self::shapes::{ATTENTION_INTERVAL, Dims, SHAPES, WINDOWS, explicit};
use self::tensors::{tensors, weight_bytes};
use self::vocabulary::Vocabulary;
use crate::output::OutputFile;
use crate::text;

/// Context of a synthetic model: enough for every test.
const CONTEXT: u32 = 131_072;

/// A parsed and checked `SHAPE:QUANT`.
#[derive(Debug, Clone)]
pub(crate) struct Synthetic {
    /// As it was typed.
    text: String,
    dims: Dims,
    /// An encoder instead of a language model.
    encoder: Option<EncoderDims>,
    dtype: DType,
    /// Tokens of a real model; without them there is no text.
    vocabulary: Option<Arc<Vocabulary>>,
}

impl Synthetic {
    /// The same shape with the vocabulary of a GGUF file, whatever size it has.
    pub(crate) fn with_vocabulary(mut self, path: &Path) -> Result<Synthetic> {
        let vocabulary = Vocabulary::read(path).with_context(|| path.display().to_string())?;
        self.dims.vocab = vocabulary.tokens();
        weight_bytes(&tensors(self.dims, self.dtype)?)?;
        self.vocabulary = Some(Arc::new(vocabulary));
        Ok(self)
    }

    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> u64 {
        let tensors = tensors(self.dims, self.dtype).and_then(|tensors| weight_bytes(&tensors));
        tensors.unwrap_or_default() as u64
    }

    /// The number of weights.
    pub(crate) fn parameters(&self) -> u64 {
        let tensors = tensors(self.dims, self.dtype).unwrap_or_default();
        let elems = |dims: &[usize]| dims.iter().map(|dim| *dim as u64).product::<u64>();
        tensors.iter().map(|(_, _, dims)| elems(dims)).sum()
    }

    /// The architecture of the shape.
    pub(crate) fn architecture(&self) -> &'static str {
        self.dims.architecture
    }

    /// The type of the weights.
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dimensions and type of an encoder, if it is one.
    pub(crate) fn encoder(&self) -> Option<(EncoderDims, DType)> {
        self.encoder.map(|dims| (dims, self.dtype))
    }

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
        if self.encoder.is_some() {
            bail!("'{}' is an encoder, which only `gyrus bench` runs, on a GPU", self.text);
        }
        build(self.dims, self.dtype, self.vocabulary.as_deref())
    }
}

impl FromStr for Synthetic {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Synthetic> {
        let (name, dtype) = text.rsplit_once(':').context("a synthetic model is SHAPE:QUANT")?;
        let encoder = ENCODERS.iter().find(|(known, _)| *known == name).map(|(_, dims)| *dims);
        let dims = match SHAPES.iter().find(|(known, _)| *known == name) {
            Some((_, dims)) => *dims,
            // Those of an encoder are its own.
            None if encoder.is_some() => SHAPES[0].1,
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
        Ok(Synthetic { text: text.to_owned(), dims, encoder, dtype, vocabulary: None })
    }
}

fn build(d: Dims, dtype: DType, vocabulary: Option<&Vocabulary>) -> Result<Vec<u8>> {
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
        filled.push((name, *dtype, shape, random.tensor(name, *dtype, &shape, pool)?));
    }
    let key = |rest: &str| format!("{}.{rest}", d.architecture);
    // Hybrids rotate a quarter of a head.
    let rotated = if d.delta.is_some() { d.head_dim / 4 } else { d.head_dim };
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
        .u32(&key("rope.dimension_count"), rotated as u32)
        .u32(&key("vocab_size"), d.vocab as u32)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .f32(&key("rope.freq_base"), 500_000.0);
    match vocabulary {
        Some(vocabulary) => vocabulary.write(&mut writer),
        None => drop(writer.string("tokenizer.ggml.model", "none")),
    }
    if let Some((_, window)) = WINDOWS.iter().find(|(name, _)| *name == d.architecture) {
        writer.u32(&key("attention.sliding_window"), *window);
    }
    if let Some([count, used, width]) = d.experts {
        writer
            .u32(&key("expert_count"), count as u32)
            .u32(&key("expert_used_count"), used as u32)
            .u32(&key("expert_feed_forward_length"), width as u32);
        if d.delta.is_some() {
            writer.u32(&key("expert_shared_feed_forward_length"), width as u32);
        }
    }
    if let Some([keys, values, size]) = d.delta {
        writer
            .u32(&key("ssm.conv_kernel"), 4)
            .u32(&key("ssm.state_size"), size as u32)
            .u32(&key("ssm.group_count"), keys as u32)
            .u32(&key("ssm.time_step_rank"), values as u32)
            .u32(&key("ssm.inner_size"), (values * size) as u32)
            .u32(&key("full_attention_interval"), ATTENTION_INTERVAL as u32)
            // Positions of time, height and width take turns; text has the same in all.
            .i32s(&key("rope.dimension_sections"), &sections(rotated / 2));
    }
    for (name, dtype, shape, data) in &filled {
        writer.tensor(name, *dtype, *shape, data)?;
    }
    writer.write_to(&mut file)?;
    drop(filled);
    file.shrink_to_fit();
    Ok(file)
}

/// Divides pairs among three kinds of positions, of four that there may be.
fn sections(pairs: usize) -> [i32; 4] {
    let of = |i: usize| ((pairs + i) / 3) as i32;
    [of(2), of(1), of(0), 0]
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

    fn tensor(&mut self, name: &str, dtype: DType, shape: &Shape, pool: &[u8]) -> Result<Vec<u8>> {
        let bytes = dtype.bytes_of(shape)?;
        if name.ends_with(".ssm_a") {
            // States decay.
            return Ok((-1.0f32).to_le_bytes().repeat(bytes / 4));
        }
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
        for name in shapes::ARCHITECTURES {
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

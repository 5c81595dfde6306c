use std::collections::HashSet;

use gyrus_formats::{Checkpoint, TensorView};
use gyrus_kernels::{
    Activation, BufferId, BufferSpec, ENCODED, KvGroup, KvLayer, LOGITS, Op, Output, Plan, Precision, Rows,
    Span, WeightId, WeightSpec,
};
use gyrus_tensor::{DType, Shape, can_dequantize};

use super::config::WhisperConfig;
use super::gguf::MEL_FILTERS;
use super::names::hugging_face;
use crate::Error;

/// Keys and values of the encoder's own attention. Nothing reads them after their layer, so all layers share one.
pub(crate) const ENCODER_GROUP: usize = 0;
/// Keys and values of the encoder's output, for each layer of the decoder.
pub(crate) const CROSS_GROUP: usize = 1;
/// Keys and values of the decoder's own attention.
pub(crate) const SELF_GROUP: usize = 2;

const LAYER_NORM_EPS: f32 = 1e-5;

/// A plan, and the weights whose values the alignment of words needs.
pub(crate) struct WhisperPlan {
    pub(crate) plan: Plan,
    /// For each layer of the decoder, the op of the forward pass whose queries attend to the encoder's rows.
    pub(crate) cross_queries: Vec<usize>,
    /// For each layer of the decoder, the tensor of the keys of the encoder's rows.
    pub(crate) cross_keys: Vec<String>,
}

/// The encoder and the decoder as lists of ops. Matrices of floats are quantised to `quantize` when they are loaded, where
/// their rows are whole blocks.
pub(crate) fn build(
    checkpoint: &Checkpoint,
    config: &WhisperConfig,
    precision: Precision,
    quantize: Option<DType>,
) -> Result<WhisperPlan, Error> {
    let prefix = match config.hugging_face && checkpoint.tensor("model.encoder.conv1.weight").is_some() {
        true => "model.",
        false => "",
    };
    let mut builder = Builder {
        checkpoint,
        config,
        quantize,
        prefix,
        weights: Vec::new(),
        used: HashSet::new(),
        buffers: Vec::new(),
        ops: Vec::new(),
    };
    builder.build(precision)
}

struct Builder<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a WhisperConfig,
    quantize: Option<DType>,
    prefix: &'static str,
    weights: Vec<WeightSpec>,
    used: HashSet<String>,
    buffers: Vec<BufferSpec>,
    ops: Vec<Op>,
}

/// What is known of a decoder once its ops are listed.
struct Decoder {
    logits: BufferId,
    /// The ops of each layer.
    layers: Vec<std::ops::Range<usize>>,
    /// The op of each layer that prepares queries to the encoder's rows.
    cross_queries: Vec<usize>,
}

/// Buffers that encoder and decoder share.
#[derive(Clone, Copy)]
struct Buffers {
    /// The residual stream.
    stream: BufferId,
    /// A normalised stream.
    normed: BufferId,
    qkv: BufferId,
    /// Queries of the attention to the encoder's rows.
    queries: BufferId,
    attended: BufferId,
}

impl<'a> Builder<'a> {
    fn build(&mut self, precision: Precision) -> Result<WhisperPlan, Error> {
        let c = self.config;
        let width = c.width;
        let shared = Buffers {
            stream: self.buffer("stream", width, Rows::Batch),
            normed: self.buffer("normed", width, Rows::Batch),
            qkv: self.buffer("qkv", 3 * width, Rows::Batch),
            queries: self.buffer("queries", width, Rows::Batch),
            attended: self.buffer("attended", width, Rows::Batch),
        };
        let encoded = self.encoder(shared)?;
        let encode = std::mem::take(&mut self.ops);
        let Decoder { logits, layers, cross_queries } = self.decoder(shared)?;
        self.check_all_used()?;
        let head_dim = |heads: usize| width / heads;
        let group =
            |layers, heads| KvGroup { layers, kv_heads: heads, head_dim: head_dim(heads), window: None };
        let kv = vec![
            group(1, c.audio_heads),
            group(c.text_layers, c.text_heads),
            group(c.text_layers, c.text_heads),
        ];
        let key = |layer| self.name(&format!("decoder.blocks.{layer}.cross_attn.key.weight"));
        let cross_keys = (0..c.text_layers).map(key).collect();
        let plan = Plan {
            precision,
            vocab: c.vocab,
            buffers: std::mem::take(&mut self.buffers),
            weights: std::mem::take(&mut self.weights),
            ropes: Vec::new(),
            kv,
            delta: Vec::new(),
            encode,
            forward: std::mem::take(&mut self.ops),
            layers,
            outputs: vec![Output { name: LOGITS, buffer: logits }, Output { name: ENCODED, buffer: encoded }],
        };
        Ok(WhisperPlan { plan, cross_queries, cross_keys })
    }

    /// From a spectrogram to the keys and values that the decoder attends to. Returns the buffer of the encoder's output.
    fn encoder(&mut self, b: Buffers) -> Result<BufferId, Error> {
        let c = self.config;
        let (width, mels) = (c.width, c.mels);
        // Two frames become one position.
        let frames = Rows::Slots(2);
        let mel = self.buffer("mel", mels, frames);
        let unfolded_mel = self.buffer("unfolded mel", 3 * mels, frames);
        let convolved = self.buffer("convolved", width, frames);
        let unfolded = self.buffer("unfolded", 3 * width, Rows::Batch);
        let hidden = self.buffer("encoder hidden", c.audio_hidden, Rows::Batch);
        self.ops.push(Op::Features { out: mel });
        self.convolution(1, mel, mels, unfolded_mel, convolved)?;
        self.convolution(2, convolved, width, unfolded, b.stream)?;
        let table = self.table("encoder.positional_embedding", c.audio_context)?;
        self.ops.push(Op::AddPositions { table, offset: 0, out: b.stream });
        for layer in 0..c.audio_layers {
            let block = format!("encoder.blocks.{layer}");
            let kv = KvLayer { group: ENCODER_GROUP as u8, index: 0 };
            self.self_attention(&block, b, kv, c.audio_heads, Span::Whole)?;
            self.feed_forward(&block, b, hidden, c.audio_hidden)?;
        }
        self.norm("encoder.ln_post", b.stream, b.normed)?;
        let cross = self.buffer("cross keys and values", 2 * width, Rows::Batch);
        for layer in 0..c.text_layers {
            let block = format!("decoder.blocks.{layer}.cross_attn");
            let keys = self.matrix(&format!("{block}.key.weight"), width, width)?;
            let values = self.matrix(&format!("{block}.value.weight"), width, width)?;
            self.ops.push(Op::MatMul {
                x: b.normed,
                weights: vec![keys, values],
                accumulate: false,
                out: cross,
            });
            self.bias(&format!("{block}.value.bias"), cross, width, width)?;
            let kv = KvLayer { group: CROSS_GROUP as u8, index: layer as u16 };
            self.ops.push(Op::RopeWrite { qkv: cross, heads: 0, kv, write: true, norms: None, rope: None });
        }
        let encoded = self.buffer("encoded", width, Rows::Logits);
        self.ops.push(Op::Gather { x: b.normed, out: encoded });
        Ok(encoded)
    }

    /// From tokens to logits.
    fn decoder(&mut self, b: Buffers) -> Result<Decoder, Error> {
        let c = self.config;
        let width = c.width;
        let heads = c.text_heads as u16;
        let hidden = self.buffer("decoder hidden", c.text_hidden, Rows::Batch);
        let embedding = self.matrix("decoder.token_embedding.weight", c.vocab, width)?;
        self.ops.push(Op::Embed { table: embedding, scale: 1.0, out: b.stream });
        let table = self.table("decoder.positional_embedding", c.text_context)?;
        self.ops.push(Op::AddPositions { table, offset: 0, out: b.stream });
        let (mut layers, mut cross_queries) = (Vec::new(), Vec::new());
        for layer in 0..c.text_layers {
            let first = self.ops.len();
            let block = format!("decoder.blocks.{layer}");
            let index = layer as u16;
            let own = KvLayer { group: SELF_GROUP as u8, index };
            self.self_attention(&block, b, own, c.text_heads, Span::Causal)?;

            self.norm(&format!("{block}.cross_attn_ln"), b.stream, b.normed)?;
            let cross = format!("{block}.cross_attn");
            let query = self.matrix(&format!("{cross}.query.weight"), width, width)?;
            self.ops.push(Op::MatMul {
                x: b.normed,
                weights: vec![query],
                accumulate: false,
                out: b.queries,
            });
            self.bias(&format!("{cross}.query.bias"), b.queries, 0, width)?;
            let kv = KvLayer { group: CROSS_GROUP as u8, index };
            cross_queries.push(self.ops.len());
            self.ops.push(Op::RopeWrite { qkv: b.queries, heads, kv, write: false, norms: None, rope: None });
            self.attend(b.queries, kv, c.text_heads, Span::Whole, b.attended);
            self.project(&format!("{cross}.out"), b.attended, width, b.stream)?;
            self.feed_forward(&block, b, hidden, c.text_hidden)?;
            layers.push(first..self.ops.len());
        }
        let last = self.buffer("last", width, Rows::Logits);
        let logits = self.buffer("logits", c.vocab, Rows::Logits);
        self.ops.push(Op::Gather { x: b.stream, out: last });
        self.norm("decoder.ln", last, last)?;
        self.ops.push(Op::MatMul { x: last, weights: vec![embedding], accumulate: false, out: logits });
        Ok(Decoder { logits, layers, cross_queries })
    }

    /// A convolution of three taps over time, with GELU.
    fn convolution(
        &mut self,
        n: usize,
        x: BufferId,
        channels: usize,
        unfolded: BufferId,
        out: BufferId,
    ) -> Result<(), Error> {
        let width = self.config.width;
        let name = format!("encoder.conv{n}.weight");
        let tensor = self.find(&name, &[width, channels, 3])?;
        let weight = self.add(tensor, &[width, channels * 3], true)?;
        self.ops.push(Op::Unfold { x, taps: 3, out: unfolded });
        self.ops.push(Op::MatMul { x: unfolded, weights: vec![weight], accumulate: false, out });
        self.bias(&format!("encoder.conv{n}.bias"), out, 0, width)?;
        self.ops.push(Op::Activate { x: out, activation: Activation::Gelu });
        Ok(())
    }

    fn self_attention(
        &mut self,
        block: &str,
        b: Buffers,
        kv: KvLayer,
        heads: usize,
        span: Span,
    ) -> Result<(), Error> {
        let width = self.config.width;
        self.norm(&format!("{block}.attn_ln"), b.stream, b.normed)?;
        let [q, k, v] = ["query", "key", "value"].map(|part| format!("{block}.attn.{part}.weight"));
        let weights = vec![
            self.matrix(&q, width, width)?,
            self.matrix(&k, width, width)?,
            self.matrix(&v, width, width)?,
        ];
        self.ops.push(Op::MatMul { x: b.normed, weights, accumulate: false, out: b.qkv });
        // Keys have no bias.
        self.bias(&format!("{block}.attn.query.bias"), b.qkv, 0, width)?;
        self.bias(&format!("{block}.attn.value.bias"), b.qkv, 2 * width, width)?;
        let write =
            Op::RopeWrite { qkv: b.qkv, heads: heads as u16, kv, write: true, norms: None, rope: None };
        self.ops.push(write);
        self.attend(b.qkv, kv, heads, span, b.attended);
        self.project(&format!("{block}.attn.out"), b.attended, width, b.stream)
    }

    fn attend(&mut self, qkv: BufferId, kv: KvLayer, heads: usize, span: Span, out: BufferId) {
        let scale = ((self.config.width / heads) as f32).sqrt().recip();
        let heads = heads as u16;
        self.ops.push(Op::Attention { qkv, heads, kv, span, scale, soft_cap: None, sinks: None, out });
    }

    fn feed_forward(&mut self, block: &str, b: Buffers, hidden: BufferId, n: usize) -> Result<(), Error> {
        let width = self.config.width;
        self.norm(&format!("{block}.mlp_ln"), b.stream, b.normed)?;
        let up = self.matrix(&format!("{block}.mlp.0.weight"), n, width)?;
        self.ops.push(Op::MatMul { x: b.normed, weights: vec![up], accumulate: false, out: hidden });
        self.bias(&format!("{block}.mlp.0.bias"), hidden, 0, n)?;
        self.ops.push(Op::Activate { x: hidden, activation: Activation::Gelu });
        self.project(&format!("{block}.mlp.2"), hidden, n, b.stream)
    }

    /// A projection with a bias that is added to the stream.
    fn project(&mut self, name: &str, x: BufferId, n: usize, stream: BufferId) -> Result<(), Error> {
        let width = self.config.width;
        let weight = self.matrix(&format!("{name}.weight"), width, n)?;
        self.ops.push(Op::MatMul { x, weights: vec![weight], accumulate: true, out: stream });
        self.bias(&format!("{name}.bias"), stream, 0, width)
    }

    fn norm(&mut self, name: &str, x: BufferId, out: BufferId) -> Result<(), Error> {
        let width = self.config.width;
        let weight = self.vector(&format!("{name}.weight"), width)?;
        let bias = Some(self.vector(&format!("{name}.bias"), width)?);
        self.ops.push(Op::LayerNorm { x, weight, bias, eps: LAYER_NORM_EPS, out });
        Ok(())
    }

    fn bias(&mut self, name: &str, x: BufferId, first: usize, n: usize) -> Result<(), Error> {
        let bias = self.vector(name, n)?;
        self.ops.push(Op::Bias { x, first: first as u32, bias });
        Ok(())
    }

    fn buffer(&mut self, name: &'static str, width: usize, rows: Rows) -> BufferId {
        self.buffers.push(BufferSpec { name, width, rows });
        BufferId(self.buffers.len() as u16 - 1)
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightId, Error> {
        let tensor = self.find(name, &[rows, cols])?;
        self.add(tensor, &[rows, cols], true)
    }

    /// A table of positions, which is not quantised.
    fn table(&mut self, name: &str, rows: usize) -> Result<WeightId, Error> {
        let dims = [rows, self.config.width];
        let tensor = self.find(name, &dims)?;
        self.add(tensor, &dims, false)
    }

    fn vector(&mut self, name: &str, n: usize) -> Result<WeightId, Error> {
        let tensor = self.find(name, &[n])?;
        self.add(tensor, &[n], false)
    }

    fn name(&self, name: &str) -> String {
        match self.config.hugging_face {
            true => format!("{}{}", self.prefix, hugging_face(name)),
            false => name.to_owned(),
        }
    }

    /// A tensor of this shape. GGML files have the biases of convolutions as columns.
    fn find(&self, name: &str, dims: &[usize]) -> Result<TensorView<'a>, Error> {
        let name = self.name(name);
        let Some(tensor) = self.checkpoint.tensor(&name) else { return Err(Error::MissingTensor(name)) };
        let found = tensor.shape.dims();
        if found != dims && !matches!((found, dims), ([n, 1], [m]) if n == m) {
            let expected = Shape::new(dims).map_err(|e| Error::Unsupported(e.to_string()))?.to_string();
            return Err(Error::TensorShape { name, found: tensor.shape.to_string(), expected });
        }
        if !can_dequantize(tensor.dtype) {
            return Err(Error::TensorType { name, dtype: tensor.dtype });
        }
        Ok(tensor)
    }

    /// Adds a tensor as a weight of these dimensions, which have as many elements.
    fn add(&mut self, tensor: TensorView<'_>, dims: &[usize], is_matrix: bool) -> Result<WeightId, Error> {
        let shape = Shape::new(dims).map_err(|e| Error::Unsupported(e.to_string()))?;
        let fits = |dtype: &DType| is_matrix && dtype.bytes_of(&shape).is_ok();
        let dtype = match tensor.dtype.is_quantized() {
            true => tensor.dtype,
            false => self.quantize.filter(fits).unwrap_or(tensor.dtype),
        };
        // Rows of several taps may end within a block of a quantised file.
        if let Err(source) = dtype.bytes_of(&shape) {
            return Err(Error::Tensor { name: tensor.name.to_owned(), source });
        }
        self.used.insert(tensor.name.to_owned());
        let spec = WeightSpec::new(tensor.name, dtype, shape);
        // The embedding is also the output's matrix.
        if let Some(at) = self.weights.iter().position(|known| *known == spec) {
            return Ok(WeightId(at as u32));
        }
        self.weights.push(spec);
        Ok(WeightId(self.weights.len() as u32 - 1))
    }

    /// An unused tensor means that the model differs from this plan. Transformers may save the output's matrix, which is
    /// the embedding. The filters of a GGUF file are no part of the plan.
    fn check_all_used(&self) -> Result<(), Error> {
        let is_filters = |name: &str| name == MEL_FILTERS && self.checkpoint.gguf().is_some();
        let unused = |tensor: &TensorView<'_>| {
            let name = tensor.name;
            !self.used.contains(name) && name != "proj_out.weight" && !is_filters(name)
        };
        match self.checkpoint.tensors().find(unused) {
            Some(tensor) => Err(Error::UnusedTensor(tensor.name.to_owned())),
            None => Ok(()),
        }
    }
}

//! Plans of encoders with random weights: their layers have the ops and shapes of real ones.

use gyrus_kernels::{
    Activation, BufferId, BufferSpec, HIDDEN, KvGroup, KvLayer, LOGITS, Op, Output, Plan, Precision, Rows,
    Span, WeightId, WeightSpec,
};
use gyrus_tensor::{DType, Shape};

use crate::synthetic::{EncoderDims, SpeechDims};

/// Positions of a window of speech: 30 s in rows of two frames.
pub(super) const WINDOW: usize = 1500;

/// Positions of a decoder.
pub(super) const TEXT: usize = 448;

/// Positions of a text encoder.
pub(super) const POSITIONS: usize = 512;

/// The KV groups of a plan: an encoder's own, those of a decoder's attention to it, and a decoder's own.
const OWN: u8 = 0;
const CROSS: u8 = 1;
const DECODER: u8 = 2;

struct Builder {
    dims: EncoderDims,
    dtype: DType,
    buffers: Vec<BufferSpec>,
    weights: Vec<WeightSpec>,
}

/// The plan of an encoder: from features to keys and values of a decoder, or from tokens to hidden rows.
pub(super) fn plan(dims: EncoderDims, dtype: DType) -> anyhow::Result<Plan> {
    let mut b = Builder { dims, dtype, buffers: Vec::new(), weights: Vec::new() };
    let stream = b.buffer("stream", dims.width, Rows::Batch);
    let (encode, forward, output) = match dims.speech {
        Some(speech) => {
            let encode = b.listen(speech, stream)?;
            let (forward, logits) = b.decode(speech, stream)?;
            (encode, forward, Output { name: LOGITS, buffer: logits })
        }
        None => {
            let (forward, hidden) = b.read(stream)?;
            (Vec::new(), forward, Output { name: HIDDEN, buffer: hidden })
        }
    };
    let head_dim = dims.width / dims.heads;
    let group = |layers| KvGroup { layers, kv_heads: dims.heads, head_dim, window: None };
    // An encoder's layers share one layer's storage: nothing is read after the layer.
    let mut kv = vec![group(1)];
    if let Some(SpeechDims { decoder_layers, .. }) = dims.speech {
        kv.extend([group(decoder_layers); 2]);
    }
    Ok(Plan {
        precision: Precision::Fast,
        vocab: dims.vocab,
        buffers: b.buffers,
        weights: b.weights,
        ropes: Vec::new(),
        kv,
        delta: Vec::new(),
        encode,
        layers: Vec::new(),
        forward,
        outputs: vec![output],
    })
}

impl Builder {
    fn buffer(&mut self, name: &'static str, width: usize, rows: Rows) -> BufferId {
        self.buffers.push(BufferSpec { name, width, rows });
        BufferId(self.buffers.len() as u16 - 1)
    }

    fn weight(&mut self, name: &str, shape: &[usize]) -> anyhow::Result<WeightId> {
        let id = self.weights.len();
        let dtype = if shape.len() == 1 { DType::F32 } else { self.dtype };
        self.weights.push(WeightSpec::new(format!("blk.{id}.{name}"), dtype, Shape::new(shape)?));
        Ok(WeightId(id as u32))
    }

    /// A product with biases from these columns on.
    fn product(
        &mut self,
        ops: &mut Vec<Op>,
        name: &str,
        (x, out): (BufferId, BufferId),
        accumulate: bool,
        biases: &[usize],
    ) -> anyhow::Result<()> {
        let [n, k] = [out, x].map(|id| self.buffers[usize::from(id.0)].width);
        ops.push(Op::MatMul { x, weights: vec![self.weight(name, &[n, k])?], accumulate, out });
        for &first in biases {
            // Those of several projections side by side have the width of one each.
            let width = self.dims.width.min(n);
            let width = if biases.len() == 1 && first == 0 { n } else { width };
            let bias = self.weight("bias", &[width])?;
            ops.push(Op::Bias { x: out, first: first as u32, bias });
        }
        Ok(())
    }

    fn norm(&mut self, ops: &mut Vec<Op>, x: BufferId, out: BufferId) -> anyhow::Result<()> {
        let width = self.dims.width;
        let (weight, bias) = (self.weight("norm", &[width])?, Some(self.weight("bias", &[width])?));
        ops.push(Op::LayerNorm { x, weight, bias, eps: 1e-5, out });
        Ok(())
    }

    fn attention(&self, qkv: BufferId, kv: KvLayer, span: Span, out: BufferId) -> Op {
        let heads = self.dims.heads as u16;
        let scale = 1.0 / ((self.dims.width / self.dims.heads) as f32).sqrt();
        Op::Attention { qkv, heads, kv, span, scale, soft_cap: None, sinks: None, out }
    }

    fn write(&self, qkv: BufferId, heads: usize, kv: KvLayer) -> Op {
        Op::RopeWrite { qkv, heads: heads as u16, kv, write: true, norms: None, rope: None }
    }

    /// Whisper's encoder: two convolutions, layers with norms before their products, keys and values for the decoder.
    fn listen(&mut self, speech: SpeechDims, stream: BufferId) -> anyhow::Result<Vec<Op>> {
        let EncoderDims { width, layers, heads, ffn, .. } = self.dims;
        let features = self.buffer("features", speech.mels, Rows::Slots(2));
        let unfolded = self.buffer("unfolded", 3 * speech.mels, Rows::Slots(2));
        let first = self.buffer("convolved", width, Rows::Slots(2));
        let wide = self.buffer("unfolded again", 3 * width, Rows::Batch);
        let normed = self.buffer("normed", width, Rows::Batch);
        let qkv = self.buffer("qkv", 3 * width, Rows::Batch);
        let attended = self.buffer("attended", width, Rows::Batch);
        let up = self.buffer("up", ffn, Rows::Batch);
        let kv = self.buffer("kv", 2 * width, Rows::Batch);
        let gelu = |x| Op::Activate { x, activation: Activation::Gelu };
        let mut ops =
            vec![Op::Features { out: features }, Op::Unfold { x: features, taps: 3, out: unfolded }];
        self.product(&mut ops, "conv1", (unfolded, first), false, &[0])?;
        ops.extend([gelu(first), Op::Unfold { x: first, taps: 3, out: wide }]);
        self.product(&mut ops, "conv2", (wide, stream), false, &[0])?;
        ops.push(gelu(stream));
        let table = self.weight("positions", &[WINDOW, width])?;
        ops.push(Op::AddPositions { table, offset: 0, out: stream });
        let own = KvLayer { group: OWN, index: 0 };
        for _ in 0..layers {
            self.norm(&mut ops, stream, normed)?;
            self.product(&mut ops, "attn_qkv", (normed, qkv), false, &[0, 2 * width])?;
            ops.push(self.write(qkv, heads, own));
            ops.push(self.attention(qkv, own, Span::Whole, attended));
            self.product(&mut ops, "attn_output", (attended, stream), true, &[0])?;
            self.norm(&mut ops, stream, normed)?;
            self.product(&mut ops, "ffn_up", (normed, up), false, &[0])?;
            ops.push(gelu(up));
            self.product(&mut ops, "ffn_down", (up, stream), true, &[0])?;
        }
        self.norm(&mut ops, stream, stream)?;
        for index in 0..speech.decoder_layers as u16 {
            self.product(&mut ops, "cross_kv", (stream, kv), false, &[width])?;
            ops.push(self.write(kv, 0, KvLayer { group: CROSS, index }));
        }
        Ok(ops)
    }

    /// Whisper's decoder.
    fn decode(&mut self, speech: SpeechDims, stream: BufferId) -> anyhow::Result<(Vec<Op>, BufferId)> {
        let EncoderDims { width, heads, ffn, vocab, .. } = self.dims;
        let normed = self.buffer("decoder normed", width, Rows::Batch);
        let qkv = self.buffer("decoder qkv", 3 * width, Rows::Batch);
        let query = self.buffer("decoder query", width, Rows::Batch);
        let attended = self.buffer("decoder attended", width, Rows::Batch);
        let up = self.buffer("decoder up", ffn, Rows::Batch);
        let last = self.buffer("last", width, Rows::Logits);
        let logits = self.buffer("logits", vocab, Rows::Logits);
        let tokens = self.weight("tokens", &[vocab, width])?;
        let table = self.weight("positions", &[TEXT, width])?;
        let mut ops = vec![
            Op::Embed { table: tokens, scale: 1.0, out: stream },
            Op::AddPositions { table, offset: 0, out: stream },
        ];
        for index in 0..speech.decoder_layers as u16 {
            let own = KvLayer { group: DECODER, index };
            self.norm(&mut ops, stream, normed)?;
            self.product(&mut ops, "attn_qkv", (normed, qkv), false, &[0, 2 * width])?;
            ops.push(self.write(qkv, heads, own));
            ops.push(self.attention(qkv, own, Span::Causal, attended));
            self.product(&mut ops, "attn_output", (attended, stream), true, &[0])?;
            self.norm(&mut ops, stream, normed)?;
            self.product(&mut ops, "cross_q", (normed, query), false, &[0])?;
            ops.push(self.attention(query, KvLayer { group: CROSS, index }, Span::Whole, attended));
            self.product(&mut ops, "cross_output", (attended, stream), true, &[0])?;
            self.norm(&mut ops, stream, normed)?;
            self.product(&mut ops, "ffn_up", (normed, up), false, &[0])?;
            ops.push(Op::Activate { x: up, activation: Activation::Gelu });
            self.product(&mut ops, "ffn_down", (up, stream), true, &[0])?;
        }
        ops.push(Op::Gather { x: stream, out: last });
        self.norm(&mut ops, last, last)?;
        ops.push(Op::MatMul { x: last, weights: vec![tokens], accumulate: false, out: logits });
        Ok((ops, logits))
    }

    /// BERT: norms after residual connections, hidden rows of all tokens.
    fn read(&mut self, stream: BufferId) -> anyhow::Result<(Vec<Op>, BufferId)> {
        let EncoderDims { width, layers, heads, ffn, vocab, .. } = self.dims;
        let qkv = self.buffer("qkv", 3 * width, Rows::Batch);
        let attended = self.buffer("attended", width, Rows::Batch);
        let up = self.buffer("up", ffn, Rows::Batch);
        let hidden = self.buffer("hidden", width, Rows::Logits);
        let mut ops = vec![
            Op::Embed { table: self.weight("tokens", &[vocab, width])?, scale: 1.0, out: stream },
            Op::AddPositions {
                table: self.weight("positions", &[POSITIONS, width])?,
                offset: 0,
                out: stream,
            },
            Op::AddTypes { table: self.weight("types", &[2, width])?, out: stream },
        ];
        self.norm(&mut ops, stream, stream)?;
        let own = KvLayer { group: OWN, index: 0 };
        for _ in 0..layers {
            self.product(&mut ops, "attn_qkv", (stream, qkv), false, &[0])?;
            ops.push(self.write(qkv, heads, own));
            ops.push(self.attention(qkv, own, Span::Whole, attended));
            self.product(&mut ops, "attn_output", (attended, stream), true, &[0])?;
            self.norm(&mut ops, stream, stream)?;
            self.product(&mut ops, "ffn_up", (stream, up), false, &[0])?;
            ops.push(Op::Activate { x: up, activation: Activation::Gelu });
            self.product(&mut ops, "ffn_down", (up, stream), true, &[0])?;
            self.norm(&mut ops, stream, stream)?;
        }
        ops.push(Op::Gather { x: stream, out: hidden });
        Ok((ops, hidden))
    }
}

/// Operations of a pass over rows of which each attends to `seen` positions: two for each weight, and for each element of
/// keys and values.
pub(super) fn operations(plan: &Plan, ops: &[Op], rows: usize, seen: usize) -> f64 {
    let of = |op: &Op| match op {
        Op::MatMul { weights, out, .. } => {
            let elements: usize = weights.iter().map(|id| plan.weight(*id).shape.elems()).sum();
            2 * plan.buffer(*out).rows.of_each() * elements
        }
        Op::Attention { heads, kv, .. } => 4 * usize::from(*heads) * plan.kv_group(*kv).head_dim * seen,
        _ => 0,
    };
    rows as f64 * ops.iter().map(|op| of(op) as f64).sum::<f64>()
}

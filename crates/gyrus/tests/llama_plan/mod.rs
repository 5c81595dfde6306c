//! Plans of Llamas by their shape, without any weights.

use gyrus_kernels::{
    Activation, BufferId, BufferSpec, HeadNorms, KvGroup, KvLayer, LOGITS, Op, Output, Pairing, Plan,
    Precision, Rope, RopeId, RopeSpec, Rows, Span, WeightId, WeightSpec,
};
use gyrus_tensor::{DType, Shape};

/// The shape of a Llama, and the element types of its weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Llama {
    pub(crate) precision: Precision,
    pub(crate) vocab: usize,
    pub(crate) dim: usize,
    pub(crate) ffn: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) layers: usize,
    pub(crate) window: Option<u32>,
    pub(crate) head_norms: bool,
    /// Of the embedding, which is the output matrix too.
    pub(crate) embedding: DType,
    /// Of Q and K, of V, and of all other matrices.
    pub(crate) qk: DType,
    pub(crate) v: DType,
    pub(crate) others: DType,
}

impl Llama {
    /// Llama-3.2-1B with fewer layers, in 4 bits.
    pub(crate) const LLAMA_1B: Llama = Llama {
        precision: Precision::Fast,
        vocab: 128_256,
        dim: 2048,
        ffn: 8192,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        layers: 2,
        window: None,
        head_norms: false,
        embedding: DType::Q6_K,
        qk: DType::Q4_0,
        v: DType::Q4_0,
        others: DType::Q4_0,
    };

    /// SmolLM2-135M in Q4_1.
    pub(crate) const SMOLLM2: Llama = Llama {
        vocab: 49_152,
        dim: 576,
        ffn: 1536,
        heads: 9,
        kv_heads: 3,
        layers: 30,
        embedding: DType::Q8_0,
        qk: DType::Q4_1,
        v: DType::Q4_1,
        others: DType::Q4_1,
        ..Llama::LLAMA_1B
    };

    /// The forward pass, as `gyrus` builds it for such a model.
    pub(crate) fn plan(&self) -> Plan {
        let kv = KvGroup {
            layers: self.layers,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: self.window,
        };
        let (q, k) = (self.heads * self.head_dim, kv.row());
        let mut weights = Vec::new();
        let mut weight = |name: String, dtype: DType, shape: &[usize]| {
            weights.push(WeightSpec::new(name, dtype, Shape::new(shape).unwrap()));
            WeightId(weights.len() as u32 - 1)
        };
        let buffers = [
            ("stream", self.dim, Rows::Batch),
            ("normed", self.dim, Rows::Batch),
            ("qkv", q + 2 * k, Rows::Batch),
            ("attended", q, Rows::Batch),
            ("gate_up", 2 * self.ffn, Rows::Batch),
            ("gated", self.ffn, Rows::Batch),
            ("last", self.dim, Rows::Logits),
            ("logits", self.vocab, Rows::Logits),
        ];
        let [stream, normed, qkv, attended, gate_up, gated, last, logits] =
            [0, 1, 2, 3, 4, 5, 6, 7].map(BufferId);
        let table = weight("token_embd.weight".to_owned(), self.embedding, &[self.vocab, self.dim]);
        let eps = 1e-5;
        let mut ops = vec![Op::Embed { table, scale: 1.0, out: stream }];
        for layer in 0..self.layers {
            let mut weight = |part: &str, dtype: DType, shape: &[usize]| {
                weight(format!("blk.{layer}.{part}.weight"), dtype, shape)
            };
            let norm = weight("attn_norm", DType::F32, &[self.dim]);
            ops.push(Op::RmsNorm { x: stream, weight: norm, eps, out: normed });
            let matrices = vec![
                weight("attn_q", self.qk, &[q, self.dim]),
                weight("attn_k", self.qk, &[k, self.dim]),
                weight("attn_v", self.v, &[k, self.dim]),
            ];
            ops.push(Op::MatMul { x: normed, weights: matrices, accumulate: false, out: qkv });
            let norms = self.head_norms.then(|| {
                let q = weight("attn_q_norm", DType::F32, &[self.head_dim]);
                let k = Some(weight("attn_k_norm", DType::F32, &[self.head_dim]));
                HeadNorms { q, k, v: None, eps }
            });
            let (heads, kv) = (self.heads as u16, KvLayer { group: 0, index: layer as u16 });
            ops.push(Op::RopeWrite { qkv, heads, kv, write: true, norms, rope: Some(RopeId(0)) });
            let scale = 1.0 / (self.head_dim as f32).sqrt();
            ops.push(Op::Attention {
                qkv,
                heads,
                kv,
                span: Span::Causal,
                scale,
                soft_cap: None,
                sinks: None,
                out: attended,
            });
            let output = weight("attn_output", self.others, &[self.dim, q]);
            ops.push(Op::MatMul { x: attended, weights: vec![output], accumulate: true, out: stream });
            let norm = weight("ffn_norm", DType::F32, &[self.dim]);
            ops.push(Op::RmsNorm { x: stream, weight: norm, eps, out: normed });
            let matrices = vec![
                weight("ffn_gate", self.others, &[self.ffn, self.dim]),
                weight("ffn_up", self.others, &[self.ffn, self.dim]),
            ];
            ops.push(Op::MatMul { x: normed, weights: matrices, accumulate: false, out: gate_up });
            ops.push(Op::Gate { x: gate_up, activation: Activation::Silu, out: gated });
            let down = weight("ffn_down", self.others, &[self.dim, self.ffn]);
            ops.push(Op::MatMul { x: gated, weights: vec![down], accumulate: true, out: stream });
        }
        ops.push(Op::Gather { x: stream, out: last });
        let norm = weight("output_norm.weight".to_owned(), DType::F32, &[self.dim]);
        ops.push(Op::RmsNorm { x: last, weight: norm, eps, out: last });
        ops.push(Op::MatMul { x: last, weights: vec![table], accumulate: false, out: logits });
        Plan {
            precision: self.precision,
            vocab: self.vocab,
            buffers: buffers
                .into_iter()
                .map(|(name, width, rows)| BufferSpec { name, width, rows })
                .collect(),
            weights,
            ropes: vec![Rope::new(RopeSpec::new(Pairing::Adjacent, self.head_dim, 5e5)).unwrap()],
            delta: Vec::new(),
            kv: vec![kv],
            encode: Vec::new(),
            forward: ops,
            layers: Vec::new(),
            outputs: vec![Output { name: LOGITS, buffer: logits }],
        }
    }
}

/// The ops of a plan's first layers, and those before and after all layers.
pub(crate) fn first_layers(plan: &Plan, count: u16) -> Vec<Op> {
    let layers = plan.forward.iter().filter(|op| matches!(op, Op::RopeWrite { .. })).count();
    // Embed comes before the layers; gather, norm and product after them.
    let each = (plan.forward.len() - 4) / layers;
    let last = plan.forward.len() - 3;
    plan.forward[..1 + each * usize::from(count)].iter().chain(&plan.forward[last..]).cloned().collect()
}

use std::fmt;

use gyrus_tensor::{DType, Shape};

use crate::op::{BufferId, Op, WeightId};
use crate::rope::Rope;

/// The precision a plan computes with; the same on every backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Precision {
    /// `f32` activations, cache and sums: exact up to the order of sums.
    Exact,
    /// int8 or f16 activations, f16 cache, `f32` sums.
    Fast,
}

/// How many rows a buffer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// As many as the batch.
    Batch,
    /// As many as rows with logits.
    Logits,
}

/// A scratch buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferSpec {
    /// What it holds, for display.
    pub name: &'static str,
    /// Elements per row.
    pub width: usize,
    /// How many rows.
    pub rows: Rows,
}

/// The description of a weight tensor. The backend has its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSpec {
    /// The name in the model's file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Axes, outermost first.
    pub shape: Shape,
}

/// The KV cache a plan writes and reads, and the heads its attention has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvSpec {
    /// Attention layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; `heads` is a multiple.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

impl KvSpec {
    /// Elements of K (and of V) that one position takes in one layer.
    pub fn row(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of all queries of a row.
    pub fn q_width(&self) -> usize {
        self.heads * self.head_dim
    }
}

/// A forward pass as a flat table, in two segments: *forward* ends with logits, *select* with tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What the ops compute with.
    pub precision: Precision,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Scratch buffers by [`BufferId`].
    pub buffers: Vec<BufferSpec>,
    /// Weights by [`WeightId`].
    pub weights: Vec<WeightSpec>,
    /// Rotary embeddings by [`crate::RopeId`].
    pub ropes: Vec<Rope>,
    /// The KV cache.
    pub kv: KvSpec,
    /// From token ids to logits.
    pub forward: Vec<Op>,
    /// From logits to tokens.
    pub select: Vec<Op>,
    /// Where *forward* leaves the logits.
    pub logits: BufferId,
}

impl Plan {
    /// A buffer's description.
    pub fn buffer(&self, id: BufferId) -> &BufferSpec {
        &self.buffers[id.0 as usize]
    }

    /// A weight's description.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0 as usize]
    }

    /// An op as a line of text.
    pub fn line<'a>(&'a self, op: &'a Op) -> impl fmt::Display + 'a {
        Line { plan: self, op }
    }

    /// Element type of the cache.
    pub fn kv_dtype(&self) -> DType {
        match self.precision {
            Precision::Exact => DType::F32,
            Precision::Fast => DType::F16,
        }
    }

    /// Bytes of cache that one position takes over all layers.
    pub fn kv_bytes_per_token(&self) -> usize {
        2 * self.kv.layers * self.kv.row() * self.kv_dtype().block_bytes()
    }
}

impl fmt::Display for Plan {
    /// The table as text, one op a line, for snapshots.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KvSpec { layers, heads, kv_heads, head_dim } = self.kv;
        writeln!(f, "{:?}, vocabulary {}", self.precision, self.vocab)?;
        writeln!(f, "kv {layers} layers, {heads}/{kv_heads} heads of {head_dim}, {}", self.kv_dtype())?;
        for (i, rope) in self.ropes.iter().enumerate() {
            writeln!(f, "rope {i}: {rope}")?;
        }
        for (i, buffer) in self.buffers.iter().enumerate() {
            writeln!(f, "b{i} {}: {:?} × {}", buffer.name, buffer.rows, buffer.width)?;
        }
        for (segment, ops) in [("forward", &self.forward), ("select", &self.select)] {
            writeln!(f, "{segment}:")?;
            for op in ops {
                writeln!(f, "  {}", self.line(op))?;
            }
        }
        Ok(())
    }
}

struct Line<'a> {
    plan: &'a Plan,
    op: &'a Op,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = |id: &WeightId| {
            let spec = self.plan.weight(*id);
            format!("{} {} [{}]", spec.name, spec.dtype, spec.shape)
        };
        match self.op {
            Op::Embed { table, scale, out } => write!(f, "{out} = embed {} × {scale}", weight(table)),
            Op::RmsNorm { x, weight: w, eps, out } => {
                write!(f, "{out} = rms_norm {x}, {} eps {eps:e}", weight(w))
            }
            Op::MatMul { x, weights, accumulate, out } => {
                let all: Vec<String> = weights.iter().map(weight).collect();
                let sign = if *accumulate { "+=" } else { "=" };
                write!(f, "{out} {sign} {x} · {}", all.join(" | "))
            }
            Op::RopeWrite { qkv, layer, head_norm, rope } => {
                write!(f, "rope_write {qkv} layer {layer} rope {}", rope.0)?;
                match head_norm {
                    Some((q, k, eps)) => write!(f, ", head norms {}, {} eps {eps:e}", weight(q), weight(k)),
                    None => Ok(()),
                }
            }
            Op::Attention { qkv, layer, scale, window, out } => {
                write!(f, "{out} = attention {qkv} layer {layer} × {scale}")?;
                window.map_or(Ok(()), |w| write!(f, ", window {w}"))
            }
            Op::Gate { x, activation, out } => write!(f, "{out} = {activation:?} gate {x}"),
            Op::Gather { x, out } => write!(f, "{out} = gather {x}"),
            Op::Select { logits } => write!(f, "select {logits}"),
        }
    }
}

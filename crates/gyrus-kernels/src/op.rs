use std::fmt;

/// A scratch buffer of a plan: `[rows, width]` in `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u16);

/// A weight tensor of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// One of a plan's rotary embeddings; layers may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeId(pub u8);

/// The function between the two halves of a gated feed-forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x·sigmoid(x)`.
    Silu,
    /// The tanh approximation of GELU.
    GeluTanh,
}

/// One op of a plan. Widths of buffers and shapes of weights are in the plan's tables.
///
/// Every op treats rows independently: a row's result depends on that row and, in attention, on its own
/// sequence's cache.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// `out[r] = scale · table[token[r]]`, `table: [vocab, width]`.
    Embed {
        /// The embedding matrix.
        table: WeightId,
        /// A factor, 1 for most models.
        scale: f32,
        /// `[rows, width]`.
        out: BufferId,
    },
    /// `out[r] = x[r] / rms(x[r]) · weight`, with `rms(x) = √(mean(x²) + eps)`.
    RmsNorm {
        /// `[rows, width]`.
        x: BufferId,
        /// `[width]`.
        weight: WeightId,
        /// Added to the mean square.
        eps: f32,
        /// `[rows, width]`, may be `x`.
        out: BufferId,
    },
    /// `out[r] = W·x[r]`, or `out[r] += W·x[r]`. Several weights `[n_i, k]` write their outputs side by side.
    MatMul {
        /// `[rows, k]`.
        x: BufferId,
        /// Each `[n_i, k]`.
        weights: Vec<WeightId>,
        /// Whether to add to `out`: the residual connection.
        accumulate: bool,
        /// `[rows, Σ n_i]`.
        out: BufferId,
    },
    /// Prepares attention: normalises each head of Q and K if the model does, rotates them by their position, and
    /// writes K and V to the cache. Q stays in `qkv`.
    RopeWrite {
        /// `[rows, (heads + 2·kv_heads)·head_dim]`: Q, K, V side by side.
        qkv: BufferId,
        /// Index into the KV cache.
        layer: u16,
        /// Weights `[head_dim]` and epsilon of the per-head RMS norms of Q and K.
        head_norm: Option<(WeightId, WeightId, f32)>,
        /// Which rotary embedding.
        rope: RopeId,
    },
    /// `out[r] = softmax(scale · q·K)·V` for each head, over the row's own sequence: positions up to its own and, with
    /// a window, only the last `window` of them.
    Attention {
        /// As [`Op::RopeWrite`] left it; only Q is read.
        qkv: BufferId,
        /// Index into the KV cache.
        layer: u16,
        /// Factor on the scores.
        scale: f32,
        /// The attention window: positions a row attends to, its own included; all if absent.
        window: Option<u32>,
        /// `[rows, heads·head_dim]`.
        out: BufferId,
    },
    /// `out[r][i] = f(x[r][i]) · x[r][n + i]`, `x: [rows, 2n]`, `out: [rows, n]`.
    Gate {
        /// Gate and up projections side by side.
        x: BufferId,
        /// Which function.
        activation: Activation,
        /// `[rows, n]`.
        out: BufferId,
    },
    /// Copies the rows whose logits are wanted: `out[i] = x[logits[i]]`.
    Gather {
        /// `[rows, width]`.
        x: BufferId,
        /// `[logits, width]`.
        out: BufferId,
    },
    /// Draws one token for each logits row with that row's [`crate::Sampler`].
    Select {
        /// `[logits, vocab]`.
        logits: BufferId,
    },
}

impl Op {
    /// The buffers it reads.
    pub fn reads(&self) -> [Option<BufferId>; 2] {
        match *self {
            Op::Embed { .. } => [None, None],
            Op::RmsNorm { x, .. } | Op::Gate { x, .. } | Op::Gather { x, .. } => [Some(x), None],
            Op::MatMul { x, accumulate, out, .. } => [Some(x), accumulate.then_some(out)],
            Op::RopeWrite { qkv, .. } | Op::Attention { qkv, .. } => [Some(qkv), None],
            Op::Select { logits } => [Some(logits), None],
        }
    }

    /// The buffer it writes.
    pub fn writes(&self) -> Option<BufferId> {
        match *self {
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::MatMul { out, .. }
            | Op::Attention { out, .. }
            | Op::Gate { out, .. }
            | Op::Gather { out, .. } => Some(out),
            Op::RopeWrite { qkv, .. } => Some(qkv),
            Op::Select { .. } => None,
        }
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b{}", self.0)
    }
}

impl fmt::Display for WeightId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "w{}", self.0)
    }
}

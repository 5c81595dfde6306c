use std::fmt;
use std::ops::Range;

use crate::delta::DeltaLayer;
use crate::kv::KvLayer;

/// A scratch buffer of a plan: `[rows, width]` in `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u16);

/// A weight tensor of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// One of a plan's rotary embeddings; layers may differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RopeId(pub u8);

/// The function of a feed-forward layer or of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x·sigmoid(x)`.
    Silu,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// GELU: `x` times the normal distribution function at `x`.
    Gelu,
    /// `max(x, 0)²`.
    SquaredRelu,
    /// `g·sigmoid(1.702·g)` of a gate `g` that is at most 7. The factor on it is `u + 1`, with `u` within ±7.
    ClampedSwish,
    /// `1 / (1 + e⁻ˣ)`: of gates, not of feed-forward layers.
    Sigmoid,
    /// `max(x, 0)`.
    Relu,
    /// The hyperbolic tangent: of the heads of classifiers.
    Tanh,
}

/// Which positions of its sequence a row attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Span {
    /// Those up to its own and, with the window of the KV group, only the last of them.
    Causal,
    /// All that the batch's [extent](crate::Inputs::extents) of the sequence has in the KV group: encoders, and attention of
    /// a decoder to what an encoder wrote.
    Whole,
    /// Those of the extent that are at most this far away from its own, on both sides.
    Around(u32),
}

impl Span {
    /// The positions that a row attends to. `extent` is not read by [`Span::Causal`], `window` only by it, `position` not by
    /// [`Span::Whole`].
    pub fn seen(self, position: u32, window: Option<u32>, extent: u32) -> Range<u32> {
        let range = match self {
            Span::Causal => {
                window.map_or(0, |window| (position + 1).saturating_sub(window))..position.saturating_add(1)
            }
            Span::Whole => 0..extent,
            Span::Around(reach) => {
                position.saturating_sub(reach)..position.saturating_add(reach).saturating_add(1).min(extent)
            }
        };
        range.start.min(range.end)..range.end
    }

    /// Whether it reads the batch's extents.
    pub fn reads_extents(self) -> bool {
        self != Span::Causal
    }
}

/// Which experts the weights of a router are a softmax over. Weights of all experts that are divided by the sum of the
/// chosen ones are those of the chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouteWeights {
    /// All of them, so that the chosen ones' weights add up to less than 1.
    All,
    /// The chosen ones.
    Chosen,
}

/// The RMS norms of heads before they are rotated. Weights are `[head_dim]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadNorms {
    /// The weight of every query head's norm.
    pub q: WeightId,
    /// The weight of every key head's norm; absent if the op has no keys.
    pub k: Option<WeightId>,
    /// The weight of every value head's norm; values are not normalised if absent.
    pub v: Option<WeightId>,
    /// Added to the mean square.
    pub eps: f32,
}

/// One op of a plan. Widths of buffers and shapes of weights are in the plan's tables.
///
/// Every op treats rows independently: a row's result depends on that row and, in attention, on its own
/// sequence's cache. In the ops of Gated DeltaNet it depends on the rows of its sequence before it, by their state.
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
    /// Copies the batch's features: the source of a plan that has no tokens.
    Features {
        /// `[rows, width]`, or several for each row of the batch.
        out: BufferId,
    },
    /// `out[r] += table[position[r] + offset]`: learned positions.
    AddPositions {
        /// `[positions, width]`.
        table: WeightId,
        /// The entry of position 0. RoBERTa's tables begin with two entries that no text has.
        offset: u32,
        /// `[rows, width]`.
        out: BufferId,
    },
    /// `out[r] += table[type[r]]`: the first and the second text of a pair have different types.
    AddTypes {
        /// `[types, width]`.
        table: WeightId,
        /// `[rows, width]`.
        out: BufferId,
    },
    /// Gathers the inputs of a convolution over the rows of each sequence, so that a matrix product computes it:
    /// `out[r][c·taps + t] = x[r·stride + t − taps / 2][c]`, and 0 where the sequence has no such row.
    ///
    /// A weight of `[channels_out, channels_in, taps]` is the matrix of that product as its file has it. The stride is the
    /// number of rows of `x` for one of `out`. The rows of a sequence are adjacent and begin with position 0.
    Unfold {
        /// `[rows·stride, channels]`.
        x: BufferId,
        /// How many rows of `x` a row of `out` has; odd.
        taps: u16,
        /// `[rows, channels·taps]`.
        out: BufferId,
    },
    /// `out[r] = (x[r] − mean(x[r])) / √(variance(x[r]) + eps) · weight + bias`.
    LayerNorm {
        /// `[rows, width]`.
        x: BufferId,
        /// `[width]`.
        weight: WeightId,
        /// `[width]`.
        bias: Option<WeightId>,
        /// Added to the variance, the mean of squared differences.
        eps: f32,
        /// `[rows, width]`, may be `x`.
        out: BufferId,
    },
    /// `out[r] = x[r] / rms(x[r]) · weight`, with `rms(x) = √(mean(x²) + eps)`.
    ///
    /// If the weight is shorter than a row, each part of a row that has its length is normalised on its own.
    RmsNorm {
        /// `[rows, width]`.
        x: BufferId,
        /// `[n]`, `width` is a multiple of `n`.
        weight: WeightId,
        /// Added to the mean square.
        eps: f32,
        /// `[rows, width]`, may be `x`.
        out: BufferId,
    },
    /// The RMS norm of some columns of a buffer, in place: OLMo 2 normalises all heads of Q together, and those of K.
    NormColumns {
        /// `[rows, width]`.
        x: BufferId,
        /// The first column.
        first: u32,
        /// `[columns]`.
        weight: WeightId,
        /// Added to the mean square.
        eps: f32,
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
    /// `x[r][first + i] += bias[i]`.
    Bias {
        /// `[rows, width]`.
        x: BufferId,
        /// The first column.
        first: u32,
        /// `[n]`.
        bias: WeightId,
    },
    /// `out[r] += scale · x[r]`: the residual connection where a norm or a factor is before it.
    Add {
        /// `[rows, width]`.
        x: BufferId,
        /// A factor on `x`.
        scale: f32,
        /// `[rows, width]`.
        out: BufferId,
    },
    /// `x[r] *= factor`.
    Scale {
        /// `[rows, width]`.
        x: BufferId,
        /// The factor.
        factor: f32,
    },
    /// `x = cap · tanh(x / cap)`.
    SoftCap {
        /// `[rows, width]`.
        x: BufferId,
        /// The largest magnitude of a result.
        cap: f32,
    },
    /// Prepares attention: normalises each head if the model does, rotates Q and K by their position, and writes K and V
    /// to the cache. Q stays in `qkv`.
    RopeWrite {
        /// `[rows, (heads + 2·kv_heads)·head_dim]`: Q, K, V side by side. Q alone if nothing is written. Columns after
        /// these are not touched.
        qkv: BufferId,
        /// Query heads. 0 if `qkv` has K and V alone: those of a decoder's attention to an encoder's rows.
        heads: u16,
        /// Where K and V are written, or, if they are not, the layer whose keys are attended to. It has the numbers of
        /// KV heads and of a head's elements.
        kv: KvLayer,
        /// Whether `qkv` has K and V, which are written.
        write: bool,
        /// The norms of heads.
        norms: Option<HeadNorms>,
        /// Which rotary embedding; heads are not rotated if absent.
        rope: Option<RopeId>,
    },
    /// `out[r] = softmax(scale · q·K)·V` for each head, over the positions of the row's own sequence that its span has;
    /// zeros if there are none.
    Attention {
        /// As [`Op::RopeWrite`] left it; only Q is read.
        qkv: BufferId,
        /// Query heads, a multiple of the group's KV heads.
        heads: u16,
        /// The keys and values. They may be of an earlier layer, or of an earlier pass.
        kv: KvLayer,
        /// Which positions the row attends to.
        span: Span,
        /// Factor on the scores.
        scale: f32,
        /// Scores become `soft_cap · tanh(score / soft_cap)`.
        soft_cap: Option<f32>,
        /// `[heads]`: a score of each head that joins the softmax and has no value. Neither scale nor cap apply to it.
        sinks: Option<WeightId>,
        /// `[rows, heads·head_dim]`.
        out: BufferId,
    },
    /// Chooses the experts of each row: those with the largest logits, of equal ones the lowest id first.
    ///
    /// If a logit of a row is not finite, the row's ids are `0..used` and its weights NaN, so that its logits are an error.
    Route {
        /// `[rows, experts]`.
        logits: BufferId,
        /// How many are chosen.
        used: u16,
        /// What the weights are a softmax over.
        weights: RouteWeights,
        /// `[experts]`: a factor on the weight of each.
        scale: Option<WeightId>,
        /// `[rows, 2·used]`: the ids as numbers, in the order of descending logits, then their weights.
        out: BufferId,
    },
    /// `out[r·used + s] = W[e]·x + bias[e]` with the expert `e` of each slot `s` of a row, as [`Op::Route`] left it. Several
    /// weights `[experts, n_i, k]` write their outputs side by side.
    ExpertMatMul {
        /// `[rows, k]`: every slot multiplies the row. Or `[rows·used, k]`: each slot multiplies its own.
        x: BufferId,
        /// `[rows, 2·used]`.
        route: BufferId,
        /// Each `[experts, n_i, k]`.
        weights: Vec<WeightId>,
        /// None, or for each weight one `[experts·n_i]`.
        biases: Vec<WeightId>,
        /// `[rows·used, Σ n_i]`.
        out: BufferId,
    },
    /// `out[r] = Σ_s weight[r][s]·x[r·used + s]`, or `+=`. The sum is in the order of slots.
    ExpertSum {
        /// `[rows·used, width]`.
        x: BufferId,
        /// `[rows, 2·used]`.
        route: BufferId,
        /// Whether to add to `out`: the residual connection.
        accumulate: bool,
        /// `[rows, width]`.
        out: BufferId,
    },
    /// `out[r] += sigmoid(gate[r])·x[r]`: an expert that every row has.
    AddGated {
        /// `[rows, width]`.
        x: BufferId,
        /// `[rows, 1]`.
        gate: BufferId,
        /// `[rows, width]`.
        out: BufferId,
    },
    /// `x[r][i] = f(x[r][i])`.
    Activate {
        /// `[rows, n]`.
        x: BufferId,
        /// Which function.
        activation: Activation,
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
    /// `x[r][i] = f(x[r][i]) · by[r][first + i]`.
    GateBy {
        /// `[rows, n]`.
        x: BufferId,
        /// Which function.
        activation: Activation,
        /// `[rows, width]`.
        by: BufferId,
        /// The first column of `by`.
        first: u32,
    },
    /// `x[r][i] *= f(by[r][first + i])`.
    MulBy {
        /// `[rows, n]`.
        x: BufferId,
        /// Which function.
        activation: Activation,
        /// `[rows, width]`.
        by: BufferId,
        /// The first column of `by`.
        first: u32,
    },
    /// Prepares the rows of Gated DeltaNet: a causal convolution of each channel over the sequence's rows, SiLU, the L2
    /// norm of query and key heads, queries times `1 / √key_dim`, and the gates of each value head:
    /// `sigmoid(b)` and `exp(a · softplus(alpha + bias))`.
    ///
    /// The state of the convolution is read here and written by [`Op::DeltaRule`].
    DeltaConv {
        /// Projections: the channels, the output gate (not read), `b` and `alpha` of each value head.
        x: BufferId,
        /// The shape and the state.
        layer: DeltaLayer,
        /// `[channels · CONV_TAPS]`, the taps of a channel together, the oldest input first.
        taps: WeightId,
        /// `[value_heads]`.
        a: WeightId,
        /// `[value_heads]`.
        bias: WeightId,
        /// Whether `a` is stored as a logarithm: `-exp` of it is to be used.
        a_is_log: bool,
        /// Queries, keys and values, the sigmoid and the decay of each value head.
        out: BufferId,
    },
    /// The gated delta rule of each value head over the sequence's rows, with the state `S` of `[key_dim, value_dim]`:
    /// `S = S · decay`, `u = (v − Sᵀk) · beta`, `S = S + k ⊗ u`, `out = Sᵀq`. It writes the state of the last row.
    DeltaRule {
        /// As [`Op::DeltaConv`] read it: the last inputs of the convolution are part of the state.
        x: BufferId,
        /// As [`Op::DeltaConv`] wrote it.
        prepared: BufferId,
        /// The shape and the state.
        layer: DeltaLayer,
        /// `[rows, value_heads·value_dim]`.
        out: BufferId,
    },
    /// Copies the rows whose logits are wanted: `out[i] = x[logits[i]]`.
    Gather {
        /// `[rows, width]`.
        x: BufferId,
        /// `[logits, width]`.
        out: BufferId,
    },
}

impl Op {
    /// What it is, for errors.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embedding",
            Op::Features { .. } => "feature input",
            Op::AddPositions { .. } => "learned positions",
            Op::AddTypes { .. } => "token types",
            Op::Unfold { .. } => "convolution",
            Op::LayerNorm { .. } => "layer norm",
            Op::RmsNorm { .. } | Op::NormColumns { .. } => "RMS norm",
            Op::MatMul { .. } => "matrix product",
            Op::Bias { .. } => "bias",
            Op::Add { .. } => "addition",
            Op::Scale { .. } => "factor",
            Op::SoftCap { .. } => "soft cap",
            Op::RopeWrite { .. } => "write to the KV cache",
            Op::Attention { span: Span::Causal, .. } => "attention",
            Op::Attention { .. } => "attention that is not causal",
            Op::Route { .. } => "choice of experts",
            Op::ExpertMatMul { .. } => "matrix product of experts",
            Op::ExpertSum { .. } | Op::AddGated { .. } => "sum of experts",
            Op::Activate { .. } => "activation",
            Op::Gate { .. } | Op::GateBy { .. } | Op::MulBy { .. } => "gate",
            Op::DeltaConv { .. } | Op::DeltaRule { .. } => "Gated DeltaNet",
            Op::Gather { .. } => "gather",
        }
    }

    /// The buffers it reads.
    pub fn reads(&self) -> [Option<BufferId>; 3] {
        match *self {
            Op::Embed { .. } | Op::Features { .. } => [None; 3],
            Op::RmsNorm { x, .. }
            | Op::LayerNorm { x, .. }
            | Op::Unfold { x, .. }
            | Op::Activate { x, .. }
            | Op::AddPositions { out: x, .. }
            | Op::AddTypes { out: x, .. }
            | Op::NormColumns { x, .. }
            | Op::Bias { x, .. }
            | Op::Scale { x, .. }
            | Op::SoftCap { x, .. }
            | Op::Gate { x, .. }
            | Op::Route { logits: x, .. }
            | Op::DeltaConv { x, .. }
            | Op::Gather { x, .. } => [Some(x), None, None],
            Op::MatMul { x, accumulate, out, .. } => [Some(x), accumulate.then_some(out), None],
            Op::Add { x, out, .. } => [Some(x), Some(out), None],
            Op::GateBy { x, by, .. } | Op::MulBy { x, by, .. } => [Some(x), Some(by), None],
            Op::DeltaRule { x, prepared, .. } => [Some(x), Some(prepared), None],
            Op::ExpertMatMul { x, route, .. } => [Some(x), Some(route), None],
            Op::ExpertSum { x, route, accumulate, out } => [Some(x), Some(route), accumulate.then_some(out)],
            Op::AddGated { x, gate, out } => [Some(x), Some(gate), Some(out)],
            Op::RopeWrite { qkv, .. } | Op::Attention { qkv, .. } => [Some(qkv), None, None],
        }
    }

    /// The buffer it writes.
    pub fn writes(&self) -> BufferId {
        match *self {
            Op::Embed { out, .. }
            | Op::Features { out }
            | Op::AddPositions { out, .. }
            | Op::AddTypes { out, .. }
            | Op::Unfold { out, .. }
            | Op::LayerNorm { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::MatMul { out, .. }
            | Op::Add { out, .. }
            | Op::Attention { out, .. }
            | Op::Route { out, .. }
            | Op::ExpertMatMul { out, .. }
            | Op::ExpertSum { out, .. }
            | Op::AddGated { out, .. }
            | Op::Gate { out, .. }
            | Op::DeltaConv { out, .. }
            | Op::DeltaRule { out, .. }
            | Op::Gather { out, .. } => out,
            Op::NormColumns { x, .. }
            | Op::Bias { x, .. }
            | Op::Scale { x, .. }
            | Op::SoftCap { x, .. }
            | Op::Activate { x, .. }
            | Op::GateBy { x, .. }
            | Op::MulBy { x, .. } => x,
            Op::RopeWrite { qkv, .. } => qkv,
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

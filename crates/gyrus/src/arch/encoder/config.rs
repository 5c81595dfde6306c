use gyrus_kernels::{Activation, Rope, Span};

/// A text encoder as plain data: what its forward pass is built from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EncoderConfig {
    /// The architecture's name in the file.
    pub(crate) architecture: String,
    /// Width of the residual stream.
    pub(crate) dim: usize,
    /// The most tokens of a text, special tokens included.
    pub(crate) context: usize,
    /// Attention heads.
    pub(crate) heads: usize,
    /// The hidden dimension of the feed-forward.
    pub(crate) feed_forward: usize,
    /// Epsilon of the layer norms.
    pub(crate) norm_eps: f32,
    /// The function of the feed-forward, or of its gate.
    pub(crate) activation: Activation,
    /// Whether the feed-forward has a gate.
    pub(crate) gated: bool,
    /// Whether norms are before attention and feed-forward, with one more after the last layer. If not, the residual
    /// stream is normalised after each of them.
    pub(crate) pre_norms: bool,
    /// The entry of the table of learned positions that position 0 has; absent if positions are rotary.
    pub(crate) first_position: Option<usize>,
    /// The rotary embeddings; layers name them by index.
    pub(crate) ropes: Vec<Rope>,
    /// The layers.
    pub(crate) layers: Vec<EncoderLayer>,
}

/// One layer of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EncoderLayer {
    /// Which positions a row attends to.
    pub(crate) span: Span,
    /// Which of the rotary embeddings, if heads are rotated.
    pub(crate) rope: Option<usize>,
}

/// The head of a classifier, which a reranker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadKind {
    /// A dense layer with tanh, then the output: BERT's pooler, and RoBERTa's head.
    Tanh,
    /// A dense layer with an activation and a norm, then the output: ModernBERT.
    Norm,
    /// The output alone.
    Plain,
}

use gyrus_kernels::{Activation, DeltaShape, Rope, RouteWeights};

use crate::Error;

/// A decoder-only transformer as plain data: what its forward pass is built from.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The architecture's name in the file.
    pub architecture: String,
    /// Width of the residual stream.
    pub dim: usize,
    /// The maximum context in tokens.
    pub context: usize,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// Factor on what a layer's attention and feed-forward add to the residual stream.
    pub residual_scale: f32,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// Logits become `cap · tanh(logits / cap)`.
    pub logit_cap: Option<f32>,
    /// Width of the inputs that each layer has of its own, if it has.
    pub per_layer_input: Option<usize>,
    /// The rotary embeddings; layers name them by index.
    pub ropes: Vec<Rope>,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Parts of the file that are not loaded.
    pub skipped: Vec<Skipped>,
}

/// A part of a model file that is not loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// What the names of its tensors begin with.
    pub name: String,
    /// What it is.
    pub part: SkippedPart,
}

/// What a part that is not loaded is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkippedPart {
    /// A tower for images or sound of a multimodal model.
    Tower,
    /// Layers that predict several tokens.
    PredictionLayers,
    /// A head that the task does not use.
    Head,
}

/// One layer. Two layers of a model may differ in everything.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// What mixes the rows of a sequence.
    pub mixer: Mixer,
    /// Its feed-forward network.
    pub feed_forward: FeedForward,
    /// Whether its input is normalised, before attention and before the feed-forward.
    pub pre_norms: bool,
    /// Whether the results of attention and of the feed-forward are normalised before they are added.
    pub post_norms: bool,
    /// Whether its output is multiplied by a factor that the file stores.
    pub output_scale: bool,
}

/// What mixes the rows of a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum Mixer {
    /// Attention to keys and values of earlier positions.
    Attention(Attention),
    /// Gated DeltaNet: a state of fixed size.
    Delta(DeltaShape),
}

impl Layer {
    /// Its attention, if it has.
    pub fn attention(&self) -> Option<&Attention> {
        match &self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Delta(_) => None,
        }
    }
}

/// The attention of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Whether a row attends to no position after its own. If not, it attends to the whole text.
    pub causal: bool,
    /// The sliding window in tokens, if there is one.
    pub window: Option<u32>,
    /// Which of the rotary embeddings, if heads are rotated.
    pub rope: Option<usize>,
    /// Factor on the scores.
    pub scale: f32,
    /// Scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// How queries and keys are normalised.
    pub qk_norm: QkNorm,
    /// Whether each value head is normalised, without a weight.
    pub v_norm: bool,
    /// Whether Q, K and V must have a bias. A bias that the file has is used in any case.
    pub qkv_bias: bool,
    /// Whether each head has a score that joins the softmax and has no value.
    pub sinks: bool,
    /// Whether the results of heads are multiplied by the sigmoid of a gate, which the projection of Q has beside each head.
    pub output_gate: bool,
    /// Whether values are the keys' projection.
    pub v_is_k: bool,
    /// The earlier layer whose keys and values are attended to, if not its own.
    pub kv_owner: Option<usize>,
}

/// The norm of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Each head on its own.
    PerHead,
    /// All heads together.
    Whole,
}

/// A gated feed-forward network: a dense one, experts, or both side by side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FeedForward {
    /// The hidden dimension of the dense network, if there is one.
    pub dense: Option<usize>,
    /// The experts, if there are some.
    pub experts: Option<Experts>,
    /// The function of all gates.
    pub activation: Activation,
}

/// The experts of a feed-forward network.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many each row uses.
    pub used: usize,
    /// The hidden dimension of each.
    pub width: usize,
    /// What the weights of the chosen ones are a softmax over.
    pub weights: RouteWeights,
    /// The hidden dimension of the expert that every row uses, if there is one. Its result has a gate.
    pub shared: Option<usize>,
}

/// Larger dimensions are an error or an attack. Products of dimensions within these limits do not overflow.
const MAX_DIM: u64 = 1 << 20;
pub(super) const MAX_LAYERS: u64 = 1 << 12;
const MAX_CONTEXT: u64 = 1 << 27;
/// The most experts. Plans store 16 bits, and ids as floats.
const MAX_EXPERTS: u64 = 1 << 12;
/// The most heads. Plans store 16 bits.
const MAX_HEADS: u64 = 1 << 15;
/// The most query heads that share a KV head. Kernels process such a group together.
const MAX_GROUP: usize = 128;

pub(super) fn dimension(name: &'static str, value: u64) -> Result<usize, Error> {
    within(name, value, MAX_DIM)
}

pub(super) fn context(value: u64) -> Result<usize, Error> {
    within("context length", value, MAX_CONTEXT)
}

pub(super) fn within(name: &'static str, value: u64, most: u64) -> Result<usize, Error> {
    if (1..=most).contains(&value) {
        return Ok(value as usize);
    }
    Err(Error::Dimension { name, value, expected: format!("it must be from 1 to {most}") })
}

/// Checks that a row uses no more experts than there are.
pub(super) fn experts(count: u64, used: u64) -> Result<(usize, usize), Error> {
    let n = within("expert count", count, MAX_EXPERTS)?;
    Ok((n, within("number of experts used", used, n as u64)?))
}

/// Checks that query heads are divided evenly among KV heads.
pub(super) fn heads(heads: u64, kv_heads: u64) -> Result<(usize, usize), Error> {
    let (n, kv) = (within("head count", heads, MAX_HEADS)?, within("KV head count", kv_heads, MAX_HEADS)?);
    if !n.is_multiple_of(kv) {
        let expected = format!("it must divide the head count {n}");
        return Err(Error::Dimension { name: "KV head count", value: kv_heads, expected });
    }
    if n / kv > MAX_GROUP {
        let expected = format!("at most {MAX_GROUP} may share one of the {kv} KV heads");
        return Err(Error::Dimension { name: "head count", value: heads, expected });
    }
    Ok((n, kv))
}

/// A cap from a file: finite, and above zero.
pub(super) fn positive(name: &str, value: f64) -> Result<f32, Error> {
    match factor(name, value)? {
        cap if cap > 0.0 => Ok(cap),
        _ => Err(Error::Unsupported(format!("a value of {value} for {name}"))),
    }
}

/// A factor from a file: finite, and not zero.
pub(super) fn factor(name: &str, value: f64) -> Result<f32, Error> {
    let narrow = value as f32;
    if narrow.is_finite() && narrow != 0.0 {
        return Ok(narrow);
    }
    Err(Error::Unsupported(format!("a value of {value} for {name}")))
}

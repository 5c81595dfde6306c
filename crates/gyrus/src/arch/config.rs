use gyrus_kernels::Rope;

use crate::Error;

/// The hyperparameters of a decoder-only transformer, validated.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The architecture's name.
    pub architecture: String,
    /// Width of the residual stream.
    pub dim: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Dimension of a head.
    pub head_dim: usize,
    /// Hidden dimension of the feed-forward network.
    pub ffn_dim: usize,
    /// The maximum context in tokens.
    pub context: usize,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
    /// The sliding window of attention in tokens, if there is one.
    pub window: Option<u32>,
    /// The rotary embedding.
    pub rope: Rope,
}

/// Larger dimensions are an error or an attack. Products of dimensions within these limits do not overflow.
const MAX_DIM: u64 = 1 << 20;
const MAX_LAYERS: u64 = 1 << 12;
const MAX_CONTEXT: u64 = 1 << 27;
/// The most query heads that share a KV head. Kernels process such a group together.
const MAX_GROUP: usize = 128;

/// The hyperparameters in a file, before validation.
#[derive(Debug)]
pub(crate) struct RawConfig {
    pub(crate) architecture: String,
    pub(crate) dim: u64,
    pub(crate) layers: u64,
    pub(crate) heads: u64,
    pub(crate) kv_heads: u64,
    pub(crate) head_dim: Option<u64>,
    pub(crate) ffn_dim: u64,
    pub(crate) context: u64,
    pub(crate) norm_eps: f32,
    pub(crate) window: Option<u32>,
}

impl RawConfig {
    /// Checks every value, then calls `rope` for the rotary embedding.
    pub(crate) fn validate(self, rope: impl FnOnce() -> Result<Rope, Error>) -> Result<Config, Error> {
        let dim = within("embedding length", self.dim, MAX_DIM)?;
        let layers = within("layer count", self.layers, MAX_LAYERS)?;
        let heads = within("head count", self.heads, MAX_DIM)?;
        let kv_heads = within("KV head count", self.kv_heads, MAX_DIM)?;
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("it must divide the head count {heads}");
            return Err(Error::Dimension { name: "KV head count", value: self.kv_heads, expected });
        }
        if heads / kv_heads > MAX_GROUP {
            let expected = format!("at most {MAX_GROUP} may share one of the {kv_heads} KV heads");
            return Err(Error::Dimension { name: "head count", value: self.heads, expected });
        }
        let head_dim = match self.head_dim {
            Some(n) => within("head size", n, MAX_DIM)?,
            None if dim.is_multiple_of(heads) => dim / heads,
            None => {
                let expected = format!("it must divide the embedding length {dim}");
                return Err(Error::Dimension { name: "head count", value: self.heads, expected });
            }
        };
        if !(self.norm_eps >= 0.0 && self.norm_eps < 1.0) {
            return Err(Error::Unsupported(format!("a norm epsilon of {}", self.norm_eps)));
        }
        let rope = rope()?;
        if rope.head_dim() != head_dim {
            let found = rope.head_dim();
            return Err(Error::Unsupported(format!("a rope for heads of {found} in heads of {head_dim}")));
        }
        Ok(Config {
            architecture: self.architecture,
            dim,
            layers,
            heads,
            kv_heads,
            head_dim,
            ffn_dim: within("feed-forward length", self.ffn_dim, MAX_DIM)?,
            context: within("context length", self.context, MAX_CONTEXT)?,
            norm_eps: self.norm_eps,
            // Some files have a window of 0 for no window.
            window: self.window.filter(|&w| w > 0),
            rope,
        })
    }
}

fn within(name: &'static str, value: u64, most: u64) -> Result<usize, Error> {
    if (1..=most).contains(&value) {
        return Ok(value as usize);
    }
    Err(Error::Dimension { name, value, expected: format!("it must be from 1 to {most}") })
}

use gyrus_formats::Checkpoint;
use gyrus_formats::gguf::Metadata;
use gyrus_kernels::{Magnitude, Rope, RopeSpec, Scaling, Yarn};
use gyrus_tensor::dequantize;

use super::config::{Config, Raw};
use super::names::ROPE_FACTORS;
use super::{ARCHS, unknown};
use crate::Error;

/// Reads the configuration of a GGUF model.
pub(crate) fn read(model: &Checkpoint, metadata: Metadata<'_>) -> Result<Config, Error> {
    let name: &str = metadata.require("general.architecture")?;
    let arch =
        ARCHS.iter().find(|a| a.gguf == name).ok_or_else(|| unknown(name, ARCHS.iter().map(|a| a.gguf)))?;
    let key = |rest: &str| format!("{name}.{rest}");
    if let Some(experts @ 1..) = metadata.get::<u64>(&key("expert_count"))? {
        return Err(Error::Unsupported(format!("a mixture of {experts} experts")));
    }
    let heads = metadata.require(&key("attention.head_count"))?;
    let head_dim = metadata.get::<u64>(&key("attention.key_length"))?;
    let value_dim = metadata.get::<u64>(&key("attention.value_length"))?;
    if let (Some(k), Some(v)) = (head_dim, value_dim)
        && k != v
    {
        return Err(Error::Unsupported(format!("a value size {v} other than the key size {k}")));
    }
    let window = metadata.get::<u32>(&key("attention.sliding_window"))?;
    let raw = Raw {
        architecture: name.to_owned(),
        dim: metadata.require(&key("embedding_length"))?,
        layers: metadata.require(&key("block_count"))?,
        heads,
        kv_heads: metadata.get(&key("attention.head_count_kv"))?.unwrap_or(heads),
        head_dim,
        ffn_dim: metadata.require(&key("feed_forward_length"))?,
        context: metadata.require(&key("context_length"))?,
        norm_eps: metadata.require(&key("attention.layer_norm_rms_epsilon"))?,
        window,
    };
    let context = raw.context;
    raw.check(|head_dim| {
        let rope_dim = metadata.get::<usize>(&key("rope.dimension_count"))?.unwrap_or(head_dim);
        let base = metadata.get::<f32>(&key("rope.freq_base"))?.unwrap_or(10000.0);
        let factors = rope_factors(model)?;
        let scaling = scaling(metadata, &key, context)?;
        let whole = RopeSpec::new(arch.gguf_pairing, head_dim, base.into());
        Ok(Rope::new(RopeSpec { rope_dim, scaling, factors, ..whole })?)
    })
}

fn scaling(metadata: Metadata<'_>, key: &impl Fn(&str) -> String, context: u64) -> Result<Scaling, Error> {
    let factor = match metadata.get::<f32>(&key("rope.scaling.factor"))? {
        Some(factor) => Some(factor),
        None => metadata.get::<f32>(&key("rope.scale_linear"))?,
    };
    // A factor of zero is how some converters write that there is none.
    let factor = factor.filter(|&f| f != 0.0 && f != 1.0).map(f64::from);
    let kind = metadata.get::<&str>(&key("rope.scaling.type"))?.unwrap_or("linear");
    match (kind, factor) {
        ("none", _) | ("linear" | "yarn", None) => Ok(Scaling::None),
        ("linear", Some(factor)) => Ok(Scaling::Linear { factor }),
        ("yarn", Some(factor)) => {
            let original = metadata.get::<u32>(&key("rope.scaling.original_context_length"))?;
            let number = |name: &str| metadata.get::<f32>(&key(name)).map(|v| v.map(f64::from));
            let given = number("rope.scaling.attn_factor")?.or(number("rope.scaling.yarn_attn_factor")?);
            Ok(Scaling::Yarn(Yarn {
                factor,
                original: original.map_or(context as f64, f64::from),
                beta_fast: number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                truncate: true,
                magnitude: Magnitude::Given(given.unwrap_or(1.0) * Yarn::mscale(factor, 1.0)),
            }))
        }
        (other, _) => Err(Error::Unsupported(format!("rope scaling '{other}'"))),
    }
}

/// The tensor of per-pair factors that Llama 3 files carry instead of scaling parameters.
fn rope_factors(model: &Checkpoint) -> Result<Option<Vec<f32>>, Error> {
    let Some(tensor) = model.tensor(ROPE_FACTORS) else { return Ok(None) };
    let mut factors = vec![0.0; tensor.shape.elems()];
    dequantize(tensor.dtype, tensor.data, &mut factors)
        .map_err(|source| Error::Tensor { name: ROPE_FACTORS.to_owned(), source })?;
    Ok(Some(factors))
}

//! Rotary embeddings from GGUF metadata.

use gyrus_formats::Checkpoint;
use gyrus_formats::gguf::{Metadata, Number, Value};
use gyrus_kernels::{LongRope, Magnitude, Pairing, Rope, RopeSpec, Scaling, Sections, Yarn};
use gyrus_tensor::dequantize;

use super::pairings;
use super::ropes::{GLOBAL, LOCAL, LayerRope, ModelRopes, layer_count, rope};
use super::tensor_names::{ROPE_FACTORS, ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT};
use crate::Error;

/// Architectures whose sliding-window layers have base 10000 by default, and the default period of layers with full
/// attention. Older converters wrote neither.
const LOCAL_BY_RULE: &[(&str, u64)] = &[("gemma3", 6), ("gemma3n", 5), ("gemma-embedding", 6)];

/// The default base (theta).
const DEFAULT_BASE: f32 = 10000.0;

/// The metadata keys of one architecture.
#[derive(Clone, Copy)]
struct Keys<'a> {
    metadata: Metadata<'a>,
    architecture: &'a str,
}

impl Keys<'_> {
    fn key(&self, rest: &str) -> String {
        format!("{}.{rest}", self.architecture)
    }

    fn count(&self, rest: &str) -> Result<Option<u64>, Error> {
        Ok(self.metadata.get(&self.key(rest))?)
    }

    fn float(&self, rest: &str) -> Result<Option<f64>, Error> {
        Ok(self.metadata.get::<f32>(&self.key(rest))?.map(f64::from))
    }

    fn size(&self, rest: &str) -> Result<Option<usize>, Error> {
        Ok(self.metadata.get(&self.key(rest))?)
    }
}

/// Reads the rotary embeddings of a GGUF model.
pub(super) fn read(
    model: &Checkpoint,
    metadata: Metadata<'_>,
    pairing: Option<Pairing>,
) -> Result<ModelRopes, Error> {
    let architecture: &str = metadata.require("general.architecture")?;
    let keys = Keys { metadata, architecture };
    let context = keys.count("context_length")?;
    let sections = sections(keys)?;
    let Some(pairing) = pairing.or(pairings::gguf(architecture, sections.is_some())) else {
        let what = format!("architecture '{architecture}' has an unknown rotary pairing, so it");
        return Err(Error::Unsupported(what));
    };
    let mla = metadata.contains(&keys.key("attention.kv_lora_rank"));
    let head_dim = head_dim(keys, mla)?;
    let rope_dim = keys.size("rope.dimension_count")?.unwrap_or(head_dim);
    let base = keys.float("rope.freq_base")?.unwrap_or(DEFAULT_BASE.into());
    let (scaling, score_factor) = scaling(model, keys, context, mla)?;
    let global = rope(RopeSpec {
        rope_dim,
        // Multi-head latent attention rotates the last elements of a head.
        offset: if mla { head_dim.saturating_sub(rope_dim) } else { 0 },
        scaling,
        factors: factors(model, ROPE_FACTORS)?,
        sections,
        ..RopeSpec::new(pairing, head_dim, base)
    })?;
    let layers = keys.count("block_count")?;
    let kinds = match local(keys, &global)? {
        Some(local) => {
            let count = layer_count(layers)?;
            let is_local = local_layers(keys, count)?;
            let of = |wanted: bool| (0..count).filter(|&i| is_local[i] == wanted).collect();
            let kind = |name: &str, layers, rope, score_factor| LayerRope {
                name: name.to_owned(),
                layers,
                rope,
                score_factor,
            };
            vec![kind(GLOBAL, of(false), global, score_factor), kind(LOCAL, of(true), local, 1.0)]
        }
        None => vec![LayerRope { score_factor, ..LayerRope::all(global, layers)? }],
    };
    Ok(ModelRopes { architecture: architecture.to_owned(), context, kinds })
}

/// The head dimension; with multi-head latent attention, that of the uncompressed heads.
fn head_dim(keys: Keys<'_>, mla: bool) -> Result<usize, Error> {
    if mla && let Some(n) = keys.size("attention.key_length_mla")? {
        return Ok(n);
    }
    if let Some(n) = keys.size("attention.key_length")? {
        return Ok(n);
    }
    let dim: usize = keys.metadata.require(&keys.key("embedding_length"))?;
    let heads: usize = keys.metadata.require(&keys.key("attention.head_count"))?;
    dim.checked_div(heads).filter(|n| n * heads == dim).ok_or_else(|| Error::Dimension {
        name: "head count",
        value: heads as u64,
        expected: format!("it must divide the embedding length {dim}"),
    })
}

fn sections(keys: Keys<'_>) -> Result<Option<Sections>, Error> {
    let Some(sizes) = keys.metadata.get::<Vec<usize>>(&keys.key("rope.dimension_sections"))? else {
        return Ok(None);
    };
    // Text-only models of a multimodal family have sections of zeros.
    if sizes.iter().all(|&n| n == 0) {
        return Ok(None);
    }
    Ok(Some(Sections { sizes, interleaved: pairings::gguf_interleaved(keys.architecture) }))
}

/// The scaling, and its factor on attention scores.
fn scaling(
    model: &Checkpoint,
    keys: Keys<'_>,
    context: Option<u64>,
    mla: bool,
) -> Result<(Scaling, f64), Error> {
    let attn_factor = keys.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let original = match keys.count("rope.scaling.original_context_length")?.or(context) {
        Some(n) => n as f64,
        None => 0.0,
    };
    let (short, long) = (factors(model, ROPE_FACTORS_SHORT)?, factors(model, ROPE_FACTORS_LONG)?);
    if let (Some(short), Some(long)) = (short, long) {
        let wide = |factors: Vec<f32>| factors.into_iter().map(f64::from).collect();
        let (short, long) = (wide(short), wide(long));
        let attention_factors = [attn_factor; 2];
        return Ok((Scaling::LongRope(LongRope { short, long, original, attention_factors }), 1.0));
    }
    if let Some(alpha) = keys.float("rope.scaling.alpha")?.filter(|&a| a != 0.0) {
        return Ok((Scaling::Ntk { factor: alpha }, 1.0));
    }
    let factor = match keys.float("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.float("rope.scale_linear")?,
    };
    // Some converters write a factor of zero for no scaling.
    let factor = factor.filter(|&f| f != 0.0 && f != 1.0);
    let kind = keys.metadata.get::<&str>(&keys.key("rope.scaling.type"))?.unwrap_or("linear");
    match (kind, factor) {
        ("none", _) | ("linear" | "yarn", None) => Ok((Scaling::None, 1.0)),
        ("linear", Some(factor)) => Ok((Scaling::Linear { factor }, 1.0)),
        ("yarn", Some(factor)) => yarn(keys, factor, original, attn_factor, mla),
        ("longrope", _) => Err(Error::MissingTensor(ROPE_FACTORS_LONG.to_owned())),
        (other, _) => Err(Error::Unsupported(format!("rope scaling '{other}'"))),
    }
}

fn yarn(
    keys: Keys<'_>,
    factor: f64,
    original: f64,
    attn_factor: f64,
    mla: bool,
) -> Result<(Scaling, f64), Error> {
    match keys.float("rope.scaling.yarn_ext_factor")? {
        // Without extrapolation all frequencies are interpolated, which is linear scaling.
        Some(0.0) => return Ok((Scaling::Linear { factor }, 1.0)),
        Some(other) if other > 0.0 && other != 1.0 => {
            return Err(Error::Unsupported(format!("a 'yarn_ext_factor' of {other}")));
        }
        _ => {}
    }
    // The converter of DeepSeek 2 multiplies by the 0.1 of YaRN's formula, others do not.
    let deepseek = keys.architecture == "deepseek2";
    let all_dim = keys.float("rope.scaling.yarn_log_multiplier")?.filter(|&m| m != 0.0);
    let all_dim = all_dim.map(|m| if deepseek { m / 0.1 } else { m });
    // GGUF has no key for `mscale`. In the known models it equals `mscale_all_dim`.
    let mscale = all_dim.map(|m| if deepseek { m } else { 1.0 });
    let given = keys.float("rope.scaling.yarn_attn_factor")?;
    let rule = match (given, mscale.zip(all_dim)) {
        (Some(given), _) => Magnitude::Given(given),
        (None, Some((mscale, all_dim))) => Magnitude::Quotient { mscale, all_dim },
        (None, None) => Magnitude::Rule,
    };
    let mut yarn = Yarn {
        factor,
        original,
        beta_fast: keys.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
        beta_slow: keys.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
        // GGUF has no key for it. Of the known models only gpt-oss does not truncate the ends of the ramp.
        truncate: keys.architecture != "gpt-oss",
        magnitude: rule,
    };
    if attn_factor != 1.0 {
        yarn.magnitude = Magnitude::Given(attn_factor * yarn.attention_factor());
    }
    let score = all_dim.filter(|_| mla).map_or(1.0, |m| Yarn::mscale(factor, m).powi(2));
    Ok((Scaling::Yarn(yarn), score))
}

/// The rotary embedding of layers with a sliding window, if it differs. It has no scaling and no frequency factors.
fn local(keys: Keys<'_>, global: &Rope) -> Result<Option<Rope>, Error> {
    let window = keys.count("attention.sliding_window")?.unwrap_or(0);
    let by_rule = LOCAL_BY_RULE.iter().any(|(name, _)| *name == keys.architecture) && window > 0;
    let base = match keys.float("rope.freq_base_swa")? {
        Some(base) => base,
        None if by_rule => DEFAULT_BASE.into(),
        None => return Ok(None),
    };
    let head_dim = keys.size("attention.key_length_swa")?.unwrap_or(global.head_dim());
    let whole = if global.rope_dim() == global.head_dim() { head_dim } else { global.rope_dim() };
    let rope_dim = keys.size("rope.dimension_count_swa")?.unwrap_or(whole);
    Ok(Some(rope(RopeSpec { rope_dim, ..RopeSpec::new(global.pairing(), head_dim, base) })?))
}

/// Which layers have a sliding window: from a list, or all but every n-th.
fn local_layers(keys: Keys<'_>, count: usize) -> Result<Vec<bool>, Error> {
    let by_rule = LOCAL_BY_RULE.iter().find(|(name, _)| *name == keys.architecture).map(|&(_, n)| n);
    let key = keys.key("attention.sliding_window_pattern");
    let period = match keys.metadata.value(&key) {
        Some(Value::Array(list)) => {
            let is_local = |number| match number {
                Number::Bool(local) => local,
                number => number.integer().is_some_and(|n| n != 0),
            };
            let mut layers: Vec<bool> = list.numbers().take(count).map(is_local).collect();
            layers.resize(count, false);
            return Ok(layers);
        }
        Some(_) => Some(keys.metadata.require::<u64>(&key)?),
        None => by_rule,
    };
    let period = period.unwrap_or(0);
    Ok((0..count as u64).map(|i| period == 0 || i % period + 1 < period).collect())
}

/// A tensor of frequency factors, one for each pair.
fn factors(model: &Checkpoint, name: &str) -> Result<Option<Vec<f32>>, Error> {
    let Some(tensor) = model.tensor(name) else { return Ok(None) };
    let mut factors = vec![0.0; tensor.shape.elems()];
    dequantize(tensor.dtype, tensor.data, &mut factors)
        .map_err(|source| Error::Tensor { name: name.to_owned(), source })?;
    Ok(Some(factors))
}

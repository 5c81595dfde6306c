//! Reads an encoder's hyperparameters once, into plain data: GGUF metadata and `config.json` by the same function.

use gyrus_formats::Checkpoint;
use gyrus_kernels::{Activation, Pairing, Rope, RopeSpec, Span};
use serde_json::Value;

use super::super::config::{MAX_LAYERS, context, dimension, heads, within};
use super::super::fields::Fields;
use super::super::source::{Key, Source};
use super::config::{EncoderConfig, EncoderLayer};
use super::description::{EncoderArch, Positions, find};
use crate::Error;

const DIM: Key = Key::new("embedding_length", &["hidden_size", "n_embd"]);
const LAYERS: Key = Key::new("block_count", &["num_hidden_layers", "n_layer"]);
const CONTEXT: Key = Key::new("context_length", &["max_position_embeddings", "n_positions"]);
const HEADS: Key = Key::new("attention.head_count", &["num_attention_heads", "n_head"]);
const FEED_FORWARD: Key = Key::new("feed_forward_length", &["intermediate_size", "n_inner"]);
const NORM_EPS: Key =
    Key::new("attention.layer_norm_epsilon", &["layer_norm_eps", "norm_eps", "layer_norm_epsilon"]);
const CAUSAL: Key = Key::new("attention.causal", &["is_causal", "causal"]);
const WINDOW: Key = Key::new("attention.sliding_window", &["local_attention"]);
const PERIOD: Key = Key::new("attention.sliding_window_pattern", &["global_attn_every_n_layers"]);
const BASE: Key = Key::new("rope.freq_base", &["global_rope_theta", "rotary_emb_base", "rope_theta"]);
const LOCAL_BASE: Key = Key::new("rope.freq_base_swa", &["local_rope_theta"]);

/// The name of layers with a window in `layer_types`, and of those without.
const LOCAL: &str = "sliding_attention";
const GLOBAL: &str = "full_attention";

/// Reads an encoder's configuration and finds its description.
pub(super) fn read(model: &Checkpoint) -> Result<(EncoderConfig, &'static EncoderArch), Error> {
    let (arch, name) = find(model)?;
    let source = match (model.gguf(), model.config()) {
        (Some(metadata), _) => Source::Gguf { metadata, architecture: &name },
        (None, Some(config)) => {
            check(Fields(config))?;
            Source::Config(Fields(config))
        }
        (None, None) => {
            let path = model.path().display();
            return Err(Error::Unsupported(format!("{path}: a model without a config.json beside it")));
        }
    };
    Ok((config(source, arch, name.clone())?, arch))
}

/// Refuses what a `config.json` asks for and no encoder has.
fn check(fields: Fields<'_>) -> Result<(), Error> {
    let refuse = |what: String| Err(Error::Unsupported(what));
    if let Some(kind) = fields.optional_text("position_embedding_type")?
        && kind != "absolute"
        && kind != "rope"
    {
        return refuse(format!("a position embedding of type '{kind}'"));
    }
    if fields.flag("is_decoder")? == Some(true) {
        return refuse("an encoder that is used as a decoder ('is_decoder' in config.json)".to_owned());
    }
    for key in ["rotary_scaling_factor", "rope_scaling", "rotary_emb_scale_base"] {
        if fields.get(key).is_some() {
            return refuse(format!("a scaled rotary embedding ('{key}' in config.json)"));
        }
    }
    for (key, value) in [("rotary_emb_interleaved", true), ("prenorm", true), ("use_rms_norm", true)] {
        if fields.flag(key)? == Some(value) {
            return refuse(format!("'{key}' in config.json"));
        }
    }
    if fields.float("rotary_emb_fraction")?.is_some_and(|fraction| fraction != 1.0) {
        return refuse("a rotary embedding of a part of each head ('rotary_emb_fraction')".to_owned());
    }
    Ok(())
}

fn config(source: Source<'_>, arch: &EncoderArch, architecture: String) -> Result<EncoderConfig, Error> {
    let dim = dimension("embedding length", source.require(DIM)?)?;
    let count = within("layer count", source.require(LAYERS)?, MAX_LAYERS)?;
    let all = source.require(HEADS)?;
    let (heads, _) = heads(all, all)?;
    if source.switch(CAUSAL)? == Some(true) {
        let what = format!("an encoder whose attention is causal ({})", source.place(CAUSAL));
        return Err(Error::Unsupported(what));
    }
    if !dim.is_multiple_of(heads) {
        let expected = format!("it must divide the embedding length {dim}");
        return Err(Error::Dimension { name: "head count", value: all, expected });
    }
    let norm_eps = source.require_float(NORM_EPS)? as f32;
    if !(0.0..1.0).contains(&norm_eps) {
        return Err(Error::Unsupported(format!("a norm epsilon of {norm_eps}")));
    }
    let first_position = match (arch.positions, source) {
        (Positions::LearnedAfterPadding, Source::Config(fields)) => {
            let padding = fields.number("pad_token_id")?;
            Some(within("padding token's id", padding.saturating_add(1), 1 << 20)?)
        }
        (Positions::Learned | Positions::LearnedAfterPadding, _) => Some(0),
        _ => None,
    };
    let context = context(source.require(CONTEXT)?)?;
    let context = context.checked_sub(first_position.unwrap_or(0)).filter(|context| *context > 0);
    let context = context.ok_or_else(|| {
        Error::Config("'max_position_embeddings' has no position after the padding token's".to_owned())
    })?;
    let (ropes, layers) = layers(source, arch, dim / heads, count)?;
    Ok(EncoderConfig {
        architecture,
        dim,
        context,
        heads,
        feed_forward: dimension("feed-forward length", source.require(FEED_FORWARD)?)?,
        norm_eps,
        activation: activation(source, arch)?,
        gated: arch.gated,
        pre_norms: arch.pre_norms,
        first_position,
        ropes,
        layers,
    })
}

fn activation(source: Source<'_>, arch: &EncoderArch) -> Result<Activation, Error> {
    let Source::Config(fields) = source else { return Ok(arch.activation) };
    let keys = ["hidden_activation", "hidden_act", "activation_function"];
    let Some(key) = keys.into_iter().find(|key| fields.get(key).is_some()) else {
        return Err(Error::Config("'hidden_act' is missing".to_owned()));
    };
    match (fields.text(key)?, arch.gated) {
        ("gelu", _) => Ok(Activation::Gelu),
        ("gelu_new" | "gelu_pytorch_tanh", _) => Ok(Activation::GeluTanh),
        ("relu", _) => Ok(Activation::Relu),
        ("silu" | "swish", _) | ("swiglu", true) => Ok(Activation::Silu),
        ("geglu", true) => Ok(Activation::Gelu),
        (name, _) => Err(Error::Unsupported(format!("activation '{name}' ('{key}' in config.json)"))),
    }
}

fn layers(
    source: Source<'_>,
    arch: &EncoderArch,
    head_dim: usize,
    count: usize,
) -> Result<(Vec<Rope>, Vec<EncoderLayer>), Error> {
    let rope = |base: f64| Ok::<_, Error>(Rope::new(RopeSpec::new(Pairing::Split, head_dim, base))?);
    let (ropes, local) = match arch.positions {
        Positions::Learned | Positions::LearnedAfterPadding => (Vec::new(), vec![false; count]),
        Positions::Rotary { base } => {
            let given = match source.float(BASE)? {
                None => rope_parameter(source, None)?,
                given => given,
            };
            (vec![rope(given.unwrap_or(base))?], vec![false; count])
        }
        Positions::RotaryWindows => {
            let base = |key: Key, kind: &str| match source.float(key)? {
                Some(base) => Ok(base),
                None => rope_parameter(source, Some(kind))?
                    .ok_or_else(|| Error::Config(format!("the rope base of {kind} is missing"))),
            };
            let ropes = vec![rope(base(BASE, GLOBAL)?)?, rope(base(LOCAL_BASE, LOCAL)?)?];
            (ropes, local_layers(source, count)?)
        }
    };
    let window = match source.number(WINDOW)? {
        Some(window) => within("window", window, 1 << 27)?,
        None if local.contains(&true) => {
            return Err(Error::Config("'local_attention' is missing".to_owned()));
        }
        None => 0,
    };
    let layer = |local: bool| EncoderLayer {
        span: if local { Span::Around(window as u32 / 2) } else { Span::Whole },
        rope: (!ropes.is_empty()).then_some(usize::from(local)),
    };
    let layers = local.into_iter().map(layer).collect();
    Ok((ropes, layers))
}

/// The base in `rope_parameters`, for all layers or for those of a kind.
fn rope_parameter(source: Source<'_>, kind: Option<&str>) -> Result<Option<f64>, Error> {
    let Source::Config(fields) = source else { return Ok(None) };
    let all = fields.object("rope_parameters");
    let parameters = kind.map_or(all, |kind| all.object(kind));
    match parameters.optional_text("rope_type")? {
        None | Some("default") => parameters.float("rope_theta"),
        Some(other) => Err(Error::Unsupported(format!("a rope of type '{other}'"))),
    }
}

/// Which layers have a window.
fn local_layers(source: Source<'_>, count: usize) -> Result<Vec<bool>, Error> {
    if let Source::Config(fields) = source
        && let Some(types) = fields.list("layer_types", Value::as_str)?
    {
        if types.len() != count {
            return Err(Error::Config(format!("{} 'layer_types' for {count} layers", types.len())));
        }
        let is_local = |name: &&str| match *name {
            LOCAL => Ok(true),
            GLOBAL => Ok(false),
            other => Err(Error::Unsupported(format!("layer type '{other}'"))),
        };
        return types.iter().map(is_local).collect();
    }
    if let Some(flags) = source.flags(PERIOD, count)? {
        return Ok(flags);
    }
    let period =
        within("number of layers from one without a window to the next", source.require(PERIOD)?, 1 << 12)?;
    Ok((0..count).map(|layer| !layer.is_multiple_of(period)).collect())
}

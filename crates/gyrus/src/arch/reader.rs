//! Reads a model's hyperparameters once, into plain data: GGUF metadata and `config.json` by the same function.

use gyrus_formats::Checkpoint;
use gyrus_kernels::Activation;
use serde_json::Value;

use super::config::{
    Attention, Config, FeedForward, Layer, MAX_LAYERS, Mixer, context, dimension, factor, heads, positive,
    within,
};
use super::config_defaults;
use super::delta_reader;
use super::description::{self, Arch, AttentionScale, Presence, Scale, Windows};
use super::expert_reader::{self, EXPERTS};
use super::fields::Fields;
use super::ropes::{LOCAL, LayerRope, ModelRopes};
use super::source::{Key, Source};
use crate::Error;

const DIM: Key = Key::new("embedding_length", &["hidden_size"]);
const LAYERS: Key = Key::new("block_count", &["num_hidden_layers"]);
const CONTEXT: Key = Key::new("context_length", &["max_position_embeddings"]);
const HEADS: Key = Key::new("attention.head_count", &["num_attention_heads"]);
const KV_HEADS: Key = Key::new("attention.head_count_kv", &["num_key_value_heads"]);
const GLOBAL_KV_HEADS: Key = Key::new("", &["num_global_key_value_heads"]);
const KEY_LENGTH: Key = Key::new("attention.key_length", &[]);
const VALUE_LENGTH: Key = Key::new("attention.value_length", &[]);
pub(super) const FEED_FORWARD: Key = Key::new("feed_forward_length", &["intermediate_size"]);
const NORM_EPS: Key = Key::new("attention.layer_norm_rms_epsilon", &["rms_norm_eps"]);
const CAUSAL: Key = Key::new("attention.causal", &["is_causal"]);
const WINDOW: Key = Key::new("attention.sliding_window", &["sliding_window"]);
const WINDOW_PATTERN: Key =
    Key::new("attention.sliding_window_pattern", &["sliding_window_pattern", "_sliding_window_pattern"]);
const MAX_WINDOW_LAYERS: Key = Key::new("", &["max_window_layers"]);
const EMBEDDING_SCALE: Key = Key::new("embedding_scale", &["embedding_multiplier"]);
const RESIDUAL_SCALE: Key = Key::new("residual_scale", &["residual_multiplier"]);
const LOGIT_DIVISOR: Key = Key::new("logit_scale", &["logits_scaling"]);
const ATTENTION_SCALE: Key = Key::new("attention.scale", &["attention_multiplier"]);
const PRE_ATTENTION: Key = Key::new("", &["query_pre_attn_scalar"]);
const ATTENTION_CAP: Key = Key::new("attn_logit_softcapping", &["attn_logit_softcapping"]);
const LOGIT_CAP: Key = Key::new("final_logit_softcapping", &["final_logit_softcapping"]);
const NO_ROPE: Key = Key::new("", &["no_rope_layers"]);
const NO_ROPE_INTERVAL: Key = Key::new("", &["no_rope_layer_interval"]);
const SHARED_KV_LAYERS: Key = Key::new("attention.shared_kv_layers", &["num_kv_shared_layers"]);
const PER_LAYER_INPUT: Key = Key::new("embedding_length_per_layer_input", &["hidden_size_per_layer_input"]);
const PREDICTION_LAYERS: Key = Key::new("nextn_predict_layers", &["num_nextn_predict_layers"]);

/// The most kinds of rotary embedding of a model.
const MAX_ROPES: usize = 16;

/// Reads a model's configuration, finds its architecture's description and counts the layers that predict several tokens.
pub(super) fn read(model: &Checkpoint) -> Result<(Config, &'static Arch, usize), Error> {
    let config = model.config().map(config_defaults::complete);
    let (source, name, arch) = match (model.gguf(), &config) {
        (Some(metadata), _) => {
            let name: &str = metadata.require("general.architecture")?;
            let source = Source::Gguf { metadata, architecture: name };
            let has_experts = source.number(EXPERTS)?.is_some_and(|count| count > 0);
            (source, name, description::of_gguf(name, has_experts)?)
        }
        (None, Some(config)) => {
            let (fields, name) = text_config(config)?;
            let arch = description::of_model_type(name)?;
            check_config(fields, arch)?;
            (Source::Config(fields), name, arch)
        }
        (None, None) => {
            let path = model.path().display();
            return Err(Error::Unsupported(format!("{path}: a model without a config.json beside it")));
        }
    };
    let config = Reader { source, arch }.config(name, || ModelRopes::read(model, None))?;
    Ok((config, arch, prediction_layers(source)?))
}

/// The number of layers after the model's own that predict several tokens. Files have them, and GGUF counts them.
fn prediction_layers(source: Source<'_>) -> Result<usize, Error> {
    match source.number(PREDICTION_LAYERS)?.unwrap_or(0) {
        0 => Ok(0),
        extra => within("number of prediction layers", extra, MAX_LAYERS),
    }
}

/// The language model's part of a `config.json`, and its type. Multimodal models have it in `text_config`.
pub(super) fn text_config(config: &Value) -> Result<(Fields<'_>, &str), Error> {
    let whole = Fields(config);
    let fields = match whole.get("text_config").is_some_and(Value::is_object) {
        true => whole.object("text_config"),
        false => whole,
    };
    let name = match fields.optional_text("model_type")? {
        Some(name) => name,
        None => whole.text("model_type")?,
    };
    Ok((fields, name))
}

/// Refuses what a `config.json` asks for and the description does not have.
fn check_config(fields: Fields<'_>, arch: &Arch) -> Result<(), Error> {
    let names: &[&str] = match arch.activation {
        Activation::Silu | Activation::ClampedSwish => &["silu", "swish"],
        Activation::GeluTanh => &["gelu_pytorch_tanh", "gelu_tanh"],
        Activation::Gelu => &["gelu"],
        Activation::SquaredRelu => &["relu2"],
        Activation::Sigmoid => &["sigmoid"],
        Activation::Relu => &["relu"],
        Activation::Tanh => &["tanh"],
    };
    // Gemma's first files name 'gelu' in `hidden_act` and mean the tanh form, which newer ones have in
    // `hidden_activation`.
    let key = if fields.get("hidden_activation").is_some() { "hidden_activation" } else { "hidden_act" };
    if let Some(name) = fields.optional_text(key)?
        && !names.contains(&name)
        && !(name == "gelu" && arch.activation == Activation::GeluTanh)
    {
        return Err(Error::Unsupported(format!("activation '{name}' ('{key}' in config.json)")));
    }
    if fields.flag("mlp_bias")? == Some(true) {
        return Err(Error::Unsupported("a bias in the feed-forward ('mlp_bias' in config.json)".to_owned()));
    }
    if fields.flag("use_bidirectional_attention")? == Some(true) {
        let what = "attention in both directions ('use_bidirectional_attention' in config.json)";
        return Err(Error::Unsupported(what.to_owned()));
    }
    Ok(())
}

struct Reader<'a> {
    source: Source<'a>,
    arch: &'a Arch,
}

impl Reader<'_> {
    /// Checks sizes, then calls `ropes` for the rotary embeddings.
    fn config(&self, name: &str, ropes: impl FnOnce() -> Result<ModelRopes, Error>) -> Result<Config, Error> {
        let (source, arch) = (self.source, self.arch);
        let dim = dimension("embedding length", source.require(DIM)?)?;
        let all = within("layer count", source.require(LAYERS)?, MAX_LAYERS)?;
        let extra = match source {
            Source::Gguf { .. } => source.number(PREDICTION_LAYERS)?.unwrap_or(0),
            Source::Config(_) => 0,
        };
        let count = within("layer count", (all as u64).saturating_sub(extra), MAX_LAYERS)?;
        for heads in self.heads(count)? {
            dimension("head count", heads)?;
        }
        let norm_eps = source.require_float(NORM_EPS)? as f32;
        if !(0.0..1.0).contains(&norm_eps) {
            return Err(Error::Unsupported(format!("a norm epsilon of {norm_eps}")));
        }
        let optional = |key: Key, name: &str, wanted: bool| match source.float(key)? {
            Some(value) if wanted => factor(name, value).map(Some),
            _ => Ok(None),
        };
        let embedding_scale = match arch.embedding_scale {
            Scale::One => 1.0,
            Scale::SqrtDim => (dim as f32).sqrt(),
            Scale::Given => optional(EMBEDDING_SCALE, "the embedding scale", true)?.unwrap_or(1.0),
        };
        let logit_divisor = optional(LOGIT_DIVISOR, "the logit scale", arch.multipliers)?;
        let ropes = ropes()?;
        if ropes.kinds.len() > MAX_ROPES {
            let what = format!("{} kinds of rotary embedding, more than {MAX_ROPES},", ropes.kinds.len());
            return Err(Error::Unsupported(what));
        }
        let per_layer_input = source.number(PER_LAYER_INPUT)?.filter(|n| arch.per_layer_parts && *n > 0);
        Ok(Config {
            architecture: name.to_owned(),
            dim,
            context: context(source.require(CONTEXT)?)?,
            norm_eps,
            embedding_scale,
            residual_scale: optional(RESIDUAL_SCALE, "the residual scale", arch.multipliers)?.unwrap_or(1.0),
            logit_scale: logit_divisor.map_or(1.0, |divisor| 1.0 / divisor),
            logit_cap: match source.float(LOGIT_CAP)?.filter(|_| arch.soft_caps) {
                Some(cap) => Some(positive("the logit cap", cap)?),
                None => None,
            },
            per_layer_input: per_layer_input.map(|n| dimension("per-layer input", n)).transpose()?,
            layers: self.layers(dim, count, &ropes.kinds)?,
            ropes: ropes.kinds.into_iter().map(|kind| kind.rope).collect(),
            skipped: Vec::new(),
        })
    }

    fn layers(&self, dim: usize, count: usize, ropes: &[LayerRope]) -> Result<Vec<Layer>, Error> {
        let (source, arch) = (self.source, self.arch);
        let all_heads = self.heads(count)?;
        let mut kv_heads = source.per_layer(KV_HEADS, count)?.unwrap_or(all_heads.clone());
        let experts = expert_reader::read(source, arch, count)?;
        let is_dense =
            |i: usize| experts[i].is_none() || arch.experts.is_some_and(|parts| parts.beside_dense);
        let mut widths = match source.per_layer(FEED_FORWARD, count)? {
            Some(widths) => widths,
            None if (0..count).any(is_dense) => vec![source.require(FEED_FORWARD)?; count],
            None => vec![0; count],
        };
        if let (Some(k), Some(v)) = (source.number(KEY_LENGTH)?, source.number(VALUE_LENGTH)?)
            && k != v
        {
            return Err(Error::Unsupported(format!("a value size {v} other than the key size {k}")));
        }
        let windows = self.windows(count)?;
        let causal = source.switch(CAUSAL)?.unwrap_or(true);
        if !causal && windows.iter().any(Option::is_some) {
            let what = format!("a window on both sides ({} is false)", source.place(CAUSAL));
            return Err(Error::Unsupported(what));
        }
        let k_eq_v = source.flag("attention_k_eq_v")? == Some(true) && arch.per_layer_parts;
        if let Some(global) = source.number(GLOBAL_KV_HEADS)?.filter(|_| k_eq_v) {
            let is_global = windows.iter().map(Option::is_none);
            kv_heads.iter_mut().zip(is_global).filter(|(_, g)| *g).for_each(|(n, _)| *n = global);
        }
        let rotated = self.rotated(count)?;
        let shared = match source.number(SHARED_KV_LAYERS)? {
            Some(shared) if arch.per_layer_parts => usize::try_from(shared).unwrap_or(usize::MAX),
            _ => 0,
        };
        let owners = count.checked_sub(shared).filter(|owners| *owners > 0).ok_or_else(|| {
            let expected = format!("it must be less than the layer count {count}");
            Error::Dimension { name: "number of layers that share keys", value: shared as u64, expected }
        })?;
        if source.flag("use_double_wide_mlp")? == Some(true) && arch.per_layer_parts {
            widths[owners..].iter_mut().for_each(|width| *width = width.saturating_mul(2));
        }
        let qkv_bias = arch.qkv_bias == Presence::Required || source.flag("attention_bias")? == Some(true);
        let soft_cap = match source.float(ATTENTION_CAP)?.filter(|_| arch.soft_caps) {
            Some(cap) => Some(positive("the attention soft cap", cap)?),
            None => None,
        };
        let delta = match arch.delta {
            Some(tensors) => delta_reader::shapes(source, tensors, count)?,
            None => vec![None; count],
        };
        let output_gate = arch.output_gate && source.flag("attn_output_gate")? != Some(false);
        let mut layers: Vec<Layer> = Vec::with_capacity(count);
        for i in 0..count {
            let layer = |mixer| {
                Ok::<_, Error>(Layer {
                    mixer,
                    feed_forward: FeedForward {
                        dense: match is_dense(i) {
                            true => Some(dimension("feed-forward length", widths[i])?),
                            false => None,
                        },
                        experts: experts[i],
                        activation: arch.activation,
                    },
                    pre_norms: arch.pre_norms,
                    post_norms: arch.post_norms,
                    output_scale: arch.per_layer_parts,
                })
            };
            if let Some(shape) = delta[i] {
                layers.push(layer(Mixer::Delta(shape))?);
                continue;
            }
            let rope = ropes.iter().position(|kind| kind.layers.contains(&i));
            let Some((rope, kind)) = rope.map(|rope| (rope, &ropes[rope])) else {
                return Err(Error::Unsupported(format!("layer {i}, which has no rotary embedding,")));
            };
            if kind.score_factor != 1.0 {
                let what = format!("a rope that scales attention scores by {}", kind.score_factor);
                return Err(Error::Unsupported(what));
            }
            let (heads, kv_heads) = heads(all_heads[i], kv_heads[i])?;
            let head_dim = kind.rope.head_dim();
            // Keys that are shared have the layer's own window and heads.
            let is_alike = |owner: &Layer| {
                let kind = |a: &Attention| (a.window, a.kv_heads, a.head_dim);
                owner.attention().map(kind) == Some((windows[i], kv_heads, head_dim))
            };
            let kv_owner = match i < owners {
                true => None,
                false => Some(layers[..owners].iter().rposition(is_alike).ok_or_else(|| {
                    Error::Unsupported(format!("layer {i}, which shares keys with no layer of its kind,"))
                })?),
            };
            let attention = Attention {
                heads,
                kv_heads,
                head_dim,
                causal,
                window: windows[i],
                rope: rotated[i].then_some(rope),
                scale: self.attention_scale(dim, heads, head_dim, count)?,
                soft_cap,
                qk_norm: arch.qk_norm,
                v_norm: arch.v_norm,
                qkv_bias,
                sinks: arch.sinks,
                output_gate,
                v_is_k: k_eq_v && windows[i].is_none(),
                kv_owner,
            };
            layers.push(layer(Mixer::Attention(attention))?);
        }
        Ok(layers)
    }

    /// Query heads of each layer.
    fn heads(&self, count: usize) -> Result<Vec<u64>, Error> {
        match self.source.per_layer(HEADS, count)? {
            Some(heads) => Ok(heads),
            None => Ok(vec![self.source.require(HEADS)?; count]),
        }
    }

    /// The window of each layer.
    fn windows(&self, count: usize) -> Result<Vec<Option<u32>>, Error> {
        let source = self.source;
        let is_named = |name: &str| match source {
            Source::Config(fields) => fields.0.get(name).is_some(),
            Source::Gguf { .. } => true,
        };
        let window = match (source.number(WINDOW)?, self.arch.windows) {
            (None, Windows::All(default)) if !is_named("sliding_window") => default,
            (given, _) => given.map(|window| u32::try_from(window).unwrap_or(u32::MAX)),
        };
        let local = self.local_layers(count)?;
        // Some files have a window of 0 for no window.
        let Some(window) = window.filter(|window| *window > 0) else { return Ok(vec![None; count]) };
        Ok(local.into_iter().map(|local| local.then_some(window)).collect())
    }

    /// Which layers have a window.
    fn local_layers(&self, count: usize) -> Result<Vec<bool>, Error> {
        let source = self.source;
        if let Source::Config(fields) = source
            && let Some(types) = fields.list("layer_types", Value::as_str)?
        {
            if types.len() != count {
                return Err(Error::Config(format!("{} 'layer_types' for {count} layers", types.len())));
            }
            let is_local = |name: &&str| match *name {
                LOCAL => Ok(true),
                super::ropes::GLOBAL => Ok(false),
                super::ropes::RECURRENT if self.arch.delta.is_some() => Ok(false),
                other => Err(Error::Unsupported(format!("layer type '{other}'"))),
            };
            return types.iter().map(is_local).collect();
        }
        if let Some(flags) = source.flags(WINDOW_PATTERN, count)? {
            return Ok(flags);
        }
        Ok(match self.arch.windows {
            Windows::All(_) => vec![true; count],
            Windows::AllBut(period) => {
                let period = source.number(WINDOW_PATTERN)?.unwrap_or(period);
                (1..=count as u64).map(|i| period == 0 || i % period != 0).collect()
            }
            Windows::Upper => {
                let first = source.number(MAX_WINDOW_LAYERS)?.unwrap_or(u64::MAX);
                let used = source.flag("use_sliding_window")? == Some(true);
                (0..count as u64).map(|i| used && i >= first).collect()
            }
        })
    }

    /// Which layers are rotated.
    fn rotated(&self, count: usize) -> Result<Vec<bool>, Error> {
        let Some(interval) = self.arch.no_rope_interval else { return Ok(vec![true; count]) };
        if let Some(flags) = self.source.flags(NO_ROPE, count)? {
            return Ok(flags);
        }
        let interval = self.source.number(NO_ROPE_INTERVAL)?.unwrap_or(interval).max(1);
        Ok((1..=count as u64).map(|i| i % interval != 0).collect())
    }

    fn attention_scale(&self, dim: usize, heads: usize, head_dim: usize, count: usize) -> Result<f32, Error> {
        let inverse_root = |n: f64| (1.0 / n.sqrt()) as f32;
        Ok(match self.arch.attention_scale {
            AttentionScale::One => 1.0,
            AttentionScale::HeadDim => 1.0 / (head_dim as f32).sqrt(),
            AttentionScale::Given => match self.source.float(ATTENTION_SCALE)? {
                Some(scale) => factor("the attention scale", scale)?,
                None => inverse_root(head_dim as f64),
            },
            AttentionScale::PreAttention { by_width } => match self.source.float(PRE_ATTENTION)? {
                Some(scalar) => inverse_root(positive("query_pre_attn_scalar", scalar)?.into()),
                None if count as u64 == by_width => inverse_root(dim as f64 / heads as f64),
                None => inverse_root(head_dim as f64),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &Value) -> Result<Config, Error> {
        let (fields, name) = text_config(config)?;
        let arch = description::of_model_type(name)?;
        check_config(fields, arch)?;
        Reader { source: Source::Config(fields), arch }
            .config(name, || super::super::rope_config::read(config, None))
    }

    fn whole() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
            "intermediate_size": 128, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        })
    }

    /// Hyperparameters have no defaults.
    #[test]
    fn a_missing_hyperparameter_is_an_error_with_its_name() {
        assert_eq!(read(&whole()).unwrap().norm_eps, 1e-5);
        let needed = [
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "rms_norm_eps",
        ];
        for name in needed {
            let mut without = whole();
            without.as_object_mut().unwrap().remove(name);
            let error = read(&without).unwrap_err().to_string();
            assert!(error.ends_with(&format!("'{name}' is missing")), "{error}");
        }
    }

    #[test]
    fn windows_are_as_the_published_classes_have_them() {
        let windows = |changes: Value| -> Vec<Option<u32>> {
            let mut config = whole();
            for (name, value) in changes.as_object().unwrap() {
                config[name] = value.clone();
            }
            read(&config).unwrap().layers.iter().map(|layer| layer.attention().unwrap().window).collect()
        };
        let w = Some;
        assert_eq!(windows(json!({})), [None; 4]);
        // Mistral's class has a default, which null overrides.
        assert_eq!(windows(json!({"model_type": "mistral"})), [w(4096); 4]);
        assert_eq!(windows(json!({"model_type": "mistral", "sliding_window": null})), [None; 4]);
        assert_eq!(windows(json!({"model_type": "mistral", "sliding_window": 16})), [w(16); 4]);
        let qwen = json!({"model_type": "qwen2", "sliding_window": 16, "max_window_layers": 3});
        assert_eq!(windows(qwen.clone()), [None; 4]);
        let mut used = qwen;
        used["use_sliding_window"] = true.into();
        assert_eq!(windows(used), [None, None, None, w(16)]);
        let gemma = json!({"model_type": "gemma2", "sliding_window": 16, "query_pre_attn_scalar": 16});
        assert_eq!(windows(gemma), [w(16), None, w(16), None]);
        let types = json!({"model_type": "gemma3_text", "sliding_window": 16, "layer_types":
            ["full_attention", "sliding_attention", "full_attention", "full_attention"]});
        assert_eq!(windows(types), [None, w(16), None, None]);
    }

    /// A layer reads the keys of the last layer before the sharing ones that has its window and heads, or none at all.
    #[test]
    fn shared_keys_have_the_heads_of_their_readers() {
        let mut config = json!({
            "model_type": "gemma4_text", "hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32, "intermediate_size": 128,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "num_kv_shared_layers": 2, "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                "sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        });
        let owners = |config: &Value| -> Result<Vec<Option<usize>>, Error> {
            Ok(read(config)?.layers.iter().map(|layer| layer.attention().unwrap().kv_owner).collect())
        };
        assert_eq!(owners(&config).unwrap(), [None, None, None, None, Some(3), Some(1)]);
        // Without a window, layers still differ in the size of their heads.
        config["sliding_window"] = Value::Null;
        assert_eq!(owners(&config).unwrap(), [None, None, None, None, Some(3), Some(1)]);
        config["num_kv_shared_layers"] = 5.into();
        let error = owners(&config).unwrap_err().to_string();
        assert!(error.contains("layer 1, which shares keys with no layer of its kind"), "{error}");
        config["num_kv_shared_layers"] = 6.into();
        assert!(owners(&config).unwrap_err().to_string().contains("share keys is 6"));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let refused = |name: &str, value: Value| {
            let mut config = whole();
            config[name] = value;
            read(&config).unwrap_err().to_string()
        };
        for (name, value, part) in [
            ("model_type", json!("mamba"), "'mamba'"),
            ("hidden_act", json!("relu"), "'relu'"),
            ("mlp_bias", json!(true), "mlp_bias"),
            ("num_local_experts", json!(8), "8 experts"),
            ("layer_types", json!(["full_attention"]), "layer_types"),
            (
                "layer_types",
                json!(["full_attention", "full_attention", "mamba", "full_attention"]),
                "'mamba'",
            ),
            ("num_key_value_heads", json!(3), "KV head count"),
            ("num_hidden_layers", json!(1u64 << 40), "layer count"),
        ] {
            let error = refused(name, value);
            assert!(error.contains(part), "{name}: {error}");
        }
    }
}

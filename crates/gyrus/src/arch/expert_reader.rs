//! The hyperparameters of mixtures of experts.

use gyrus_kernels::{Activation, RouteWeights};

use super::config::{self, Experts, dimension};
use super::description::{Arch, ExpertParts, Renormalised};
use super::reader::FEED_FORWARD;
use super::source::{Key, Source};
use crate::Error;

pub(super) const EXPERTS: Key =
    Key::new("expert_count", &["num_experts", "num_local_experts", "n_routed_experts"]);
const USED: Key =
    Key::new("expert_used_count", &["num_experts_per_tok", "top_k_experts", "num_experts_per_token"]);
const WIDTH: Key = Key::new("expert_feed_forward_length", &["moe_intermediate_size"]);
const SHARED_WIDTH: Key = Key::new("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"]);
const ROUTER: Key = Key::new("expert_gating_func", &[]);
const WEIGHTS_SCALE: Key = Key::new("expert_weights_scale", &["routed_scaling_factor"]);
const GROUPS: Key = Key::new("expert_group_count", &["n_group"]);
const SPARSE_STEP: Key = Key::new("", &["decoder_sparse_step"]);

/// `expert_gating_func` in GGUF: a softmax over all experts, or over the chosen ones.
const SOFTMAX: u64 = 1;
const SOFTMAX_OF_CHOSEN: u64 = 3;

/// The experts of each layer.
pub(super) fn read(source: Source<'_>, arch: &Arch, layers: usize) -> Result<Vec<Option<Experts>>, Error> {
    let count = match source.number(EXPERTS)? {
        Some(count @ 1..) => count,
        _ => return Ok(vec![None; layers]),
    };
    let Some(parts) = arch.experts else {
        return Err(Error::Unsupported(format!("a mixture of {count} experts")));
    };
    if parts.beside_dense
        && matches!(source, Source::Config(_))
        && source.flag("enable_moe_block")? != Some(true)
    {
        return Ok(vec![None; layers]);
    }
    check(source, arch)?;
    let (count, used) = config::experts(count, source.require(USED)?)?;
    let widths = match source.per_layer(WIDTH, layers)? {
        Some(widths) => widths,
        None => match source.per_layer(FEED_FORWARD, layers)? {
            Some(widths) => widths,
            None => vec![source.require(FEED_FORWARD)?; layers],
        },
    };
    let shared = match parts.shared {
        true => Some(dimension("shared expert length", source.require(SHARED_WIDTH)?)?),
        false => None,
    };
    let weights = weights(source, parts)?;
    let sparse = sparse_layers(source, layers)?;
    let each = widths.into_iter().zip(sparse).map(|(width, sparse)| match sparse {
        true => Ok(Some(Experts { count, used, width: dimension("expert length", width)?, weights, shared })),
        false => Ok(None),
    });
    each.collect()
}

/// Refuses what no op computes.
fn check(source: Source<'_>, arch: &Arch) -> Result<(), Error> {
    if let Some(groups @ 2..) = source.number(GROUPS)? {
        return Err(Error::Unsupported(format!("a router with {groups} groups of experts")));
    }
    // Converters write 0 for none.
    if let Some(scale) = source.float(WEIGHTS_SCALE)?.filter(|scale| *scale != 0.0 && *scale != 1.0) {
        return Err(Error::Unsupported(format!("a factor of {scale} on the weights of experts")));
    }
    let Source::Config(fields) = source else { return Ok(()) };
    if let Some(kind) = fields.optional_text("scoring_func")?.filter(|kind| *kind != "softmax") {
        return Err(Error::Unsupported(format!("router '{kind}' ('scoring_func' in config.json)")));
    }
    if arch.activation == Activation::ClampedSwish {
        for (name, known) in [("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)] {
            if let Some(other) = fields.float(name)?.filter(|value| *value != known) {
                return Err(Error::Unsupported(format!("a value of {other} for '{name}'")));
            }
        }
    }
    Ok(())
}

/// What the weights of the chosen experts are a softmax over.
fn weights(source: Source<'_>, parts: ExpertParts) -> Result<RouteWeights, Error> {
    let renormalised = match (source.number(ROUTER)?, parts.renormalised) {
        (Some(SOFTMAX_OF_CHOSEN), _) => true,
        (None | Some(SOFTMAX), Renormalised::Always) => true,
        (None | Some(SOFTMAX), Renormalised::Given) => match source {
            // Converters write no key where the weights are renormalised.
            Source::Gguf { metadata, architecture } => {
                metadata.get(&format!("{architecture}.expert_weights_norm"))?.unwrap_or(true)
            }
            Source::Config(fields) => fields.flag("norm_topk_prob")? == Some(true),
        },
        (Some(other), _) => {
            return Err(Error::Unsupported(format!("router kind {other} ('expert_gating_func')")));
        }
    };
    Ok(if renormalised { RouteWeights::Chosen } else { RouteWeights::All })
}

/// Which layers have experts: `config.json` may name others.
fn sparse_layers(source: Source<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let step = source.number(SPARSE_STEP)?.unwrap_or(1).max(1);
    let dense = match source {
        Source::Config(fields) => fields.list("mlp_only_layers", serde_json::Value::as_u64)?,
        Source::Gguf { .. } => None,
    };
    let dense = dense.unwrap_or_default();
    Ok((0..layers as u64).map(|i| !dense.contains(&i) && (i + 1) % step == 0).collect())
}

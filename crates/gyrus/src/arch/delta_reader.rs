//! Reads which layers are Gated DeltaNet, and their shape.

use gyrus_kernels::{CONV_TAPS, DELTA_UNIT, DeltaShape, MAX_DELTA_DIM};
use serde_json::Value;

use super::config::{dimension, heads};
use super::description::DeltaTensors;
use super::ropes::{GLOBAL, RECURRENT};
use super::source::{Key, Source};
use crate::Error;

const TAPS: Key = Key::new("ssm.conv_kernel", &["linear_conv_kernel_dim"]);
const KEY_DIM: Key = Key::new("ssm.state_size", &["linear_key_head_dim"]);
const KEY_HEADS: Key = Key::new("ssm.group_count", &["linear_num_key_heads"]);
const VALUE_HEADS: Key = Key::new("ssm.time_step_rank", &["linear_num_value_heads"]);
const VALUE_DIM: Key = Key::new("", &["linear_value_head_dim"]);
/// Elements of all value heads.
const VALUE_WIDTH: Key = Key::new("ssm.inner_size", &[]);
const RECURRENT_LAYERS: Key = Key::new("attention.recurrent_layers", &[]);
const INTERVAL: Key = Key::new("full_attention_interval", &["full_attention_interval"]);

/// Every how many layers one has attention, in files that do not say it.
const DEFAULT_INTERVAL: u64 = 4;

/// The shape of each of `count` layers that is Gated DeltaNet.
pub(super) fn shapes(
    source: Source<'_>,
    tensors: DeltaTensors,
    count: usize,
) -> Result<Vec<Option<DeltaShape>>, Error> {
    let recurrent = recurrent(source, count)?;
    let shape = match recurrent.contains(&true) {
        true => Some(shape(source, tensors)?),
        false => None,
    };
    Ok(recurrent.into_iter().map(|recurrent| shape.filter(|_| recurrent)).collect())
}

fn shape(source: Source<'_>, tensors: DeltaTensors) -> Result<DeltaShape, Error> {
    let taps = source.require(TAPS)?;
    if taps != CONV_TAPS as u64 {
        return Err(Error::Unsupported(format!("a convolution of {taps} taps, not {CONV_TAPS},")));
    }
    let (value_heads, key_heads) = heads(source.require(VALUE_HEADS)?, source.require(KEY_HEADS)?)?;
    let is_gguf = matches!(source, Source::Gguf { .. });
    let value_dim = match is_gguf {
        true => {
            let width = source.require(VALUE_WIDTH)?;
            if !width.is_multiple_of(value_heads as u64) {
                let expected = format!("it must be a multiple of the {value_heads} value heads");
                return Err(Error::Dimension { name: "inner size", value: width, expected });
            }
            width / value_heads as u64
        }
        false => source.require(VALUE_DIM)?,
    };
    Ok(DeltaShape {
        key_heads,
        value_heads,
        key_dim: head_dim("key head size", source.require(KEY_DIM)?)?,
        value_dim: head_dim("value head size", value_dim)?,
        // llama.cpp's converter puts value heads in another order.
        tiled: is_gguf && tensors == DeltaTensors::ByPart,
    })
}

fn head_dim(name: &'static str, value: u64) -> Result<usize, Error> {
    let dim = dimension(name, value)?;
    if dim > MAX_DELTA_DIM || !dim.is_multiple_of(DELTA_UNIT) {
        let expected = format!("it must be a multiple of {DELTA_UNIT}, at most {MAX_DELTA_DIM}");
        return Err(Error::Dimension { name, value, expected });
    }
    Ok(dim)
}

/// Which layers are recurrent: from a list, or all but every n-th.
fn recurrent(source: Source<'_>, count: usize) -> Result<Vec<bool>, Error> {
    if let Source::Config(fields) = source
        && let Some(types) = fields.list("layer_types", Value::as_str)?
    {
        if types.len() != count {
            return Err(Error::Config(format!("{} 'layer_types' for {count} layers", types.len())));
        }
        let is_recurrent = |name: &&str| match *name {
            RECURRENT => Ok(true),
            GLOBAL => Ok(false),
            other => Err(Error::Unsupported(format!("layer type '{other}'"))),
        };
        return types.iter().map(is_recurrent).collect();
    }
    if let Some(flags) = source.flags(RECURRENT_LAYERS, count)? {
        return Ok(flags);
    }
    let interval = source.number(INTERVAL)?.unwrap_or(DEFAULT_INTERVAL);
    Ok((1..=count as u64).map(|i| interval == 0 || i % interval != 0).collect())
}

use super::activate;
use crate::delta::{CONV_TAPS, DeltaShape, L2_EPS};
use crate::op::Activation;

/// The weights of [`delta_conv`].
#[derive(Debug, Clone, Copy)]
pub struct DeltaConvWeights<'a> {
    /// `[channels, CONV_TAPS]`, the oldest input's tap first.
    pub taps: &'a [f32],
    /// `[value_heads]`.
    pub a: &'a [f32],
    /// `[value_heads]`.
    pub bias: &'a [f32],
    /// Whether `-exp(a)` is used instead of `a`.
    pub a_is_log: bool,
}

/// Prepares one row: `inputs` are the channels of this row, the last, and of the rows before it; `gates` has `b` and
/// `alpha` of each value head. `out` is `[prepared_width]`.
pub fn delta_conv(
    shape: &DeltaShape,
    weights: DeltaConvWeights<'_>,
    inputs: [&[f32]; CONV_TAPS],
    gates: &[f32],
    out: &mut [f32],
) {
    let (channels, heads) = (shape.channels(), shape.value_heads);
    let (values, factors) = out.split_at_mut(channels);
    for (channel, value) in values.iter_mut().enumerate() {
        let taps = &weights.taps[channel * CONV_TAPS..][..CONV_TAPS];
        let sum: f64 = taps.iter().zip(inputs).map(|(tap, x)| f64::from(*tap) * f64::from(x[channel])).sum();
        *value = activate(Activation::Silu, sum as f32);
    }
    for (i, head) in values[..2 * shape.key_width()].chunks_exact_mut(shape.key_dim).enumerate() {
        let squares: f64 = head.iter().map(|x| f64::from(*x).powi(2)).sum();
        let scale = if i < shape.key_heads { (shape.key_dim as f64).sqrt().recip() } else { 1.0 };
        let factor = (scale / (squares + f64::from(L2_EPS)).sqrt()) as f32;
        head.iter_mut().for_each(|x| *x *= factor);
    }
    let (betas, decays) = factors.split_at_mut(heads);
    for head in 0..heads {
        betas[head] = activate(Activation::Sigmoid, gates[head]);
        let a = f64::from(weights.a[head]);
        let a = if weights.a_is_log { -a.exp() } else { a };
        let x = f64::from(gates[heads + head]) + f64::from(weights.bias[head]);
        let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
        decays[head] = (a * softplus).exp() as f32;
    }
}

/// One row of the gated delta rule. `state` is `[value_heads, value_dim, key_dim]`: columns of `S` are contiguous.
pub fn delta_rule(shape: &DeltaShape, state: &mut [f32], prepared: &[f32], out: &mut [f32]) {
    let (key_width, n) = (shape.key_width(), shape.key_dim);
    let values = &prepared[2 * key_width..][..shape.value_width()];
    let (betas, decays) = prepared[shape.channels()..].split_at(shape.value_heads);
    let columns = state.chunks_exact_mut(n).zip(values).zip(out).enumerate();
    for (i, ((column, value), out)) in columns {
        let head = i / shape.value_dim;
        let at = shape.key_head(head) * n;
        let (query, key) = (&prepared[at..at + n], &prepared[key_width + at..][..n]);
        column.iter_mut().for_each(|s| *s *= decays[head]);
        let dot = |column: &[f32], x: &[f32]| -> f64 {
            column.iter().zip(x).map(|(s, x)| f64::from(*s) * f64::from(*x)).sum()
        };
        let u = (value - dot(column, key) as f32) * betas[head];
        column.iter_mut().zip(key).for_each(|(s, k)| *s += k * u);
        *out = dot(column, query) as f32;
    }
}

/// Adds the channels of a row to the last inputs, `[CONV_TAPS - 1, channels]`, the oldest first, and drops the oldest.
pub fn push_input(shape: &DeltaShape, inputs: &mut [f32], x: &[f32]) {
    let channels = shape.channels();
    inputs.copy_within(channels.., 0);
    let last = inputs.len() - channels;
    inputs[last..].copy_from_slice(&x[..channels]);
}

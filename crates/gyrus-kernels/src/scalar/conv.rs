use std::f64::consts::{PI, SQRT_2};

use crate::call::{Conv1dCall, ConvActivation};

/// A one-dimensional convolution: `x: [in_channels, length]`, `weight: [out_channels, in_channels, taps]`. All in
/// `f64`,
/// once.
pub fn conv1d(call: &Conv1dCall, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let (inputs, taps, length) = (call.in_channels as usize, call.taps as usize, call.length as usize);
    let (outputs, out_length) = (call.out_channels as usize, call.out_length() as usize);
    let mut out = vec![0.0; outputs * out_length];
    for o in 0..outputs {
        for t in 0..out_length {
            let mut sum = if call.bias { bias[o].into() } else { 0.0 };
            for c in 0..inputs {
                for k in 0..taps {
                    let at = (t * call.stride as usize + k).checked_sub(call.padding as usize);
                    if let Some(at) = at.filter(|at| *at < length) {
                        let w: f64 = weight[(o * inputs + c) * taps + k].into();
                        sum += w * f64::from(x[c * length + at]);
                    }
                }
            }
            let y = match call.activation {
                ConvActivation::None => sum,
                ConvActivation::Gelu => 0.5 * sum * (1.0 + erf(sum / SQRT_2)),
                ConvActivation::GeluTanh => {
                    0.5 * sum * (1.0 + ((2.0 / PI).sqrt() * (sum + 0.044715 * sum.powi(3))).tanh())
                }
            };
            out[if call.rows { t * outputs + o } else { o * out_length + t }] = y as f32;
        }
    }
    out
}

/// The error function, by the series `2/√π · e^(−x²) · Σ 2ⁿ·x²ⁿ⁺¹ / (2n+1)!!`, whose terms all have one sign.
pub(super) fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-17 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    2.0 / PI.sqrt() * (-x * x).exp() * sum
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn the_error_function_has_its_tabled_values() {
        for (x, y) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (-2.0, -0.995_322_265_018_952_7),
            (3.5, 0.999_999_256_901_627_7),
            (40.0, 1.0),
        ] {
            assert!((erf(x) - y).abs() < 4e-15, "{x}: {}", erf(x));
        }
    }
}

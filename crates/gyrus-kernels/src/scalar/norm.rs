use crate::call::Norm;

/// Normalises one row, `x` to `out`; `bias` is read only if the norm has one. All in `f64`, rounded once.
pub fn norm(norm: Norm, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
    let mean_of = |f: &dyn Fn(f64) -> f64| x.iter().map(|&v| f(v.into())).sum::<f64>() / x.len() as f64;
    let mean = match norm {
        Norm::Layer { .. } => mean_of(&|v| v),
        Norm::Rms | Norm::RmsPlusOne => 0.0,
    };
    let scale = 1.0 / (mean_of(&|v| (v - mean) * (v - mean)) + f64::from(eps)).sqrt();
    for (i, (out, &x)) in out.iter_mut().zip(x).enumerate() {
        let weight = match norm {
            Norm::RmsPlusOne => f64::from(weight[i]) + 1.0,
            Norm::Rms | Norm::Layer { .. } => weight[i].into(),
        };
        let bias = if norm == (Norm::Layer { bias: true }) { bias[i].into() } else { 0.0 };
        *out = ((f64::from(x) - mean) * scale * weight + bias) as f32;
    }
}

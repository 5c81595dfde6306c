use half::f16;

use crate::call::F16RowsCall;

/// Rows of activations as f16, in the words that kernels exchange.
#[derive(Debug, Clone, PartialEq)]
pub struct F16Rows {
    /// `[rows, stride]` f16, two a word, zero beyond a row's end.
    pub h: Vec<u32>,
    /// The scale of each row.
    pub scales: Vec<f32>,
    stride: usize,
}

/// Rows as `v ≈ scale·h`, the largest magnitude of `h` between 2^14 and 2^15. `norm` has the weights of an RMS norm, if
/// one is applied: its factor is part of the scale. A row that contains NaN or infinity gets it as its scale.
pub fn f16_rows(call: &F16RowsCall, x: &[f32], norm: &[f32]) -> F16Rows {
    let (rows, cols, stride) = (call.rows as usize, call.cols as usize, call.stride() as usize);
    let mut out = F16Rows { h: vec![0; rows * stride / 2], scales: vec![0.0; rows], stride };
    for row in 0..rows {
        let x = &x[row * call.x_stride as usize..][..cols];
        let values: Vec<f32> = match call.norm {
            Some(_) => x.iter().zip(norm).map(|(x, w)| x * w).collect(),
            None => x.to_vec(),
        };
        let largest = values.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
        let exponent = (largest >> 23).clamp(15, 254);
        let factor = f32::from_bits((268 - exponent) << 23);
        for (i, v) in values.iter().enumerate() {
            let bits = u32::from(f16::from_f32(v * factor).to_bits());
            out.h[(row * stride + i) / 2] |= bits << (16 * (i % 2));
        }
        let mut scale = f64::from(f32::from_bits((exponent - 14) << 23));
        if let Some(eps) = call.norm {
            let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
            scale /= (squares / cols as f64 + f64::from(eps)).sqrt();
        }
        out.scales[row] = if largest >= 0x7f80_0000 { f32::from_bits(largest) } else { scale as f32 };
    }
    out
}

impl F16Rows {
    /// A row's f16 values, with its padding.
    pub fn values(&self, row: usize) -> Vec<f32> {
        let words = &self.h[row * self.stride / 2..][..self.stride / 2];
        words
            .iter()
            .flat_map(|w| [*w as u16, (*w >> 16) as u16])
            .map(|bits| f16::from_bits(bits).to_f32())
            .collect()
    }
}

//! Rows of activations for products: int8 with scales, merged splits of attention, f16.

use crate::call::engine::{self, MOST_SPLITS};
use crate::call::{F16RowsCall, QuantizeCall, Source, Target};
use crate::grid::case::{Case, CaseBuffer, Int8, UNTOUCHED, largest};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::scalar;
use crate::shader::Rungs;

#[derive(Debug, Clone, Copy, PartialEq)]
enum From {
    F32,
    Norm,
    Squares,
    Merge { head_dim: usize },
}

const EPS: f32 = 1e-2;

pub(super) fn quantize(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let from = point.of(&[
        From::F32,
        From::Norm,
        From::Squares,
        From::Merge { head_dim: 32 },
        From::Merge { head_dim: 96 },
        From::Merge { head_dim: 128 },
    ]);
    let k: usize = point.of(&[32, 576, 768, 1536, 2048, 4160]);
    let rows: usize = point.of(&[1, 3, 9, 19]);
    let target = point.of(&[Target::Int8, Target::Int8, Target::F32]);
    let window = point.of(&[0, 700]);
    let padding = point.of(&[0, 8]);
    if let From::Merge { head_dim } = from
        && !k.is_multiple_of(head_dim)
    {
        return None;
    }
    let x_stride = k + padding;
    let stride = x_stride as u32;
    let source = match from {
        From::F32 => Source::F32 { x_stride: stride },
        From::Norm => Source::Norm { x_stride: stride, eps: EPS },
        From::Squares => Source::Squares { x_stride: stride },
        From::Merge { head_dim } => Source::Merge { head_dim: head_dim as u32, window },
    };
    let call = QuantizeCall { rows: rows as u32, cols: k as u32, source, target };
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let mut buffers = Vec::new();
        let values = if let From::Merge { head_dim } = from {
            merged(&mut noise, rows, k, head_dim, window, &mut buffers)
        } else {
            let mut x = noise.floats(rows * x_stride, 4.0);
            // A block of zeros has scale 0.
            x[..32].fill(0.0);
            buffers.push(CaseBuffer::floats("x", &x));
            let mut values: Vec<f32> = x.chunks_exact(x_stride).flat_map(|x| &x[..k]).copied().collect();
            if from != From::F32 {
                let weight = noise.floats(k, 2.0);
                buffers.push(CaseBuffer::floats("weight", &weight));
                buffers.push(of_norm(from, &values, k));
                values.iter_mut().zip(weight.iter().cycle()).for_each(|(x, w)| *x *= w);
            }
            values
        };
        let merges = matches!(from, From::Merge { .. });
        if target == Target::Int8 {
            // Division and exp of a device are a few ulp off.
            let precision = if merges { 2e-5 } else { 4e-7 };
            let rows = Int8 { scales: "q_scales", cols: k, precision, errors: vec![0.0; rows], values };
            buffers.extend(CaseBuffer::int8("q", rows));
        } else if let From::Merge { head_dim } = from {
            let most: Vec<f64> = values.chunks_exact(head_dim).map(largest).collect();
            buffers.push(CaseBuffer::near("q", &values, |i| 1e-5 * most[i / head_dim]));
        } else {
            buffers.push(CaseBuffer::near("q", &values, |_| 0.0));
        }
        buffers
    };
    Some(Case::new(format!("{call:?}"), call.launch(rungs).ok()?, twin))
}

/// What a norm adds: 1 / rms of each row, or the sums of squares of its blocks.
fn of_norm(from: From, x: &[f32], k: usize) -> CaseBuffer {
    if from == From::Norm {
        let factors: Vec<f32> = x.chunks_exact(k).map(|x| scalar::inverse_rms(x, EPS) as f32).collect();
        return CaseBuffer::near("factors", &factors, |i| 1e-6 * f64::from(factors[i]));
    }
    let square = |x: &[f32]| x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>() as f32;
    let squares: Vec<f32> = x.chunks_exact(32).map(square).collect();
    CaseBuffer::near("squares", &squares, |i| 1e-6 * f64::from(squares[i]))
}

/// Random splits and their merge. Splits that a row does not have are NaN, and must not matter.
fn merged(
    noise: &mut Noise,
    rows: usize,
    k: usize,
    head_dim: usize,
    window: u32,
    buffers: &mut Vec<CaseBuffer>,
) -> Vec<f32> {
    let (mut partials, mut positions, mut values) = (Vec::new(), Vec::new(), vec![0.0; rows * k]);
    for out in values.chunks_exact_mut(k) {
        let position = noise.below(3000);
        let splits = engine::splits(position, window);
        let first = partials.len();
        for split in (0..k / head_dim).flat_map(|_| 0..MOST_SPLITS) {
            let (most, total) = (20.0 * noise.number(), 1.0 + 63.0 * noise.number().abs());
            let sums = noise.floats(head_dim, total);
            let part = sums.into_iter().chain([most as f32, total as f32, f32::NAN, f32::NAN]);
            partials.extend(part.map(|v| if split < splits { v } else { f32::NAN }));
        }
        scalar::merge(&partials[first..], head_dim, splits as usize, MOST_SPLITS as usize, out);
        positions.extend([position, UNTOUCHED]);
    }
    buffers.push(CaseBuffer::floats("partials", &partials));
    buffers.push(CaseBuffer::read("rows", positions));
    values
}

/// F16 to the last bit; scales too, but for the rounding of a norm.
pub(super) fn f16_rows(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let cols = point.of(&[4, 64, 68, 1100, 2048]);
    let rows = point.of(&[1, 3, 5, 7]);
    let norm = point.of(&[None, Some(1e-5), Some(1e-6)]);
    let padding = point.of(&[8, 0]);
    let call = F16RowsCall { rows, cols, x_stride: cols + padding, norm };
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let mut x: Vec<f32> = Vec::new();
        for row in 0..rows as usize {
            // From the smallest values to the largest whose sum of squares is finite, and one row of zeros.
            let most = 1e19 / f64::from(cols).sqrt();
            x.extend(noise.floats(call.x_stride as usize, [1.0, 0.0, 1e-18, most, 3e4][row % 5]));
        }
        let weights = noise.floats(cols as usize, 1.0);
        let twin = scalar::f16_rows(&call, &x, &weights);
        let ulps = if norm.is_some() { 2e-6 } else { 0.0 };
        let scales = CaseBuffer::near("h_scales", &twin.scales, |i| ulps * f64::from(twin.scales[i]));
        let h = CaseBuffer::exact("h", vec![UNTOUCHED; twin.h.len()], twin.h.clone());
        vec![CaseBuffer::floats("x", &x), CaseBuffer::floats("norm", &weights), h, scales]
    };
    Some(Case::new(format!("{call:?}"), call.launch(rungs).ok()?, twin))
}

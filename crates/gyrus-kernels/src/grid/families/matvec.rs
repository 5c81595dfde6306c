//! Mat-vecs of int8 activations, with the prologues that quantise, normalise and merge, and with gates.

use gyrus_tensor::DType;

use super::matmul::Output;
use crate::call::engine::{self, MOST_SPLITS};
use crate::call::{Input, MatVecCall, MatVecSizes, MatVecTuning};
use crate::grid::case::{Case, CaseBuffer, UNTOUCHED};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::grid::weights::{Weight, dtypes};
use crate::op::Activation;
use crate::scalar::{self, QuantizedRows, quantize_rows};
use crate::shader::Rungs;
use crate::weights::WeightLayout;

/// The value that errors of a sum of int8 products are relative to: a sum of magnitudes that no partial sum exceeds.
/// Offsets and quants are summed separately; as quants use most of their range, neither sum is more than a few times the
/// largest value.
pub fn int8_magnitude(w: &[f32], x: &[f32]) -> f64 {
    let largest = |w: &[f32]| w.iter().fold(0f32, |most, w| most.max(w.abs()));
    let chunks = w.chunks(16).zip(x.chunks(16));
    chunks.map(|(w, x)| f64::from(6.0 * largest(w) * x.iter().map(|x| x.abs()).sum::<f32>())).sum()
}

/// Rows of `k` whose blocks are int8 times a power of two, so that every device quantises them to the same int8.
pub(super) fn exact_rows(noise: &mut Noise, rows: usize, k: usize) -> Vec<f32> {
    let mut x: Vec<f32> = Vec::with_capacity(rows * k);
    for block in 0..rows * k / 32 {
        // The second block of the first row is zero.
        let scale = if block == 1 { 0.0 } else { 2f32.powi(noise.below(4) as i32 - 6) };
        let largest = noise.below(32);
        x.extend((0..32).map(|i| scale * if i == largest { 127.0 } else { noise.below(255) as f32 - 127.0 }));
    }
    x
}

/// The power of two by which products are multiplied so that most gates are where their function is not linear.
fn gate_scale(weight: &Weight, x: &[f32], k: usize, factor: f64) -> f64 {
    let mut product = vec![0.0; weight.values.len() / k];
    scalar::matmul(&weight.values, &x[..k], false, &mut product);
    let squares: f64 = product.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    let rms = (squares / product.len() as f64).sqrt() * factor;
    if rms > 0.0 { 2f64.powi(-(rms / 2.0).log2().round() as i32) } else { 1.0 }
}

/// Products of int8 rows, times 1 / rms, gated, and added to an output, with their tolerances.
pub(super) fn products(
    weight: &Weight,
    x: &QuantizedRows,
    factors: &[f64],
    gate: Option<Activation>,
    y: &mut Output,
) {
    let k = weight.planes.layout.cols() as usize;
    let n = weight.planes.layout.rows() as usize;
    let width = if gate.is_some() { n / 2 } else { n };
    for (row, factor) in factors.iter().enumerate() {
        let x = x.values(row);
        let mut product = vec![0.0; n];
        scalar::matmul(&weight.values, &x, false, &mut product);
        product.iter_mut().for_each(|v| *v = (f64::from(*v) * factor) as f32);
        // A term is rounded a few dozen times in its sum.
        let slack: Vec<f64> = weight
            .values
            .chunks_exact(k)
            .zip(&product)
            .map(|(w, v)| 5e-7 * factor * int8_magnitude(w, &x) + 1e-6 * f64::from(v.abs()))
            .collect();
        let mut out = product[..width].to_vec();
        if let Some(activation) = gate {
            scalar::gate(activation, &product, &mut out);
        }
        for (column, out) in out.iter().enumerate() {
            let mut tolerance = slack[column];
            if gate.is_some() {
                let (g, up) = (f64::from(product[column]), f64::from(product[width + column]).abs());
                // Neither function is steeper than 1.2 nor larger than its argument; exp and tanh are exact to a few
                // ulp of one.
                let of_gate = 1.2 * slack[column] + 2e-6 * g.abs();
                tolerance = of_gate * (up + slack[width + column]) + g.abs() * slack[width + column];
            }
            let before = y.before(row, column);
            y.set(row, column, out + before as f32, tolerance + 1e-7 * before.abs());
        }
    }
}

/// The input of a grid's point.
#[derive(Debug, Clone, Copy, PartialEq)]
enum From {
    Int8 {
        rows: usize,
        norm: bool,
    },
    F32,
    Norm,
    /// Positions as parameters, or in a buffer.
    Merge {
        told: bool,
    },
}

const INPUTS: [From; 10] = [
    From::Int8 { rows: 1, norm: false },
    From::F32,
    From::Int8 { rows: 3, norm: true },
    From::Norm,
    From::Merge { told: false },
    From::Int8 { rows: 2, norm: false },
    From::Int8 { rows: 4, norm: true },
    From::Merge { told: true },
    From::Int8 { rows: 9, norm: false },
    From::Int8 { rows: 19, norm: true },
];

const fn tuning(workgroup: u32, columns: u32, splits: u32, passes: u32) -> MatVecTuning {
    MatVecTuning { workgroup, columns, splits, passes }
}

/// Workgroup, columns, splits and passes. Blocks are no multiple of the lanes, and rows of the matrix none of what a
/// workgroup takes.
const TUNINGS: [MatVecTuning; 7] = [
    tuning(64, 1, 1, 1),
    tuning(128, 2, 1, 3),
    tuning(128, 1, 2, 2),
    tuning(256, 2, 4, 1),
    tuning(64, 8, 1, 1),
    tuning(32, 4, 1, 2),
    tuning(64, 2, 1, 8),
];

const EPS: f32 = 1e-2;

pub(super) fn case(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let quantized: Vec<DType> = dtypes().into_iter().filter(|dtype| dtype.is_quantized()).collect();
    let dtype = point.of(&quantized);
    let from = point.of(&INPUTS);
    let k =
        point.of(if dtype.block_elems() == 32 { &[576, 32, 1536, 4160] } else { &[256, 768, 1536, 2048] });
    let n = point.of(&[14, 2, 26, 36]);
    let gate = point.of(&[None, None, Some(Activation::Silu), Some(Activation::GeluTanh)]);
    let accumulate = point.of(&[false, true]);
    let tuning = point.of(&TUNINGS);
    let window = point.of(&[0, 700]);
    make(point.seed, rungs, Form { dtype, n, k, from, gate, accumulate, tuning, window })
}

/// Tiles of sixteen rows, and more workgroups than fit one axis of a grid.
pub(super) fn large(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let (dtype, n, k, from, tuning) = point.of(&[
        (DType::Q8_0, 66_001, 32, From::F32, tuning(32, 1, 1, 1)),
        (DType::Q4_0, 1030, 320, From::Int8 { rows: 19, norm: true }, tuning(256, 4, 8, 1)),
    ]);
    let form = Form { dtype, n, k, from, gate: None, accumulate: false, tuning, window: 0 };
    make(point.seed, rungs, form)
}

#[derive(Debug, Clone, Copy)]
struct Form {
    dtype: DType,
    n: usize,
    k: usize,
    from: From,
    gate: Option<Activation>,
    accumulate: bool,
    tuning: MatVecTuning,
    window: u32,
}

fn make(seed: u64, rungs: Rungs, form: Form) -> Option<Case> {
    let Form { dtype, n, k, from, gate, accumulate, tuning, window } = form;
    let rows = if let From::Int8 { rows, .. } = from { rows } else { 1 };
    let position = Noise::new(!seed).below(3000);
    let head_dim = if k.is_multiple_of(96) { 96 } else { 32 };
    let input = match from {
        From::Int8 { norm, .. } => Input::Int8 { norm },
        From::F32 => Input::F32,
        From::Norm => Input::Norm { eps: EPS },
        From::Merge { told } => {
            Input::Merge { head_dim: head_dim as u32, window, position: told.then_some(position) }
        }
    };
    let (width, y_offset) = (if gate.is_some() { n / 2 } else { n }, 3);
    let y_stride = width + y_offset + 2;
    let call = MatVecCall {
        weight: WeightLayout::new(dtype, n, k).ok()?,
        rows: rows as u32,
        input,
        gate,
        y_stride: y_stride as u32,
        y_offset: y_offset as u32,
        accumulate,
        experts: None,
        tuning,
        sizes: MatVecSizes::H200,
    };
    let twin = move || {
        let mut noise = Noise::new(seed);
        let weight = Weight::new(&mut noise, dtype, n, k);
        let mut x = exact_rows(&mut noise, rows, k);
        let mut factors = vec![1.0; rows];
        let mut buffers = weight.buffers();
        // Signs and powers of two, so that products with the weights of a norm are exact.
        let mut norm: Vec<f32> =
            (0..k).map(|_| 2f32.powi(noise.below(4) as i32) * noise.pick(&[1.0, -1.0])).collect();
        if from == From::Norm {
            let of_norm =
                |x: &[f32], norm: &[f32]| -> Vec<f32> { x.iter().zip(norm).map(|(x, w)| x / w).collect() };
            let factor = scalar::inverse_rms(&of_norm(&x, &norm), EPS);
            let scale = if gate.is_some() { gate_scale(&weight, &x, k, factor) as f32 } else { 1.0 };
            norm.iter_mut().for_each(|w| *w *= scale);
            factors[0] = scalar::inverse_rms(&of_norm(&x, &norm), EPS);
            buffers.push(CaseBuffer::floats("norm_weight", &norm));
            buffers.push(CaseBuffer::floats("x", &of_norm(&x, &norm)));
        } else if gate.is_some() {
            let scale = gate_scale(&weight, &x, k, 1.0) as f32;
            x.iter_mut().for_each(|x| *x *= scale);
        }
        let quantized = quantize_rows(rows, k, k, &x);
        match from {
            From::Int8 { norm, .. } => {
                buffers.push(CaseBuffer::read("x", quantized.q.clone()));
                buffers.push(CaseBuffer::read("x_scales", quantized.scales.clone()));
                if norm {
                    let of_rows: Vec<f32> = (0..rows).map(|_| 1.25 + noise.number() as f32).collect();
                    factors = of_rows.iter().map(|factor| f64::from(*factor)).collect();
                    buffers.push(CaseBuffer::floats("factors", &of_rows));
                }
            }
            From::F32 => buffers.push(CaseBuffer::floats("x", &x)),
            From::Norm => {}
            From::Merge { told } => {
                let splits = engine::splits(position, window);
                let heads = k / head_dim;
                buffers.push(CaseBuffer::floats("partials", &partials(&mut noise, &x, heads, splits)));
                if !told {
                    buffers.push(CaseBuffer::read("rows", vec![position, UNTOUCHED]));
                }
            }
        }
        let mut y = Output::new(&mut noise, rows, y_stride, y_offset, accumulate);
        products(&weight, &quantized, &factors, gate, &mut y);
        buffers.push(y.buffer("y"));
        buffers
    };
    let launch = call.launch(rungs).ok()?;
    let name = format!("{dtype} {n} × {k} of {from:?}, {gate:?}, {accumulate}, {tuning:?}, window {window}");
    Some(Case { workgroup_bytes: call.workgroup_bytes(), ..Case::new(name, launch, twin) })
}

/// Splits whose merge is exactly `x`: their running maxima are equal and the sum of exponentials is 64. Splits that a
/// row does not have are NaN.
fn partials(noise: &mut Noise, x: &[f32], heads: usize, splits: u32) -> Vec<f32> {
    let head_dim = x.len() / heads;
    let mut partials = Vec::new();
    for x in x.chunks_exact(head_dim) {
        let most = noise.number() as f32 * 20.0;
        let mut rest: Vec<f32> = x.iter().map(|x| 64.0 * x).collect();
        let mut parts = vec![f32::NAN; MOST_SPLITS as usize * (head_dim + 4)];
        for (split, part) in parts.chunks_exact_mut(head_dim + 4).take(splits as usize).enumerate().rev() {
            for ((part, rest), x) in part.iter_mut().zip(&mut rest).zip(x) {
                // The first split has what the others lack. All are small multiples of the block's scale.
                *part = if split == 0 { *rest } else { x * (noise.below(9) as f32 - 4.0) };
                *rest -= *part;
            }
            let total = if split == 0 { 65.0 - splits as f32 } else { 1.0 };
            (part[head_dim], part[head_dim + 1]) = (most, total);
        }
        partials.extend(parts);
    }
    partials
}

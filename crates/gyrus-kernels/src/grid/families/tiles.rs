//! Products of many rows in f16 tiles, whole and split along k.

use half::f16;

use super::matmul::Output;
use crate::call::{F16RowsCall, SumTilesCall, TileCall, TileShape, TileTuning};
use crate::grid::case::{Case, CaseBuffer, Step};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::grid::weights::{Weight, dtypes};
use crate::op::Activation;
use crate::scalar;
use crate::shader::Rungs;
use crate::weights::WeightLayout;

const LARGE: TileShape = TileShape::new(128, 128);
const TALL: TileShape = TileShape::new(128, 64);
const SMALL: TileShape = TileShape::new(64, 64);

/// Shapes; those with cooperative matrices differ from others in what only these read, and are refused without them.
const SHAPES: [TileShape; 15] = [
    SMALL,
    LARGE,
    TALL,
    TileShape::new(64, 128),
    TileShape::new(32, 64),
    TileShape { matrices: [4, 4], ..LARGE },
    TileShape { step: 64, ..SMALL },
    TileShape { step: 64, ..TALL },
    TileShape { side: 8, matrices: [4, 4], ..SMALL },
    TileShape { matrices: [2, 1], step: 128, ..SMALL },
    TileShape { matrices: [1, 1], step: 128, ..TileShape::new(64, 32) },
    TileShape { matrices: [1, 1], step: 128, ..TileShape::new(32, 32) },
    TileShape { matrices: [1, 1], step: 256, ..TileShape::new(32, 32) },
    TileShape { matrices: [1, 1], step: 64, ..TileShape::new(64, 32) },
    SMALL,
];

pub(super) fn case(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let dtype = point.of(&dtypes());
    let k: usize = point.of(match dtype.block_elems() {
        1 => &[8, 200, 12],
        32 => &[32, 352, 416],
        _ => &[256, 768, 512],
    });
    let (rows, n): (usize, usize) = point.of(&[(17, 70), (130, 34), (64, 64)]);
    let gate = point.of(&[None, None, Some(Activation::Silu), Some(Activation::GeluTanh)]);
    let bias = point.of(&[false, true]);
    let activation = point.of(&[None, None, Some(Activation::Gelu), Some(Activation::Relu)]);
    let splits = point.of(&[1, 1, 3, 4]);
    let (offset, padding, accumulate) = point.of(&[(0, 0, false), (3, 2, true), (1, 0, false)]);
    let shape = point.of(&SHAPES);
    // Other shapes are those of cooperative matrices; all types are read in the smallest.
    let plain = shape.step == 32 && shape.side == 16 && shape.matrices != [4, 4];
    if !rungs.cooperative && !plain {
        return None;
    }
    let mut call =
        TileCall { gate, splits, ..TileCall::new(WeightLayout::new(dtype, n, k).ok()?, rows as u32) };
    call.bias = bias && splits == 1;
    call.activation = activation.filter(|_| gate.is_none() && splits == 1);
    call.accumulate = accumulate && gate.is_none() && call.activation.is_none();
    call.y_offset = offset;
    call.y_stride = call.columns() + offset + padding;
    call.tuning = TileTuning { shape: Some(shape), ..Default::default() };
    let launch = call.launch(rungs).ok()?;
    let steps = if splits > 1 {
        let sum = SumTilesCall::after(&call).launch(rungs).ok()?;
        vec![Step::new(launch).with("y", "parts"), Step::new(sum)]
    } else {
        vec![Step::new(launch)]
    };
    let seed = point.seed;
    let twin = move || twin(&mut Noise::new(seed), call, rungs.cooperative);
    Some(Case::chain(format!("{dtype} {n} × {k}, {call:?}"), steps, twin))
}

fn twin(noise: &mut Noise, call: TileCall, cooperative: bool) -> Vec<CaseBuffer> {
    let (rows, k) = (call.rows as usize, call.weight.cols() as usize);
    let n = call.columns() as usize;
    let weight = Weight::new(noise, call.weight.dtype(), call.weight.rows() as usize, k);
    // Rows of very different magnitude, each with small and large values.
    let mut x = vec![0.0; rows * k];
    for row in x.chunks_exact_mut(k) {
        let size = 2f64.powi(noise.below(40) as i32 - 20);
        row.fill_with(|| (noise.number() * size * if noise.below(8) == 0 { 1e-3 } else { 1.0 }) as f32);
    }
    let of_rows = F16RowsCall { rows: call.rows, cols: k as u32, x_stride: k as u32, norm: None };
    let f16_rows = scalar::f16_rows(&of_rows, &x, &[]);
    let mut values = weight.values.clone();
    if cooperative {
        values.iter_mut().for_each(|w| *w = f16::from_f32(*w).to_f32());
    }
    let biases = if call.bias { noise.gaussians(values.len() / k) } else { vec![0.0; values.len() / k] };
    let mut y = Output::new(noise, rows, call.y_stride as usize, call.y_offset as usize, call.accumulate);
    for row in 0..rows {
        let x = f16_rows.values(row);
        let scale = f64::from(f16_rows.scales[row]);
        // The product, and the sum of magnitudes, which its error is relative to.
        let products: Vec<(f64, f64)> = values
            .chunks_exact(k)
            .zip(&biases)
            .map(|(w, bias)| {
                let bias = f64::from(*bias);
                let terms = w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x) * scale);
                terms.fold((bias, bias.abs()), |(sum, all), term| (sum + term, all + term.abs()))
            })
            .collect();
        for column in 0..n {
            let before = y.before(row, column);
            let (value, magnitude) = match call.gate {
                None => match call.activation {
                    None => (products[column].0 + before, products[column].1 + before.abs()),
                    Some(activation) => {
                        let (sum, all) = products[column];
                        // Neither activation is steeper than 1.2.
                        (scalar::activate(activation, sum as f32).into(), 2.0 * (all + sum.abs()))
                    }
                },
                Some(activation) => {
                    let (gate, up) = (products[column], products[n + column]);
                    let mut out = [0.0];
                    scalar::gate(activation, &[gate.0 as f32, up.0 as f32], &mut out);
                    // Neither activation is steeper than 1.2; exp and tanh have errors of a few ulp.
                    let activated = f64::from(out[0]).abs() + 1.2 * gate.1 * up.0.abs();
                    (f64::from(out[0]), 4.0 * (activated + (gate.0.abs() + gate.1 * 1e-6) * up.1))
                }
            };
            // A term is rounded with every later one of its sum, each time by half an ulp (6e-8) of the partial sum,
            // which is small beside the sum of magnitudes. Cooperative matrices may truncate instead of rounding: on Hopper
            // the error reaches 1.3e-6.
            let of_magnitude = if cooperative { 2e-6 } else { 1e-6 };
            y.set(row, column, value as f32, of_magnitude * magnitude + 1e-37);
        }
    }
    let mut buffers = weight.buffers();
    buffers.push(CaseBuffer::read("x", f16_rows.h));
    buffers.push(CaseBuffer::floats("x_scales", &f16_rows.scales));
    buffers.push(CaseBuffer::floats("biases", &biases));
    if call.splits > 1 {
        buffers.push(CaseBuffer::scratch("parts", call.splits as usize * rows * n));
    }
    buffers.push(y.buffer("y"));
    buffers
}

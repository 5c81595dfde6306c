//! Mat-vecs by int8 cooperative matrices, and the epilogues that quantise their results.

use gyrus_tensor::DType;

use super::matmul::Output;
use super::matvec::{exact_rows, products};
use crate::call::{Input, MatVecCall, MatVecSizes, MatVecTuning, Results};
use crate::grid::case::{Case, CaseBuffer, Int8, Rule};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::grid::weights::Weight;
use crate::op::Activation;
use crate::scalar::quantize_rows;
use crate::shader::Rungs;
use crate::weights::WeightLayout;

const EPS: f32 = 1e-2;

/// One and two blocks a lane, splits, several tiles a workgroup; columns that are no multiple of a tile.
const SHAPES: [(usize, usize, u32, Results); 7] = [
    (26, 1024, 1, Results::F32),
    (35, 4096, 2, Results::F32),
    (2150, 1024, 1, Results::F32),
    (36, 8192, 4, Results::F32),
    (2048, 2048, 1, Results::NormedInt8),
    (8192, 2048, 1, Results::Int8),
    (1024, 1024, 1, Results::NormedInt8),
];

pub(super) fn case(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let dtype = point.of(&[DType::Q4_0, DType::Q5_0, DType::Q8_0, DType::IQ4_NL]);
    let (n, k, splits, results) = point.of(&SHAPES);
    let rows: usize = point.of(&[16, 9, 13, 1]);
    let input =
        point.of(&[Input::Int8 { norm: false }, Input::Int8 { norm: true }, Input::Int8Squares { eps: EPS }]);
    let gate = point.of(&[None, Some(Activation::Silu), Some(Activation::GeluTanh)]);
    let accumulate = point.of(&[false, true]);
    let width = if gate.is_some() { n / 2 } else { n };
    // Quantised results are contiguous.
    let offset = if results == Results::F32 { 3 } else { 0 };
    let stride = width + offset;
    let call = MatVecCall {
        weight: WeightLayout::new(dtype, n, k).ok()?,
        rows: rows as u32,
        input,
        gate,
        y_stride: stride as u32,
        y_offset: offset as u32,
        experts: None,
        accumulate,
        tuning: MatVecTuning { workgroup: 256, columns: 2, splits, passes: 1 },
        sizes: MatVecSizes::H200,
    };
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let weight = Weight::new(&mut noise, dtype, n, k);
        let quantized = quantize_rows(rows, k, k, &exact_rows(&mut noise, rows, k));
        let mut buffers = weight.buffers();
        let mut factors = vec![1.0; rows];
        match input {
            Input::Int8Squares { eps } => {
                let squares: Vec<f32> =
                    (0..rows * k / 32).map(|_| 64.0 * noise.number().abs() as f32).collect();
                for (factor, squares) in factors.iter_mut().zip(squares.chunks_exact(k / 32)) {
                    let sum: f64 = squares.iter().map(|square| f64::from(*square)).sum();
                    *factor = 1.0 / (sum / k as f64 + f64::from(eps)).sqrt();
                }
                buffers.push(CaseBuffer::floats("squares", &squares));
            }
            Input::Int8 { norm: true } => {
                let of_rows: Vec<f32> = (0..rows).map(|_| 1.25 + noise.number() as f32).collect();
                factors = of_rows.iter().map(|factor| f64::from(*factor)).collect();
                buffers.push(CaseBuffer::floats("factors", &of_rows));
            }
            _ => {}
        }
        buffers.push(CaseBuffer::read("x", quantized.q.clone()));
        buffers.push(CaseBuffer::read("x_scales", quantized.scales.clone()));
        let mut y = Output::new(&mut noise, rows, stride, offset, accumulate);
        products(&weight, &quantized, &factors, gate, &mut y);
        let y = y.buffer("y");
        if results != Results::F32 {
            buffers.extend(quantised_results(&mut noise, &y, rows, width, results));
        }
        buffers.push(y);
        buffers
    };
    let launch = call.launch_int8_matrix(rungs, results).ok()?;
    let name = format!("{dtype} {n} × {k}, {rows} rows, {input:?}, {gate:?}, {splits} splits, {results:?}");
    Some(Case { workgroup_bytes: call.int8_matrix_workgroup_bytes(), ..Case::new(name, launch, twin) })
}

/// The int8 of the results, times a norm's weight if there is one, and their sums of squares.
fn quantised_results(
    noise: &mut Noise,
    y: &CaseBuffer,
    rows: usize,
    width: usize,
    results: Results,
) -> Vec<CaseBuffer> {
    let Rule::Near(_, tolerances) = &y.rule else { return Vec::new() };
    let values: Vec<f32> = y.after.iter().map(|word| f32::from_bits(*word)).collect();
    let tolerance = |at: usize| tolerances[at].unwrap_or(0.0);
    let errors =
        (0..rows).map(|row| (row * width..(row + 1) * width).fold(0.0, |most, at| tolerance(at).max(most)));
    let mut rows_of = Int8 {
        scales: "q_scales",
        cols: width,
        precision: 5e-7,
        errors: errors.map(|error| error as f32).collect(),
        values: values.clone(),
    };
    let mut buffers = Vec::new();
    if results == Results::NormedInt8 {
        let weight = noise.floats(width, 1.0);
        rows_of.values.iter_mut().zip(weight.iter().cycle()).for_each(|(value, w)| *value *= w);
        let blocks = values.chunks_exact(32).enumerate();
        let (sums, tolerances): (Vec<f32>, Vec<f64>) = blocks
            .map(|(block, values)| {
                let sum: f64 = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
                let errors = values.iter().enumerate().map(|(i, v)| {
                    let error = tolerance(32 * block + i);
                    (2.0 * f64::from(v.abs()) + error) * error
                });
                (sum as f32, errors.sum::<f64>() + 1e-6 * sum)
            })
            .unzip();
        buffers.push(CaseBuffer::near("made", &sums, |i| tolerances[i]));
        buffers.push(CaseBuffer::floats("weight", &weight));
    }
    buffers.extend(CaseBuffer::int8("q", rows_of));
    buffers
}

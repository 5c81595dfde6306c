//! Weights in planes on a device: their values, embeddings, and products of up to 16 rows.

mod common;
#[path = "common/int8.rs"]
mod int8;
#[path = "common/weights.rs"]
mod weights;

use std::collections::BTreeSet;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::{
    EmbedCall, Input, MatMulCall, MatMulTuning, MatVecCall, MatVecTuning, QuantizeCall, Source, Target,
};
use gyrus_kernels::grid::{Noise, Runner};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Activation, Planes, WeightLayout, scalar};
use gyrus_tensor::DType;
use weights::{UNTOUCHED, Weight, dtypes, weight, words};

/// Rows of an embedding on the device; `UNTOUCHED` where it wrote nothing.
fn embed(runner: &GpuRunner, call: &EmbedCall, planes: &Planes, tokens: &[u32]) -> Vec<u32> {
    let launch = call.launch(runner.gpu().rungs()).unwrap();
    let mut buffers = planes.words.clone();
    buffers.push(tokens.to_vec());
    buffers.push(vec![UNTOUCHED; tokens.len() * call.y_stride as usize + 8]);
    runner.run_launch(&launch, &mut buffers).unwrap();
    buffers.pop().unwrap()
}

/// Looking up every row dequantises the matrix: no bit may differ from the reference.
fn values_are_those_of_the_reference(rungs: Rungs) {
    let Some(runner) = device(rungs) else { return };
    let mut noise = Noise::new(1);
    for dtype in dtypes() {
        let mut widths = vec![256, 768];
        if dtype.block_elems() == 32 {
            widths.extend([32, 96, 576]);
        } else if dtype.block_elems() == 1 {
            widths.extend([4, 12, 100]);
        }
        for k in widths {
            let n = 5;
            let weight = weight(&mut noise, dtype, n, k);
            let call = EmbedCall::new(weight.planes.layout, n as u32, 1.0);
            let found = embed(&runner, &call, &weight.planes, &[0, 1, 2, 3, 4]);
            for (i, (found, expected)) in found.iter().zip(words(&weight.values)).enumerate() {
                assert_eq!(*found, expected, "{dtype} × {k}: element {i} of {}", runner.name());
            }
            assert!(found[n * k..].iter().all(|word| *word == UNTOUCHED), "{dtype} × {k}");
        }
    }
}

#[test]
fn every_type_dequantises_to_the_last_bit() {
    values_are_those_of_the_reference(Rungs::ALL);
}

#[test]
fn every_type_dequantises_to_the_last_bit_without_any_rung() {
    values_are_those_of_the_reference(Rungs::NONE);
}

#[test]
fn an_embedding_scales_clamps_and_comes_in_parts() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let mut noise = Noise::new(2);
    let (n, k, scale) = (7, 512, 22.627_417);
    for dtype in [DType::Q6_K, DType::F16, DType::Q4_1] {
        let whole = weight(&mut noise, dtype, n, k);
        let tokens = [6, 0, 3, 3, 7, u32::MAX, 2];
        let call = EmbedCall {
            y_stride: k as u32 + 4,
            ..EmbedCall::new(whole.planes.layout, tokens.len() as u32, scale)
        };
        let found = embed(&runner, &call, &whole.planes, &tokens);
        for (row, &token) in found.chunks(k + 4).zip(&tokens) {
            let entry = (token as usize).min(n - 1);
            let expected = whole.values[entry * k..(entry + 1) * k].iter().map(|v| (v * scale).to_bits());
            assert!(row[..k].iter().copied().eq(expected), "{dtype}: token {token}");
            assert!(row[k..].iter().all(|word| *word == UNTOUCHED));
        }
        // The same table in two parts: each writes the rows of its tokens, and together they write all.
        let split = 4;
        let mut parts = Vec::new();
        for (first, rows) in [(0, split), (split, n - split)] {
            let layout = whole.planes.layout.with_rows(rows as u32);
            let words = whole.planes.layout.planes().zip(&whole.planes.words).map(|(plane, words)| {
                let width = layout.row_words(plane) as usize;
                words[first * width..(first + rows) * width].to_vec()
            });
            let planes = Planes { layout, words: words.collect() };
            let part = EmbedCall { table: layout, first: first as u32, ..call };
            parts.push(embed(&runner, &part, &planes, &tokens));
        }
        for (i, whole) in found.iter().enumerate() {
            let written: Vec<u32> =
                parts.iter().map(|part| part[i]).filter(|word| *word != UNTOUCHED).collect();
            let expected: Vec<u32> = [*whole].into_iter().filter(|word| *word != UNTOUCHED).collect();
            assert_eq!(written, expected, "{dtype}: element {i}");
        }
    }
}

/// The type of the activations: f32 for `matmul`, int8 for `matvec`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Activations {
    F32,
    Int8,
}

/// One product with strides, offset and accumulation.
struct Case {
    call: MatMulCall,
    activations: Activations,
    tuning: MatMulTuning,
    splits: u32,
    weight: Weight,
    x: Vec<f32>,
    y: Vec<u32>,
}

impl Case {
    fn new(noise: &mut Noise, weight: Weight, activations: Activations, rows: usize) -> Case {
        let layout = weight.planes.layout;
        let (n, k) = (layout.rows(), layout.cols());
        let call = MatMulCall {
            x_stride: k + 4 * noise.below(3),
            y_offset: noise.below(5),
            accumulate: noise.below(2) == 1,
            ..MatMulCall::new(layout, rows as u32)
        };
        let call = MatMulCall { y_stride: n + call.y_offset + noise.below(4), ..call };
        let x = (0..rows * call.x_stride as usize).map(|_| (noise.number() * 4.0) as f32).collect();
        let elements = rows * call.y_stride as usize + 8;
        let y = if call.accumulate {
            (0..elements).map(|_| (noise.number() as f32 * 8.0).to_bits()).collect()
        } else {
            vec![UNTOUCHED; elements]
        };
        Case { call, activations, tuning: MatMulTuning::default(), splits: 1, weight, x, y }
    }

    fn name(&self) -> String {
        let layout = self.call.weight;
        let (rows, activations) = (self.call.rows, self.activations);
        format!("{} {} × {}, {rows} rows, {activations:?}", layout.dtype(), layout.rows(), layout.cols())
    }

    fn run(&self, runner: &GpuRunner) -> Vec<u32> {
        let rungs = runner.gpu().rungs();
        let mut buffers = self.weight.planes.words.clone();
        match self.activations {
            Activations::F32 => buffers.push(words(&self.x)),
            Activations::Int8 => {
                let rows = self.quantized();
                buffers.extend([rows.q, rows.scales]);
            }
        }
        buffers.push(self.y.clone());
        let launch = match self.activations {
            Activations::F32 => self.call.launch(rungs, self.tuning),
            Activations::Int8 => {
                let MatMulCall { weight, rows, y_stride, y_offset, accumulate, .. } = self.call;
                let tuning = MatVecTuning {
                    workgroup: self.tuning.workgroup.unwrap_or(64).max(32 * self.splits),
                    columns: self.tuning.columns.unwrap_or(1),
                    splits: self.splits,
                    passes: 1,
                };
                MatVecCall { y_stride, y_offset, accumulate, tuning, ..MatVecCall::new(weight, rows) }
                    .launch(rungs)
            }
        };
        runner.run_launch(&launch.unwrap(), &mut buffers).unwrap();
        buffers.pop().unwrap()
    }

    fn quantized(&self) -> scalar::QuantizedRows {
        let MatMulCall { rows, x_stride, weight, .. } = self.call;
        scalar::quantize_rows(rows as usize, weight.cols() as usize, x_stride as usize, &self.x)
    }

    /// A row of the activations as the kernel sees it.
    fn row(&self, r: usize) -> Vec<f32> {
        match self.activations {
            Activations::F32 => {
                self.x[r * self.call.x_stride as usize..][..self.call.weight.cols() as usize].to_vec()
            }
            Activations::Int8 => self.quantized().values(r),
        }
    }

    /// The value that errors of a sum are relative to: the sum of magnitudes, which no partial sum exceeds.
    fn magnitude(&self, w: &[f32], x: &[f32]) -> f64 {
        match self.activations {
            Activations::F32 => w.iter().zip(x).map(|(w, x)| f64::from(w * x).abs()).sum(),
            Activations::Int8 => int8::magnitude(w, x),
        }
    }

    /// Compares with the scalar reference, within the error of f32 sums. Nothing else may be written.
    fn check(&self, found: &[u32], runner: &GpuRunner) {
        let MatMulCall { rows, y_stride, y_offset, accumulate, .. } = self.call;
        let (n, k) = (self.call.weight.rows() as usize, self.call.weight.cols() as usize);
        let mut untouched: BTreeSet<usize> = (0..found.len()).collect();
        for r in 0..rows as usize {
            let x = self.row(r);
            let at = r * y_stride as usize + y_offset as usize;
            let before: Vec<f32> = self.y[at..at + n].iter().map(|word| f32::from_bits(*word)).collect();
            let mut expected = before.clone();
            scalar::matmul(&self.weight.values, &x, accumulate, &mut expected);
            for (j, (expected, w)) in expected.iter().zip(self.weight.values.chunks_exact(k)).enumerate() {
                untouched.remove(&(at + j));
                let found = f32::from_bits(found[at + j]);
                // A term is rounded a few dozen times, each by half an ulp (6e-8) of the partial sum, and roundings
                // partly cancel.
                let magnitude = self.magnitude(w, &x);
                let before = if accumulate { f64::from(before[j].abs()) } else { 0.0 };
                let tolerance = 5e-7 * (magnitude + before);
                let off = (f64::from(found) - f64::from(*expected)).abs();
                assert!(
                    off <= tolerance,
                    "{} on {}: row {r}, column {j} is {found}, not {expected}: {off:e} > {tolerance:e}",
                    self.name(),
                    runner.name()
                );
            }
        }
        for at in untouched {
            assert_eq!(found[at], self.y[at], "{} on {}: {at} was written", self.name(), runner.name());
        }
    }
}

/// Widths that blocks of a type divide, from one block to more units than a team has lanes.
fn widths(dtype: DType) -> &'static [usize] {
    match dtype.block_elems() {
        1 => &[32, 4, 108, 1024],
        32 => &[32, 576, 4096],
        _ => &[256, 1792],
    }
}

fn activations(dtype: DType) -> &'static [Activations] {
    if dtype.is_quantized() { &[Activations::F32, Activations::Int8] } else { &[Activations::F32] }
}

/// Every width and kind of activation of these types, with these numbers of rows and some of columns.
///
/// Compilation takes most of the time: a mat-vec is another kernel for each width and number of rows, and a large one for
/// many rows. So each width is tried with one small number of rows, unless more cases are asked for.
fn products_match_the_reference(rungs: Rungs, dtypes: impl Iterator<Item = DType>, numbers: &[usize]) {
    let Some(runner) = device(rungs) else { return };
    let all = gyrus_testkit::cases(1) > 1;
    let mut noise = Noise::new(4);
    for dtype in dtypes {
        for (i, &k) in widths(dtype).iter().enumerate() {
            for &activations in activations(dtype) {
                for (j, &rows) in numbers.iter().enumerate() {
                    let fewer = activations == Activations::Int8 && !all;
                    if fewer && i % numbers.len() != j {
                        continue;
                    }
                    let rows = if fewer { rows.min(3) } else { rows };
                    let n = [1, 5, 17, 33][noise.below(4) as usize];
                    let weight = weight(&mut noise, dtype, n, k);
                    let case = Case::new(&mut noise, weight, activations, rows);
                    case.check(&case.run(&runner), &runner);
                }
            }
        }
    }
}
/// One type of each kind: without scales, with upper bits, with two scales a block, with offsets.
fn some() -> impl Iterator<Item = DType> {
    [DType::BF16, DType::Q5_0, DType::Q6_K, DType::Q4_K].into_iter()
}

#[test]
fn products_with_all_rungs() {
    products_match_the_reference(Rungs::ALL, dtypes(), &[1, 9]);
}

#[test]
fn products_of_a_smaller_tile() {
    products_match_the_reference(Rungs::ALL, some(), &[2, 3, 4]);
}

#[test]
fn products_without_f16() {
    products_match_the_reference(Rungs { f16: false, ..Rungs::ALL }, some().take(1), &[1]);
}

#[test]
fn products_without_subgroups() {
    products_match_the_reference(Rungs { subgroups: false, ..Rungs::ALL }, some().skip(1), &[8]);
}

#[test]
fn products_without_immediates() {
    products_match_the_reference(Rungs { immediates: false, ..Rungs::ALL }, some().take(2), &[1]);
}

#[test]
fn products_without_any_rung() {
    products_match_the_reference(Rungs::NONE, some(), &[1]);
}

/// All numbers of lanes for a sum, and of columns for an invocation.
#[test]
fn products_in_all_tunings() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let mut noise = Noise::new(7);
    for (lanes, workgroup, columns) in [(4, 32, 2), (64, 64, 4), (128, 256, 1)] {
        let weight = weight(&mut noise, DType::Q8_0, 19, 320);
        let mut case = Case::new(&mut noise, weight, Activations::F32, 1);
        case.tuning = MatMulTuning { workgroup: Some(workgroup), lanes: Some(lanes), columns: Some(columns) };
        case.check(&case.run(&runner), &runner);
    }
    for (workgroup, columns, splits, k) in [(128, 4, 2, 320), (256, 2, 8, 4096), (64, 8, 1, 5120)] {
        let weight = weight(&mut noise, DType::Q8_0, 19, k);
        let mut case = Case::new(&mut noise, weight, Activations::Int8, 1);
        case.tuning = MatMulTuning { workgroup: Some(workgroup), lanes: None, columns: Some(columns) };
        case.splits = splits;
        case.check(&case.run(&runner), &runner);
    }
}

/// A row has the same bits alone, beside any number of others, in any place, with any tile width, on every rung.
#[test]
fn neighbours_change_no_bit() {
    let devices: Vec<GpuRunner> =
        [Rungs::ALL, Rungs { subgroups: false, ..Rungs::ALL }].into_iter().filter_map(device).collect();
    let mut noise = Noise::new(5);
    for (dtype, k) in [(DType::Q4_0, 2048), (DType::F16, 320), (DType::Q4_1, 96)] {
        for &activations in activations(dtype) {
            let n = 7;
            let bits = weight(&mut noise, dtype, n, k);
            let x: Vec<f32> = (0..11 * k).map(|_| noise.number() as f32).collect();
            let mut known: Vec<Option<Vec<u32>>> = vec![None; 11];
            for runner in &devices {
                for (first, rows) in [(0, 1), (5, 1), (0, 2), (3, 4), (4, 5), (2, 8), (0, 9), (0, 11)] {
                    // Mat-vecs of five to eight rows are the kernel of nine, and take as long to compile.
                    if activations == Activations::Int8 && ((5..=8).contains(&rows) || rows > 4 && k < 1000) {
                        continue;
                    }
                    // Two columns at a time where no further large kernel is compiled for it.
                    for columns in if rows < 3 { 1..=2 } else { 1..=1 } {
                        let layout = bits.planes.layout;
                        let case = Case {
                            call: MatMulCall::new(layout, rows as u32),
                            activations,
                            splits: 1,
                            tuning: MatMulTuning { columns: Some(columns), ..Default::default() },
                            weight: Weight { planes: bits.planes.clone(), values: bits.values.clone() },
                            x: x[first * k..(first + rows) * k].to_vec(),
                            y: vec![UNTOUCHED; rows * n],
                        };
                        let found = case.run(runner);
                        for (r, row) in found.chunks_exact(n).enumerate() {
                            let known = known[first + r].get_or_insert_with(|| row.to_vec());
                            let rows = format!("row {} of {first}..{}", first + r, first + rows);
                            assert_eq!(row, known, "{} on {}: {rows}", case.name(), runner.name());
                        }
                    }
                }
            }
        }
    }
}

/// Int8 values are the nearest ones, and scales and sums are theirs.
#[test]
fn quantised_rows_match_the_reference() {
    for rungs in [Rungs::ALL, Rungs::NONE] {
        let Some(runner) = device(rungs) else { return };
        let mut noise = Noise::new(6);
        for (rows, cols) in [(1, 32), (3, 576), (9, 2048)] {
            let source = Source::F32 { x_stride: cols + 8 };
            let call = QuantizeCall { rows, cols, source, target: Target::Int8 };
            let (m, k) = (rows as usize, cols as usize);
            let mut x: Vec<f32> = (0..m * (k + 8)).map(|_| noise.number() as f32).collect();
            x[..32].fill(0.0);
            let reference = scalar::quantize_rows(m, k, k + 8, &x);
            let mut buffers =
                vec![words(&x), vec![UNTOUCHED; m * k / 4 + 4], vec![UNTOUCHED; m * k / 16 + 2]];
            runner.run_launch(&call.launch(runner.gpu().rungs()).unwrap(), &mut buffers).unwrap();
            assert!(buffers[1][m * k / 4..].iter().chain(&buffers[2][m * k / 16..]).all(|w| *w == UNTOUCHED));
            let scales = buffers.pop().unwrap();
            let found = scalar::QuantizedRows::from_words(k, buffers.pop().unwrap(), scales);
            for row in 0..m {
                let (bytes, expected) = (found.bytes(row), reference.bytes(row));
                for block in 0..k / 32 {
                    let (scale, of_reference) = (found.scale(row, block), reference.scale(row, block));
                    assert!(
                        (scale - of_reference).abs() <= of_reference * 4e-7,
                        "{scale} and {of_reference}"
                    );
                    let at = 2 * (row * k / 32 + block) + 1;
                    let sums =
                        [0, 16].map(|i| bytes[32 * block + i..][..16].iter().map(|q| i32::from(*q)).sum());
                    let packed = sums.map(|sum: i32| sum as u16);
                    assert_eq!(found.scales[at], u32::from(packed[0]) | u32::from(packed[1]) << 16);
                }
                for (i, (&q, &expected)) in bytes.iter().zip(&expected).enumerate() {
                    // Division on a device may be a few ulp off, so that ties may round either way.
                    let exact = x[row * (k + 8) + i] / reference.scale(row, i / 32).max(f32::MIN_POSITIVE);
                    let near_tie = (exact - exact.floor() - 0.5).abs() < 1e-4;
                    assert!(q == expected || near_tie && (q - expected).abs() == 1, "{q} for {exact}");
                }
            }
        }
    }
}

#[test]
fn out_of_bounds_calls_are_refused() {
    let layout = |dtype, n, k| WeightLayout::new(dtype, n, k).unwrap();
    let q4 = layout(DType::Q4_0, 8, 64);
    let base = MatMulCall::new(q4, 2);
    let error = |call: MatMulCall| call.launch(Rungs::ALL, Default::default()).unwrap_err().to_string();
    assert_eq!(error(MatMulCall { rows: 0, ..base }), "matmul: m is 0");
    assert_eq!(error(MatMulCall { weight: q4.with_rows(0), ..base }), "matmul: n is 0");
    assert_eq!(error(MatMulCall { x_stride: 60, ..base }), "matmul: x_stride is 60, at least 64 is needed");
    assert_eq!(
        error(MatMulCall { x_stride: 66, ..base }),
        "matmul: x_stride is 66, a multiple of 4 is needed"
    );
    assert_eq!(error(MatMulCall { y_offset: 1, ..base }), "matmul: y_stride is 8, at least 9 is needed");
    assert!(error(MatMulCall { y_offset: u32::MAX, ..base }).contains("y_stride"));
    assert!(error(MatMulCall { rows: u32::MAX, ..base }).contains("more than can be addressed"));
    let f16 = MatVecCall::new(layout(DType::F16, 8, 64), 2);
    let refused = |call: MatVecCall| call.launch(Rungs::ALL).unwrap_err().to_string();
    assert_eq!(refused(f16), "matvec: elements of type F16 are not supported");
    let q8 = MatVecCall::new(layout(DType::Q8_0, 7, 64), 2);
    assert_eq!(refused(MatVecCall { rows: 0, ..q8 }), "matvec: m is 0");
    assert!(refused(MatVecCall { input: Input::F32, ..q8 }).contains("rows that are not int8"));
    assert!(refused(MatVecCall { gate: Some(Activation::Silu), ..q8 }).contains("n is 7"));
    assert_eq!(refused(MatVecCall { y_offset: 1, ..q8 }), "matvec: y_stride is 7, at least 8 is needed");
    let tuning = MatVecTuning { workgroup: 64, columns: 1, splits: 4, passes: 1 };
    assert!(refused(MatVecCall { tuning, ..q8 }).contains("at least 32 for each split"));
    let tuned = |tuning| base.launch(Rungs::ALL, tuning).unwrap_err().to_string();
    let lanes = MatMulTuning { lanes: Some(24), ..Default::default() };
    assert_eq!(tuned(lanes), "matmul: lanes is 24, a power of two is needed");
    let workgroup = MatMulTuning { lanes: Some(64), workgroup: Some(32), ..Default::default() };
    assert_eq!(tuned(workgroup), "matmul: workgroup is 32, at least 64 is needed");
    let columns = MatMulTuning { columns: Some(3), ..Default::default() };
    assert_eq!(tuned(columns), "matmul: columns is 3, 1, 2 or 4 is needed");

    let launch = base.launch(Rungs::ALL, Default::default()).unwrap();
    let slots = launch.slots();
    let bytes: Vec<(&str, u64)> = slots.iter().map(|slot| (slot.name, slot.bytes)).collect();
    assert_eq!(bytes, [("quants", 8 * 32), ("scales", 8 * 4), ("x", 2 * 64 * 4), ("y", 2 * 8 * 4)]);

    let embed = EmbedCall::new(q4, 3, 1.0);
    let error = |call: EmbedCall| call.launch(Rungs::ALL).unwrap_err().to_string();
    assert_eq!(error(EmbedCall { first: 1, ..embed }), "embed: vocab is 8, at least 9 is needed");
    assert_eq!(error(EmbedCall { tokens: 0, ..embed }), "embed: the number of tokens is 0");
    assert_eq!(
        error(EmbedCall { y_stride: 66, ..embed }),
        "embed: y_stride is 66, a multiple of 4 is needed"
    );
    assert_eq!(error(EmbedCall { y_stride: 60, ..embed }), "embed: y_stride is 60, at least 64 is needed");
    let rows = QuantizeCall::bytes(1, 48);
    assert_eq!(
        rows.launch(Rungs::ALL).unwrap_err().to_string(),
        "quantize: k is 48, a multiple of 32 is needed"
    );
}

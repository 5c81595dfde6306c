//! A row of a mat-vec has the same bits alone, beside others, and with its prologue fused or apart. The op-test grid
//! compares single launches with their twin.
//!
//! Compilation takes most of the time here, and every constant of a kernel needs another one. So each form below has other
//! parameters, and together they cover all.

mod common;
#[path = "common/named.rs"]
mod named;

use std::ops::Range;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::engine::{self, MOST_SPLITS};
use gyrus_kernels::call::{Input, MatVecCall, MatVecSizes, MatVecTuning, QuantizeCall, Source, Target};
use gyrus_kernels::grid::{Noise, Runner, UNTOUCHED, Weight, int8_magnitude, words};
use gyrus_kernels::scalar::{self, QuantizedRows};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Activation, Planes};
use gyrus_tensor::DType;
use named::{Buffers, run};

const WITHOUT_SUBGROUPS: Rungs = Rungs { subgroups: false, ..Rungs::ALL };
const EPS: f32 = 1e-2;

fn values(words: &[u32]) -> Vec<f32> {
    words.iter().map(|word| f32::from_bits(*word)).collect()
}

/// The source of a form's rows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum From {
    Rows,
    Norm,
    Merge { head_dim: usize },
}

#[derive(Debug, Clone, Copy)]
struct Form {
    dtype: DType,
    n: usize,
    k: usize,
    from: From,
    gate: Option<Activation>,
    accumulate: bool,
    /// Workgroup, columns, splits, passes.
    tuning: (u32, u32, u32, u32),
}

/// Blocks are no multiple of the lanes, and rows of the matrix none of what a workgroup takes. The last two have several
/// passes, of which the first is full.
const FORMS: [Form; 6] = [
    form(DType::Q4_0, (26, 576), From::Norm, Some(Activation::Silu), false, (128, 2, 1, 3)),
    form(DType::Q8_0, (21, 1536), From::Rows, None, true, (128, 1, 2, 2)),
    form(DType::Q4_K, (5, 1536), From::Merge { head_dim: 96 }, None, true, (256, 2, 4, 1)),
    form(DType::Q6_K, (35, 768), From::Norm, None, false, (64, 2, 1, 8)),
    form(DType::Q4_1, (14, 2048), From::Norm, Some(Activation::GeluTanh), true, (64, 8, 1, 1)),
    form(DType::Q8_0, (9, 4160), From::Merge { head_dim: 32 }, None, false, (32, 4, 1, 2)),
];

const fn form(
    dtype: DType,
    (n, k): (usize, usize),
    from: From,
    gate: Option<Activation>,
    accumulate: bool,
    tuning: (u32, u32, u32, u32),
) -> Form {
    Form { dtype, n, k, from, gate, accumulate, tuning }
}

/// A form with data, for as many rows as any test uses.
struct Scene {
    form: Form,
    weight: Weight,
    x_stride: usize,
    x: Vec<f32>,
    norm_weight: Vec<f32>,
    window: u32,
    /// Position of each row, and an unused entry.
    positions: Vec<u32>,
    partials: Vec<f32>,
    y_stride: usize,
    y_offset: usize,
    y: Vec<u32>,
}

const ROWS: usize = 19;

impl Scene {
    fn new(seed: u64, form: Form) -> Scene {
        let noise = &mut Noise::new(seed);
        let Form { dtype, n, k, from, gate, accumulate, .. } = form;
        let weight = Weight::new(noise, dtype, n, k);
        let mut floats =
            |n: usize, most: f64| -> Vec<f32> { (0..n).map(|_| (most * noise.number()) as f32).collect() };
        let x_stride = k + 8;
        let mut x = floats(ROWS * x_stride, 4.0);
        // A block of zeros has scale 0.
        x[32..64].fill(0.0);
        // Gates are in the range where the activation is not linear.
        let norm_weight = floats(k, if gate.is_some() { 0.02 } else { 2.0 });
        let (width, y_offset) = (if gate.is_some() { n / 2 } else { n }, 3);
        let y_stride = width + y_offset + 2;
        let y =
            if accumulate { words(&floats(ROWS * y_stride, 8.0)) } else { vec![UNTOUCHED; ROWS * y_stride] };
        let window = if noise.below(2) == 1 { 700 } else { 0 };
        let positions: Vec<u32> = (0..ROWS).flat_map(|_| [noise.below(3000), UNTOUCHED]).collect();
        let mut partials = Vec::new();
        if let From::Merge { head_dim } = from {
            for position in positions.iter().step_by(2) {
                let splits = engine::splits(*position, window);
                for split in (0..k / head_dim).flat_map(|_| 0..MOST_SPLITS) {
                    let (most, total) = (20.0 * noise.number(), 1.0 + 63.0 * noise.number().abs());
                    let sums = (0..head_dim).map(|_| (total * noise.number()) as f32);
                    let part = sums.chain([most as f32, total as f32, f32::NAN, f32::NAN]);
                    // Splits that were not written must not matter.
                    partials.extend(part.map(|v| if split < splits { v } else { f32::NAN }));
                }
            }
        }
        Scene { form, weight, x_stride, x, norm_weight, window, positions, partials, y_stride, y_offset, y }
    }

    fn name(&self, runner: &GpuRunner) -> String {
        let Form { dtype, n, k, from, .. } = self.form;
        format!("{dtype} {n} × {k} of {from:?} on {}", runner.name())
    }

    fn partials_of_row(&self) -> usize {
        self.partials.len() / ROWS
    }

    fn source(&self) -> Source {
        let x_stride = self.x_stride as u32;
        match self.form.from {
            From::Rows => Source::F32 { x_stride },
            From::Norm => Source::Norm { x_stride, eps: EPS },
            From::Merge { head_dim } => Source::Merge { head_dim: head_dim as u32, window: self.window },
        }
    }

    /// The buffers of these rows, by the names of the quantize kernel.
    fn sources(&self, rows: Range<usize>) -> Buffers {
        let of_row = self.partials_of_row();
        let mut buffers = Buffers::new();
        match self.form.from {
            From::Merge { .. } => {
                buffers.insert("partials", words(&self.partials[rows.start * of_row..rows.end * of_row]));
                buffers.insert("rows", self.positions[2 * rows.start..2 * rows.end].to_vec());
            }
            _ => {
                let x = &self.x[rows.start * self.x_stride..rows.end * self.x_stride];
                buffers.insert("x", words(x));
                buffers.insert("weight", words(&self.norm_weight));
                buffers.insert("factors", vec![UNTOUCHED; rows.len() + 1]);
            }
        }
        buffers
    }

    fn quantized(&self, runner: &GpuRunner, rows: Range<usize>) -> Buffers {
        let k = self.form.k;
        let m = rows.len();
        let mut buffers = self.sources(rows);
        buffers.insert("q", vec![UNTOUCHED; m * k / 4 + 4]);
        buffers.insert("q_scales", vec![UNTOUCHED; m * k / 16 + 2]);
        let (source, target) = (self.source(), Target::Int8);
        let call = QuantizeCall { rows: m as u32, cols: k as u32, source, target };
        run(runner, &call.launch(runner.gpu().rungs()).unwrap(), &mut buffers);
        buffers
    }

    fn call(&self, rows: usize, input: Input) -> MatVecCall {
        let Form { gate, accumulate, tuning: (workgroup, columns, splits, passes), .. } = self.form;
        MatVecCall {
            experts: None,
            weight: self.weight.planes.layout,
            rows: rows as u32,
            input,
            gate,
            y_stride: self.y_stride as u32,
            y_offset: self.y_offset as u32,
            accumulate,
            tuning: MatVecTuning { workgroup, columns, splits, passes },
            sizes: MatVecSizes::H200,
        }
    }

    fn product(&self, runner: &GpuRunner, call: MatVecCall, mut inputs: Buffers, first: usize) -> Vec<u32> {
        let y = &self.y[first * self.y_stride..(first + call.rows as usize) * self.y_stride];
        inputs.insert("y", y.iter().copied().chain([UNTOUCHED; 8]).collect());
        self.launch(runner, call, inputs).remove("y").unwrap()
    }

    fn launch(&self, runner: &GpuRunner, call: MatVecCall, mut inputs: Buffers) -> Buffers {
        let Planes { layout, words } = &self.weight.planes;
        let launch = call.launch(runner.gpu().rungs()).unwrap();
        // The planes of the type come first.
        assert_eq!(launch.slots().iter().filter(|slot| slot.binding < 3).count(), layout.planes().count());
        for (slot, words) in launch.slots().iter().zip(words) {
            inputs.insert(slot.name, words.clone());
        }
        run(runner, &launch, &mut inputs);
        inputs
    }

    /// Rows that the quantize kernel has quantised to int8.
    fn as_int8(&self, runner: &GpuRunner, rows: Range<usize>) -> (Input, Buffers) {
        let mut buffers = self.quantized(runner, rows);
        for (to, from) in [("x", "q"), ("x_scales", "q_scales")] {
            let words = buffers.remove(from).unwrap();
            buffers.insert(to, words);
        }
        (Input::Int8 { norm: self.form.from == From::Norm }, buffers)
    }

    /// `y` of these rows, from int8 rows of the quantize kernel.
    fn unfused(&self, runner: &GpuRunner, rows: Range<usize>) -> Vec<u32> {
        let (input, buffers) = self.as_int8(runner, rows.clone());
        self.product(runner, self.call(rows.len(), input), buffers, rows.start)
    }

    /// One row, which the mat-vec quantises in its prologue.
    fn as_f32(&self, row: usize) -> (Input, Buffers) {
        let input = match self.form.from {
            From::Rows => Input::F32,
            From::Norm => Input::Norm { eps: EPS },
            From::Merge { head_dim } => {
                // Every other row has its position as a parameter.
                let position = row.is_multiple_of(2).then(|| self.positions[2 * row]);
                Input::Merge { head_dim: head_dim as u32, window: self.window, position }
            }
        };
        let mut buffers = self.sources(row..row + 1);
        if let Some(weight) = buffers.remove("weight") {
            buffers.insert("norm_weight", weight);
        }
        (input, buffers)
    }

    /// `y` of one row, which the mat-vec quantises in its prologue.
    fn fused(&self, runner: &GpuRunner, row: usize) -> Vec<u32> {
        let (input, buffers) = self.as_f32(row);
        self.product(runner, self.call(1, input), buffers, row)
    }

    /// Compares with the scalar reference's product of the same int8 rows, within the error of f32 sums. Nothing else may be
    /// written.
    fn check(&self, runner: &GpuRunner, rows: Range<usize>, found: &[u32]) {
        let Form { n, k, gate, accumulate, from, .. } = self.form;
        let name = self.name(runner);
        let mut buffers = self.quantized(runner, rows.clone());
        let [q, scales] = ["q", "q_scales"].map(|name| buffers.remove(name).unwrap());
        let quantized = QuantizedRows::from_words(k, q, scales);
        let (mut bent, mut checked) = (0, 0);
        for (i, row) in rows.clone().enumerate() {
            let x = quantized.values(i);
            let factor = match from {
                From::Norm => scalar::inverse_rms(&self.x[row * self.x_stride..][..k], EPS),
                _ => 1.0,
            };
            // Each result and its tolerance: a term is rounded a few dozen times in its sum.
            let mut product = vec![0.0; n];
            scalar::matmul(&self.weight.values, &x, false, &mut product);
            let product: Vec<f32> = product.iter().map(|v| (f64::from(*v) * factor) as f32).collect();
            let slack: Vec<f64> = self
                .weight
                .values
                .chunks_exact(k)
                .zip(&product)
                .map(|(w, v)| 5e-7 * factor * int8_magnitude(w, &x) + 1e-6 * f64::from(v.abs()))
                .collect();
            let width = if gate.is_some() { n / 2 } else { n };
            let mut expected = product.clone();
            if let Some(activation) = gate {
                expected.truncate(width);
                scalar::gate(activation, &product, &mut expected);
            }
            let line = i * self.y_stride;
            for (column, found) in found[line..line + self.y_stride].iter().enumerate() {
                let before = self.y[row * self.y_stride + column];
                let Some(j) = column.checked_sub(self.y_offset).filter(|j| *j < width) else {
                    assert_eq!(*found, before, "{name}: column {column} of row {row} was written");
                    continue;
                };
                let before = if accumulate { f32::from_bits(before) } else { 0.0 };
                let expected = expected[j] + before;
                let mut tolerance = slack[j];
                if gate.is_some() {
                    let (g, up) = (f64::from(product[j]), f64::from(product[width + j]).abs());
                    // Neither function is steeper than 1.2 nor larger than its argument; exp and tanh are exact to a few
                    // ulp of one.
                    let of_gate = 1.2 * slack[j] + 2e-6 * g.abs();
                    tolerance = of_gate * (up + slack[width + j]) + g.abs() * slack[width + j];
                    bent += usize::from(g.abs() < 4.0);
                    checked += 1;
                }
                tolerance += 1e-7 * f64::from(before.abs());
                let found = f32::from_bits(*found);
                let off = (f64::from(found) - f64::from(expected)).abs();
                assert!(
                    off <= tolerance,
                    "{name}: row {row} of {rows:?}, column {j} is {found}, not {expected}: {off:e} > {tolerance:e}"
                );
            }
        }
        assert!(bent * 4 >= checked, "{name}: {bent} of {checked} gates are in the nonlinear range");
        assert_eq!(found[rows.len() * self.y_stride..], [UNTOUCHED; 8], "{name}");
    }

    /// One row by itself and these ranges match the scalar reference, and a row has the same bits in all of them.
    fn check_all(&self, devices: &[GpuRunner], ranges: &[Range<usize>]) {
        let mut known: Vec<Option<Vec<u32>>> = vec![None; ROWS];
        for runner in devices {
            let mut same = |rows: Range<usize>, found: &[u32], how: &str| {
                for (row, found) in rows.clone().zip(found.chunks(self.y_stride)) {
                    let known = known[row].get_or_insert_with(|| found.to_vec());
                    assert_eq!(found, known, "{}: row {row} of {rows:?}, {how}", self.name(runner));
                }
            };
            for row in [0, 7, ROWS - 1] {
                let found = self.fused(runner, row);
                self.check(runner, row..row + 1, &found);
                same(row..row + 1, &found, "fused");
            }
            for rows in ranges {
                let found = self.unfused(runner, rows.clone());
                self.check(runner, rows.clone(), &found);
                same(rows.clone(), &found, "from bytes");
            }
        }
    }
}

fn devices() -> Vec<GpuRunner> {
    [Rungs::ALL, WITHOUT_SUBGROUPS].into_iter().filter_map(device).collect()
}

/// NaN spreads no farther than its block, its row and its head.
#[test]
fn nan_stays_in_its_row() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let mut scene = Scene::new(1, FORMS[1]);
    scene.x[scene.x_stride + 40] = f32::NAN;
    let quantized = scene.quantized(&runner, 0..3);
    let k = scene.form.k;
    for (i, scale) in values(&quantized["q_scales"]).iter().step_by(2).take(3 * k / 32).enumerate() {
        assert_eq!(scale.is_nan(), i == k / 32 + 1, "block {i}");
    }
    let found = scene.unfused(&runner, 0..3);
    for (row, found) in found.chunks_exact(scene.y_stride).take(3).enumerate() {
        let found = &values(found)[scene.y_offset..][..scene.form.n];
        assert!(found.iter().all(|v| v.is_nan() == (row == 1)), "row {row}: {found:?}");
    }
    let fused = values(&scene.fused(&runner, 1));
    assert!(fused[scene.y_offset..][..scene.form.n].iter().all(|v| v.is_nan()), "{fused:?}");
}

#[test]
fn gates_after_a_norm() {
    let devices = devices();
    Scene::new(0, FORMS[0]).check_all(&devices, &[0..1, 5..8]);
    Scene::new(4, FORMS[4]).check_all(&devices, &[7..8, 0..2]);
}

#[test]
fn sums_that_teams_share() {
    let devices = devices();
    Scene::new(1, FORMS[1]).check_all(&devices, &[7..8, 17..19]);
    Scene::new(2, FORMS[2]).check_all(&devices, &[0..1, 15..19]);
    Scene::new(5, FORMS[5]).check_all(&devices[..devices.len().min(1)], &[0..1, 6..8]);
}

#[test]
fn any_number_of_rows() {
    let devices = devices();
    Scene::new(3, FORMS[3]).check_all(&devices, &[7..8, 0..3, 6..15, 3..19, 0..19]);
}

/// Matrices large enough for tiles of sixteen rows instead of eight.
#[test]
fn tiles_of_sixteen_rows() {
    let tuning = (256, 4, 8, 1);
    Scene::new(7, Form { n: 1030, k: 320, tuning, ..FORMS[0] }).check_all(&devices(), &[2..18, 0..19]);
}

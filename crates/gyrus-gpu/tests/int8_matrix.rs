//! Mat-vecs by int8 cooperative matrices have the bits of other mat-vecs. Few devices have such matrices; the rewriting of
//! their shaders is tested without a device.

mod common;
#[path = "common/named.rs"]
mod named;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::{Input, MatVecCall, MatVecTuning, QuantizeCall, Results, Source, Target};
use gyrus_kernels::grid::{Noise, Runner, UNTOUCHED, Weight, words};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Activation, Launch, WeightLayout};
use gyrus_tensor::DType;
use named::{Buffers, run};

#[derive(Debug, Clone, Copy)]
struct Form {
    dtype: DType,
    n: usize,
    k: usize,
    splits: u32,
    rows: usize,
    norm: bool,
    gate: Option<Activation>,
    accumulate: bool,
}

const PLAIN: Form = Form {
    dtype: DType::Q4_0,
    n: 26,
    k: 1024,
    splits: 1,
    rows: 16,
    norm: false,
    gate: None,
    accumulate: false,
};

/// All types; one and two blocks a lane, splits, several tiles a workgroup; columns that are no multiple of a tile, and
/// fewer rows than a matrix.
const FORMS: [Form; 7] = [
    PLAIN,
    Form { n: 4226, k: 2048, rows: 9, norm: true, gate: Some(Activation::Silu), ..PLAIN },
    Form { n: 35, k: 8192, splits: 4, accumulate: true, ..PLAIN },
    Form { dtype: DType::Q5_0, n: 21, k: 2048, splits: 2, rows: 12, accumulate: true, ..PLAIN },
    Form { dtype: DType::Q8_0, n: 2150, rows: 13, norm: true, ..PLAIN },
    Form {
        dtype: DType::Q8_0,
        n: 18,
        k: 4096,
        splits: 2,
        norm: true,
        gate: Some(Activation::GeluTanh),
        accumulate: true,
        ..PLAIN
    },
    Form { dtype: DType::IQ4_NL, n: 40, k: 2048, rows: 1, ..PLAIN },
];

impl Form {
    fn width(&self) -> usize {
        if self.gate.is_some() { self.n / 2 } else { self.n }
    }

    fn call(&self, weight: WeightLayout) -> MatVecCall {
        MatVecCall {
            rows: self.rows as u32,
            input: Input::Int8 { norm: self.norm },
            gate: self.gate,
            y_stride: self.width() as u32 + 5,
            y_offset: 3,
            accumulate: self.accumulate,
            tuning: MatVecTuning { workgroup: 256, columns: 2, splits: self.splits, passes: 1 },
            ..MatVecCall::new(weight, 1)
        }
    }

    /// Quantised int8 rows, and the values that products are added to.
    fn inputs(&self, runner: &GpuRunner, noise: &mut Noise) -> Buffers {
        let Form { rows, k, norm, .. } = *self;
        let mut floats = |n: usize, most: f64| -> Vec<u32> {
            words(&(0..n).map(|_| (most * noise.number()) as f32).collect::<Vec<_>>())
        };
        let mut buffers = Buffers::new();
        buffers.insert("x", floats(rows * k, 4.0));
        buffers.insert("weight", floats(k, if self.gate.is_some() { 0.02 } else { 2.0 }));
        buffers.insert("y", floats(rows * (self.width() + 5) + 8, 8.0));
        buffers.insert("factors", vec![UNTOUCHED; rows]);
        buffers.insert("q", vec![UNTOUCHED; rows * k / 4]);
        buffers.insert("q_scales", vec![UNTOUCHED; rows * k / 16]);
        let x_stride = k as u32;
        let source = if norm { Source::Norm { x_stride, eps: 1e-2 } } else { Source::F32 { x_stride } };
        let call = QuantizeCall { rows: rows as u32, cols: k as u32, source, target: Target::Int8 };
        run(runner, &call.launch(runner.gpu().rungs()).unwrap(), &mut buffers);
        for (to, from) in [("x", "q"), ("x_scales", "q_scales")] {
            let words = buffers.remove(from).unwrap();
            buffers.insert(to, words);
        }
        buffers
    }
}

/// The device, if it has int8 cooperative matrices.
fn device_with_matrices() -> Option<GpuRunner> {
    let runner = device(Rungs::ALL)?;
    if !runner.gpu().rungs().int8_matrix {
        let reason = format!("{} has no int8 cooperative matrices", runner.name());
        gyrus_testkit::skip(gyrus_testkit::Need::Extra, &reason);
        return None;
    }
    Some(runner)
}

/// Every weight type with and without splits, every kind of results, the fewest and the most rows: all that is tested when
/// a device is opened. A device that fails would quietly use mat-vecs.
#[test]
fn devices_with_matrices_pass_the_self_test() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let gpu = runner.gpu();
    if !gpu.adapter().rungs.int8_matrix {
        let reason = format!("{} has no int8 cooperative matrices", runner.name());
        gyrus_testkit::skip(gyrus_testkit::Need::Extra, &reason);
        return;
    }
    gpu.int8_self_test().unwrap();
    assert!(gpu.rungs().int8_matrix);
}

/// Adds the planes of a weight, which are the first slots of a launch.
fn give_weight(buffers: &mut Buffers, launch: &Launch, weight: &Weight) {
    for (slot, words) in launch.slots().iter().zip(&weight.planes.words) {
        buffers.insert(slot.name, words.clone());
    }
}

#[test]
fn products_by_matrices_have_the_bits_of_mat_vecs() {
    let Some(runner) = device_with_matrices() else { return };
    let noise = &mut Noise::new(47);
    for form in FORMS {
        let weight = Weight::new(noise, form.dtype, form.n, form.k);
        let inputs = form.inputs(&runner, noise);
        let call = form.call(weight.planes.layout);
        let product = |launch: Launch| {
            let mut buffers = inputs.clone();
            give_weight(&mut buffers, &launch, &weight);
            run(&runner, &launch, &mut buffers);
            buffers.remove("y").unwrap()
        };
        let rungs = runner.gpu().rungs();
        let expected = product(call.launch(rungs).unwrap());
        let found = product(call.launch_int8_matrix(rungs, Results::F32).unwrap());
        let off = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(off, None, "{form:?} on {}", runner.name());
    }
}

/// The epilogue quantises gated results as the quantize kernel does.
#[test]
fn gated_results_are_quantised() {
    let Some(runner) = device_with_matrices() else { return };
    let rungs = runner.gpu().rungs();
    let noise = &mut Noise::new(49);
    for (n, rows) in [(8192, 16), (16_384, 11)] {
        let form = Form { n, rows, ..FORMS[1] };
        let weight = Weight::new(noise, form.dtype, form.n, form.k);
        let width = form.width() as u32;
        let call = MatVecCall { y_stride: width, y_offset: 0, ..form.call(weight.planes.layout) };
        let mut buffers = form.inputs(&runner, noise);
        let launch = call.launch_int8_matrix(rungs, Results::Int8).unwrap();
        give_weight(&mut buffers, &launch, &weight);
        let bytes = rows * form.width();
        for (name, words) in [("q", bytes / 4 + 4), ("q_scales", bytes / 16 + 2)] {
            buffers.insert(name, vec![UNTOUCHED; words]);
        }
        run(&runner, &launch, &mut buffers);
        let found = ["q", "q_scales"].map(|name| buffers.insert(name, vec![UNTOUCHED; bytes]).unwrap());
        let y = buffers["y"].clone();
        buffers.insert("x", y);
        let quantize = QuantizeCall::bytes(rows as u32, width);
        run(&runner, &quantize.launch(rungs).unwrap(), &mut buffers);
        for (found, (name, words)) in found.iter().zip([("q", bytes / 4), ("q_scales", bytes / 16)]) {
            assert!(found[..words] == buffers[name][..words], "{name} of {n} × {rows}");
            assert!(found[words..].iter().all(|word| *word == UNTOUCHED), "{name} of {n} × {rows}");
        }
    }
}

/// The epilogue quantises results times a norm's weight, with sums of squares from which the next product computes 1 / rms.
#[test]
fn results_are_quantised_for_a_norm() {
    let Some(runner) = device_with_matrices() else { return };
    let rungs = runner.gpu().rungs();
    let noise = &mut Noise::new(51);
    let eps = 1e-2;
    for (n, rows) in [(1024, 16), (2048, 13), (4096, 9)] {
        let form = Form { n, rows, k: 2048, accumulate: true, ..PLAIN };
        let matrix = Weight::new(noise, form.dtype, form.n, form.k);
        let call = MatVecCall { y_stride: n as u32, y_offset: 0, ..form.call(matrix.planes.layout) };
        let mut buffers = form.inputs(&runner, noise);
        let norm = (0..n).map(|_| noise.number() as f32).collect::<Vec<_>>();
        buffers.insert("weight", words(&norm));
        let launch = call.launch_int8_matrix(rungs, Results::NormedInt8).unwrap();
        give_weight(&mut buffers, &launch, &matrix);
        let sizes = [("q", rows * n / 4), ("q_scales", rows * n / 16), ("made", rows * n / 32)];
        for (name, words) in sizes {
            buffers.insert(name, vec![UNTOUCHED; words + 2]);
        }
        run(&runner, &launch, &mut buffers);
        let found = sizes.map(|(name, _)| buffers[name].clone());
        for (found, (name, words)) in found.iter().zip(sizes) {
            assert_eq!(found[words..], [UNTOUCHED; 2], "{name} of {n} × {rows}");
        }

        // The quantize kernel on the same results.
        let y = buffers["y"].clone();
        buffers.insert("x", y);
        buffers.insert("factors", vec![UNTOUCHED; rows]);
        let source = Source::Norm { x_stride: n as u32, eps };
        let quantize = QuantizeCall { rows: rows as u32, cols: n as u32, source, target: Target::Int8 };
        run(&runner, &quantize.launch(rungs).unwrap(), &mut buffers);
        for (found, (name, words)) in found.iter().zip(sizes).take(2) {
            assert!(found[..words] == buffers[name][..words], "{name} of {n} × {rows}");
        }
        let squares = rows * n / 32;
        assert!(found[2][..squares] == squares_of(&runner, &mut buffers, rows, n)[..squares], "{n} × {rows}");

        // The next product, from sums of squares and from 1 / rms.
        let next = Form { n: 40, k: n, norm: true, ..form };
        let matrix = Weight::new(noise, next.dtype, next.n, next.k);
        for (to, from) in [("x", &found[0]), ("x_scales", &found[1]), ("squares", &found[2])] {
            buffers.insert(to, from.clone());
        }
        let product = |input| {
            let splits = (n as u32 / 2048).max(1);
            let tuning = MatVecTuning { workgroup: 256, columns: 2, splits, passes: 1 };
            let call = MatVecCall { input, tuning, accumulate: false, ..next.call(matrix.planes.layout) };
            let launch = call.launch_int8_matrix(rungs, Results::F32).unwrap();
            let mut buffers = buffers.clone();
            give_weight(&mut buffers, &launch, &matrix);
            buffers.insert("y", vec![UNTOUCHED; rows * 45 + 8]);
            run(&runner, &launch, &mut buffers);
            buffers.remove("y").unwrap()
        };
        let by_squares = product(Input::Int8Squares { eps });
        assert!(by_squares == product(Input::Int8 { norm: true }), "{n} × {rows}");
    }
}

/// Sums of squares and int8 rows by the quantize kernel.
fn squares_of(runner: &GpuRunner, buffers: &mut Buffers, rows: usize, k: usize) -> Vec<u32> {
    for (name, words) in [("q", rows * k / 4), ("q_scales", rows * k / 16), ("squares", rows * k / 32)] {
        buffers.insert(name, vec![UNTOUCHED; words]);
    }
    let source = Source::Squares { x_stride: k as u32 };
    let call = QuantizeCall { rows: rows as u32, cols: k as u32, source, target: Target::Int8 };
    run(runner, &call.launch(runner.gpu().rungs()).unwrap(), buffers);
    buffers["squares"].clone()
}

/// Int8 rows with sums of squares are those with 1 / rms, and the sums give the same 1 / rms.
#[test]
fn sums_of_squares_match_inverse_rms() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let noise = &mut Noise::new(53);
    for (rows, k) in [(1, 32), (3, 544), (16, 2048)] {
        let x: Vec<f32> = (0..rows * k).map(|_| (4.0 * noise.number()) as f32).collect();
        let weight: Vec<f32> = (0..k).map(|_| noise.number() as f32).collect();
        let mut buffers = Buffers::new();
        buffers.insert("x", words(&x));
        buffers.insert("weight", words(&weight));
        let squares = squares_of(&runner, &mut buffers, rows, k);
        let found = ["q", "q_scales"].map(|name| buffers[name].clone());
        buffers.insert("factors", vec![UNTOUCHED; rows]);
        let (x_stride, eps) = (k as u32, 1e-3);
        let source = Source::Norm { x_stride, eps };
        let call = QuantizeCall { rows: rows as u32, cols: k as u32, source, target: Target::Int8 };
        run(&runner, &call.launch(runner.gpu().rungs()).unwrap(), &mut buffers);
        assert!(found == ["q", "q_scales"].map(|name| buffers[name].clone()), "{rows} × {k}");
        for (row, factor) in buffers["factors"].iter().enumerate() {
            let all = squares[row * k / 32..][..k / 32].iter().map(|s| f64::from(f32::from_bits(*s)));
            let expected = 1.0 / (all.sum::<f64>() / k as f64 + f64::from(eps)).sqrt();
            let found = f64::from(f32::from_bits(*factor));
            assert!((found / expected - 1.0).abs() < 1e-6, "{rows} × {k}: {found} for {expected}");
        }
    }
}

/// Products that int8 cooperative matrices cannot compute are refused.
#[test]
fn unsupported_products_are_refused() {
    let launch = |dtype, k, splits, rows, rungs| {
        let weight = WeightLayout::new(dtype, 40, k).unwrap();
        let form = Form { dtype, n: 40, k, splits, rows, ..PLAIN };
        form.call(weight).launch_int8_matrix(rungs, Results::F32)
    };
    assert!(launch(DType::Q4_0, 1024, 1, 16, Rungs::ALL).is_ok());
    for (dtype, k, splits, rows) in [
        // Types with two scales a block, or with an offset.
        (DType::Q6_K, 1024, 1, 16),
        (DType::Q4_1, 1024, 1, 16),
        (DType::Q4_0, 1024, 1, 17),
        (DType::Q4_0, 1024, 2, 16),
        (DType::Q4_0, 1088, 1, 16),
        (DType::Q4_0, 3072, 1, 16),
    ] {
        assert!(launch(dtype, k, splits, rows, Rungs::ALL).is_err(), "{dtype} {k} {splits} {rows}");
    }
    let without = Rungs { int8_matrix: false, ..Rungs::ALL };
    assert!(launch(DType::Q4_0, 1024, 1, 16, without).is_err());
    // A device without them has nothing to test.
    let Some(runner) = device(without) else { return };
    let error = runner.gpu().int8_self_test().unwrap_err().to_string();
    assert!(error.contains("without int8 cooperative matrices"), "{error}");
}

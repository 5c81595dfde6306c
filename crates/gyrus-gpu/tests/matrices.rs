//! Mat-vecs by matrices of bytes make the bits that those without them make. Few devices have such matrices; that the
//! kernels can be translated for those that do is tested without one.

mod common;
#[path = "common/named.rs"]
mod named;
#[allow(dead_code, reason = "types that are not looked at here, and values")]
#[path = "common/weights.rs"]
mod weights;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::{Input, MatVecCall, MatVecTuning, QuantizeCall, Source, Target};
use gyrus_kernels::grid::{Noise, Runner};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Activation, Launch, WeightLayout};
use gyrus_tensor::DType;
use named::{Buffers, run};
use weights::{UNTOUCHED, weight, words};

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
/// rows fewer than matrices have room for.
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
            input: Input::Bytes { norm: self.norm },
            gate: self.gate,
            y_stride: self.width() as u32 + 5,
            y_offset: 3,
            accumulate: self.accumulate,
            tuning: MatVecTuning { workgroup: 256, columns: 2, splits: self.splits, turns: 1 },
            ..MatVecCall::new(weight, 1)
        }
    }

    /// Rows as bytes that quantize made, and what the products are added to.
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
        let source = if norm { Source::Norm { x_stride, eps: 1e-2 } } else { Source::Rows { x_stride } };
        let call = QuantizeCall { rows: rows as u32, cols: k as u32, source, target: Target::Bytes };
        run(runner, &call.launch(runner.gpu().rungs()).unwrap(), &mut buffers);
        for (to, from) in [("x", "q"), ("x_scales", "q_scales")] {
            let words = buffers.remove(from).unwrap();
            buffers.insert(to, words);
        }
        buffers
    }
}

#[test]
fn products_by_matrices_have_the_bits_of_mat_vecs() {
    let Some(runner) = device(Rungs::ALL) else { return };
    if !runner.gpu().rungs().byte_matrices {
        println!("skipped: {} has no matrices of bytes", runner.name());
        return;
    }
    let noise = &mut Noise::new(47);
    for form in FORMS {
        let weight = weight(noise, form.dtype, form.n, form.k);
        let inputs = form.inputs(&runner, noise);
        let call = form.call(weight.planes.layout);
        let product = |launch: Launch| {
            let mut buffers = inputs.clone();
            for (slot, words) in launch.slots.iter().zip(&weight.planes.words) {
                buffers.insert(slot.name, words.clone());
            }
            run(&runner, &launch, &mut buffers);
            buffers.remove("y").unwrap()
        };
        let rungs = runner.gpu().rungs();
        let expected = product(call.launch(rungs).unwrap());
        let found = product(call.launch_by_matrices(rungs, Target::Rows).unwrap());
        let off = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(off, None, "{form:?} on {}", runner.name());
    }
}

/// Results that are gated become bytes as quantize makes them.
#[test]
fn gated_results_are_bytes_too() {
    let Some(runner) = device(Rungs::ALL) else { return };
    let rungs = runner.gpu().rungs();
    if !rungs.byte_matrices {
        println!("skipped: {} has no matrices of bytes", runner.name());
        return;
    }
    let noise = &mut Noise::new(49);
    for (n, rows) in [(8192, 16), (16_384, 11)] {
        let form = Form { n, rows, ..FORMS[1] };
        let weight = weight(noise, form.dtype, form.n, form.k);
        let width = form.width() as u32;
        let call = MatVecCall { y_stride: width, y_offset: 0, ..form.call(weight.planes.layout) };
        let mut buffers = form.inputs(&runner, noise);
        let launch = call.launch_by_matrices(rungs, Target::Bytes).unwrap();
        for (slot, words) in launch.slots.iter().zip(&weight.planes.words) {
            buffers.insert(slot.name, words.clone());
        }
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

/// What matrices cannot take is refused, and told apart from what they can.
#[test]
fn other_products_are_refused() {
    let launch = |dtype, k, splits, rows, rungs| {
        let weight = WeightLayout::new(dtype, 40, k).unwrap();
        let form = Form { dtype, n: 40, k, splits, rows, ..PLAIN };
        form.call(weight).launch_by_matrices(rungs, Target::Rows)
    };
    assert!(launch(DType::Q4_0, 1024, 1, 16, Rungs::ALL).is_ok());
    for (dtype, k, splits, rows) in [
        // Two scales, or an offset.
        (DType::Q6_K, 1024, 1, 16),
        (DType::Q4_1, 1024, 1, 16),
        (DType::Q4_0, 1024, 1, 17),
        (DType::Q4_0, 1024, 2, 16),
        (DType::Q4_0, 1088, 1, 16),
        (DType::Q4_0, 3072, 1, 16),
    ] {
        assert!(launch(dtype, k, splits, rows, Rungs::ALL).is_err(), "{dtype} {k} {splits} {rows}");
    }
    let without = Rungs { byte_matrices: false, ..Rungs::ALL };
    assert!(launch(DType::Q4_0, 1024, 1, 16, without).is_err());
}

//! Properties of products of up to 16 rows beside the op-test grid's: batch invariance and refused calls.

mod common;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::{
    EmbedCall, Input, MatMulCall, MatMulTuning, MatVecCall, MatVecTuning, QuantizeCall,
};
use gyrus_kernels::grid::{Noise, Runner, UNTOUCHED, Weight, words};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Activation, WeightLayout, scalar};
use gyrus_tensor::DType;

/// The type of the activations: f32 for `matmul`, int8 for `matvec`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Activations {
    F32,
    Int8,
}

/// One product.
struct Case {
    call: MatMulCall,
    activations: Activations,
    tuning: MatMulTuning,
    weight: Weight,
    x: Vec<f32>,
    y: Vec<u32>,
}

impl Case {
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
                    workgroup: self.tuning.workgroup.unwrap_or(64),
                    columns: self.tuning.columns.unwrap_or(1),
                    splits: 1,
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
}

fn activations(dtype: DType) -> &'static [Activations] {
    if dtype.is_quantized() { &[Activations::F32, Activations::Int8] } else { &[Activations::F32] }
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
            let bits = Weight::new(&mut noise, dtype, n, k);
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

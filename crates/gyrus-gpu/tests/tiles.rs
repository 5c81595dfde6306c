//! Properties of f16 tiles beside the op-test grid's: batch invariance, NaN, refused calls. Tests use the rungs that an
//! adapter has; with cooperative matrices they run without them, too.

mod common;

use common::device;
use gyrus_gpu::GpuRunner;
use gyrus_kernels::call::{F16RowsCall, SumTilesCall, TileCall, TileShape, TileTuning};
use gyrus_kernels::grid::{Noise, Runner, UNTOUCHED, Weight, words};
use gyrus_kernels::shader::Rungs;
use gyrus_kernels::{Activation, WeightLayout, scalar};
use gyrus_tensor::DType;

const PLAIN: Rungs = Rungs { cooperative: false, ..Rungs::ALL };

/// The device with these rungs at most, and without cooperative matrices if that makes a difference.
fn devices(rungs: Rungs) -> Vec<GpuRunner> {
    let mut devices: Vec<GpuRunner> = device(rungs).into_iter().collect();
    if devices.iter().any(|runner| runner.gpu().rungs().cooperative) {
        devices.extend(device(Rungs { cooperative: false, ..rungs }));
    }
    devices
}

fn tuned(case: &mut Case, shape: TileShape) {
    case.call.tuning = TileTuning { shape: Some(shape), ..Default::default() };
}

struct Case {
    call: TileCall,
    weight: Weight,
    x: Vec<f32>,
    y: Vec<u32>,
}

impl Case {
    fn new(noise: &mut Noise, weight: Weight, rows: usize, gate: Option<Activation>) -> Case {
        let layout = weight.planes.layout;
        let k = layout.cols() as usize;
        let mut call = TileCall { gate, ..TileCall::new(layout, rows as u32) };
        call.accumulate = gate.is_none() && noise.below(2) == 1;
        call.y_offset = noise.below(5);
        call.y_stride = call.columns() + call.y_offset + noise.below(4);
        // Rows of very different magnitude, each with small and large values.
        let mut x = vec![0.0; rows * k];
        for row in x.chunks_exact_mut(k) {
            let size = 2f64.powi(noise.below(40) as i32 - 20);
            row.fill_with(|| (noise.number() * size * if noise.below(8) == 0 { 1e-3 } else { 1.0 }) as f32);
        }
        let elements = rows * call.y_stride as usize + 8;
        let y = if call.accumulate {
            (0..elements).map(|_| (noise.number() as f32 * 8.0).to_bits()).collect()
        } else {
            vec![UNTOUCHED; elements]
        };
        Case { call, weight, x, y }
    }

    fn name(&self, runner: &GpuRunner) -> String {
        let (layout, TileCall { rows, gate, tuning, .. }) = (self.call.weight, self.call);
        let shape = tuning.shape;
        format!(
            "{} {} × {}, {rows} rows, {gate:?}, {shape:?} on {}",
            layout.dtype(),
            layout.rows(),
            layout.cols(),
            runner.name()
        )
    }

    fn f16_rows(&self) -> scalar::F16Rows {
        let cols = self.call.weight.cols();
        let call = F16RowsCall { rows: self.call.rows, cols, x_stride: cols, norm: None };
        scalar::f16_rows(&call, &self.x, &[])
    }

    fn run(&self, runner: &GpuRunner) -> Vec<u32> {
        let f16_rows = self.f16_rows();
        let rungs = runner.gpu().rungs();
        let launch = self.call.launch(rungs).unwrap();
        let mut buffers = self.weight.planes.words.clone();
        buffers.push(f16_rows.h);
        if self.call.splits > 1 {
            let parts = self.call.splits * self.call.rows * self.call.columns();
            buffers.push(vec![UNTOUCHED; parts as usize]);
            runner.run_launch(&launch, &mut buffers).unwrap();
            let parts = buffers.pop().unwrap();
            let launch = SumTilesCall::after(&self.call).launch(rungs).unwrap();
            buffers = vec![parts, words(&f16_rows.scales), self.y.clone()];
            runner.run_launch(&launch, &mut buffers).unwrap();
        } else {
            buffers.extend([words(&f16_rows.scales), self.y.clone()]);
            runner.run_launch(&launch, &mut buffers).unwrap();
        }
        buffers.pop().unwrap()
    }
}

/// Shapes that exist on a rung.
fn shapes(rungs: Rungs) -> Vec<TileShape> {
    let (large, small) = (TileShape::new(128, 128), TileShape::new(64, 64));
    let tall = TileShape::new(128, 64);
    let mut shapes = vec![large, tall, small, TileShape::new(64, 128), TileShape::new(32, 64)];
    if rungs.cooperative {
        let square = TileShape { matrices: [4, 4], ..large };
        shapes.extend([square, TileShape { step: 64, ..small }, TileShape { step: 64, ..tall }]);
        let (wide, narrow) = (TileShape::new(64, 32), TileShape::new(32, 32));
        let long = |shape, matrices, step| TileShape { matrices, step, ..shape };
        shapes.extend([long(small, [2, 1], 128), long(wide, [1, 1], 128), long(narrow, [1, 1], 128)]);
        shapes.extend([long(narrow, [1, 1], 256), long(wide, [2, 1], 64)]);
    }
    shapes
}

/// A row has the same bits in every tile shape, beside any others.
#[test]
fn shapes_and_neighbours_change_no_bit() {
    for runner in devices(Rungs::ALL) {
        let mut noise = Noise::new(2);
        for (dtype, n, k) in [(DType::Q4_0, 150, 416), (DType::Q6_K, 40, 512)] {
            let weight = Weight::new(&mut noise, dtype, n, k);
            let mut case = Case::new(&mut noise, weight, 150, None);
            let mut known: Option<Vec<u32>> = None;
            for shape in shapes(runner.gpu().rungs()) {
                tuned(&mut case, shape);
                let found = case.run(&runner);
                assert_eq!(known.get_or_insert_with(|| found.clone()), &found, "{}", case.name(&runner));
            }
            // Fewer of the same rows, from another place.
            let (first, rows) = (40, 19);
            let stride = case.call.y_stride as usize;
            let fewer = Case {
                call: TileCall { rows: rows as u32, ..case.call },
                weight: case.weight,
                x: case.x[first * k..(first + rows) * k].to_vec(),
                y: case.y[first * stride..(first + rows) * stride].to_vec(),
            };
            let known = known.unwrap();
            assert_eq!(fewer.run(&runner), known[first * stride..(first + rows) * stride], "{dtype}");
        }
    }
}

/// A row with NaN or infinity changes no other row.
#[test]
fn nan_stays_in_its_row() {
    for runner in devices(Rungs::ALL) {
        let mut noise = Noise::new(5);
        let (n, k, rows) = (24, 64, 20);
        let weight = Weight::new(&mut noise, DType::Q8_0, n, k);
        let mut case = Case::new(&mut noise, weight, rows, None);
        tuned(&mut case, TileShape::new(64, 64));
        let clean = case.run(&runner);
        case.x[3 * k + 7] = f32::NAN;
        case.x[11 * k] = f32::NEG_INFINITY;
        let cols = k as u32;
        let call = F16RowsCall { rows: rows as u32, cols, x_stride: cols, norm: None };
        let reference = case.f16_rows();
        let mut buffers = vec![words(&case.x), vec![0; reference.h.len()], vec![0; rows]];
        runner.run_launch(&call.launch(runner.gpu().rungs()).unwrap(), &mut buffers).unwrap();
        assert!(!f32::from_bits(buffers[2][3]).is_finite() && !f32::from_bits(buffers[2][11]).is_finite());
        let found = case.run(&runner);
        let stride = case.call.y_stride as usize;
        for (r, (found, clean)) in found.chunks(stride).zip(clean.chunks(stride)).take(rows).enumerate() {
            if [3, 11].contains(&r) {
                let written = &found[case.call.y_offset as usize..][..n];
                assert!(written.iter().all(|word| !f32::from_bits(*word).is_finite()), "row {r}");
            } else {
                assert_eq!(found, clean, "row {r}");
            }
        }
    }
}

#[test]
fn out_of_bounds_calls_are_refused() {
    let layout = |dtype, n, k| WeightLayout::new(dtype, n, k).unwrap();
    let q4 = layout(DType::Q4_0, 9, 96);
    let base = TileCall::new(q4, 20);
    let error = |call: TileCall| call.launch(PLAIN).unwrap_err().to_string();
    assert_eq!(error(TileCall { rows: 0, ..base }), "tiles: m is 0");
    assert_eq!(error(TileCall { weight: q4.with_rows(0), ..base }), "tiles: n is 0");
    assert_eq!(error(TileCall { y_offset: 1, ..base }), "tiles: y_stride is 9, at least 10 is needed");
    assert!(error(TileCall { y_offset: u32::MAX, ..base }).contains("y_stride"));
    assert!(error(TileCall { rows: u32::MAX, ..base }).contains("more than can be addressed"));
    let gated = TileCall::gated(q4, 20, Activation::Silu);
    assert_eq!(error(gated), "tiles: rows of the gated weight is 9, a multiple of 2 is needed");
    let gated = TileCall::gated(q4.with_rows(8), 20, Activation::Silu);
    for (call, name) in [
        (TileCall { accumulate: true, ..gated }, "accumulate is 1, 0"),
        (TileCall { splits: 2, ..gated }, "splits is 2, 1"),
    ] {
        assert_eq!(error(call), format!("tiles: {name} with a gate is needed"));
    }
    assert_eq!(error(TileCall { splits: 0, ..base }), "tiles: splits is 0");
    assert_eq!(error(TileCall { splits: 65, ..base }), "tiles: splits is 65, at most 64 is needed");
    let sum = SumTilesCall::after(&TileCall { splits: 3, ..base });
    let error = |call: SumTilesCall| call.launch(PLAIN).unwrap_err().to_string();
    assert_eq!(error(SumTilesCall { y_offset: 1, ..sum }), "sum_tiles: y_stride is 9, at least 10 is needed");
    assert!(error(SumTilesCall { rows: 1 << 30, ..sum }).contains("more than can be addressed"));
    let launch = base.launch(PLAIN).unwrap();
    let slots = launch.slots();
    let bytes: Vec<(&str, u64)> = slots.iter().map(|slot| (slot.name, slot.bytes)).collect();
    // Rows of 96 are padded to 128.
    assert_eq!(
        bytes,
        [("quants", 9 * 48), ("scales", 9 * 8), ("x", 20 * 256), ("x_scales", 80), ("y", 20 * 36)]
    );

    let shaped = |rungs, shape| {
        let tuning = TileTuning { shape: Some(shape), ..Default::default() };
        TileCall { tuning, ..base }.launch(rungs).unwrap_err().to_string()
    };
    for shape in shapes(Rungs::ALL) {
        let tuning = TileTuning { shape: Some(shape), ..Default::default() };
        // Rows of 96 are padded to 128.
        assert_eq!(TileCall { tuning, ..base }.launch(Rungs::ALL).is_ok(), shape.step <= 128, "{shape:?}");
    }
    let small = TileShape::new(64, 64);
    for wrong in [TileShape { rows: 0, ..small }, TileShape { columns: 96, ..small }] {
        assert!(shaped(PLAIN, wrong).contains("32, 64 or 128 is needed"));
    }
    for (wrong, part) in [
        (TileShape { rows: 0, ..small }, "rows is 0"),
        (TileShape { columns: 80, ..small }, "columns is 80"),
        (TileShape { rows: 256, ..small }, "workgroup is 512, at most 256"),
        (TileShape { matrices: [3, 2], ..small }, "rows of matrices is 3"),
        (TileShape { step: 16, ..small }, "step is 16"),
        (TileShape { side: 4, ..small }, "side is 4"),
        (TileShape { step: 128, ..TileShape::new(128, 64) }, "at most 49,152"),
        (TileShape { step: 256, ..small }, "step is 256, a divisor of the elements from one row"),
    ] {
        let text = shaped(Rungs::ALL, wrong);
        assert!(text.contains(part), "{text}");
    }

    let rows = F16RowsCall { rows: 2, cols: 64, x_stride: 64, norm: None };
    let error = |call: F16RowsCall| call.launch(PLAIN).unwrap_err().to_string();
    assert_eq!(error(F16RowsCall { cols: 6, ..rows }), "f16_rows: k is 6, a multiple of 4 is needed");
    assert_eq!(
        error(F16RowsCall { x_stride: 60, ..rows }),
        "f16_rows: x_stride is 60, at least 64 is needed"
    );
    assert!(error(F16RowsCall { rows: u32::MAX, ..rows }).contains("more than can be addressed"));
    assert!(error(F16RowsCall { cols: u32::MAX - 3, x_stride: u32::MAX - 3, ..rows }).contains("more than"));
}

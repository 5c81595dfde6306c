//! Mat-muls in f32.

use gyrus_tensor::DType;

use crate::call::Storage;
use crate::call::{MatMulCall, MatMulTuning};
use crate::grid::case::{Case, CaseBuffer, Rule, UNTOUCHED, words};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::grid::weights::{Weight, dtypes};
use crate::scalar;
use crate::shader::Rungs;
use crate::weights::WeightLayout;

/// Widths that blocks of a type divide, from one block to more units than a team has lanes.
pub(super) fn widths(dtype: DType) -> [usize; 4] {
    match dtype.block_elems() {
        1 => [32, 1024, 4, 108],
        32 => [32, 576, 96, 4096],
        _ => [256, 1792, 512, 768],
    }
}

/// An output with rows `stride` apart from column `offset` on; what lies between must not be written.
pub(super) struct Output {
    pub(super) stride: usize,
    pub(super) offset: usize,
    pub(super) accumulate: bool,
    before: Vec<u32>,
    after: Vec<u32>,
    tolerances: Vec<Option<f64>>,
}

impl Output {
    pub(super) fn new(
        noise: &mut Noise,
        rows: usize,
        stride: usize,
        offset: usize,
        accumulate: bool,
    ) -> Output {
        let elements = rows * stride;
        let before = if accumulate {
            (0..elements).map(|_| (noise.number() as f32 * 8.0).to_bits()).collect()
        } else {
            vec![UNTOUCHED; elements]
        };
        let tolerances = vec![None; elements];
        Output { stride, offset, accumulate, after: before.clone(), before, tolerances }
    }

    /// The value that a result is added to.
    pub(super) fn before(&self, row: usize, column: usize) -> f64 {
        let word = self.before[row * self.stride + self.offset + column];
        if self.accumulate { f32::from_bits(word).into() } else { 0.0 }
    }

    /// A result, with what it is added to, and its tolerance.
    pub(super) fn set(&mut self, row: usize, column: usize, value: f32, tolerance: f64) {
        let at = row * self.stride + self.offset + column;
        self.after[at] = value.to_bits();
        self.tolerances[at] = Some(tolerance);
    }

    pub(super) fn buffer(self, name: &'static str) -> CaseBuffer {
        let rule = Rule::Near(Storage::F32, self.tolerances);
        CaseBuffer { name, before: self.before, after: self.after, rule }
    }
}

const DEFAULT: MatMulTuning = MatMulTuning { workgroup: None, lanes: None, columns: None, rows: None };

/// Tunings by rows: most points take the default, so that few kernels are compiled.
const TUNINGS: [MatMulTuning; 6] = [
    DEFAULT,
    MatMulTuning { rows: Some(8), ..DEFAULT },
    MatMulTuning { rows: Some(4), columns: Some(2), ..DEFAULT },
    MatMulTuning { workgroup: Some(32), lanes: Some(4), columns: Some(2), rows: Some(8) },
    MatMulTuning { workgroup: Some(64), lanes: Some(64), columns: Some(4), rows: Some(2) },
    MatMulTuning { workgroup: Some(256), lanes: Some(128), columns: Some(1), rows: Some(8) },
];

pub(super) fn case(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let dtype = point.of(&dtypes());
    let k = point.of(&widths(dtype));
    let rows: usize = point.of(&[1, 9, 2, 3, 4, 8, 16]);
    let n: usize = point.of(&[1, 5, 17, 33]);
    let (x_pad, y_pad, offset) = point.of(&[(0, 0, 0), (8, 3, 4), (4, 0, 1)]);
    let accumulate = point.of(&[false, true]);
    let tuning = point.of(&TUNINGS);
    let (x_stride, y_stride) = (k + x_pad, n + offset + y_pad);
    let weight = WeightLayout::new(dtype, n, k).ok()?;
    let call = MatMulCall {
        weight,
        rows: rows as u32,
        x_stride: x_stride as u32,
        y_stride: y_stride as u32,
        y_offset: offset as u32,
        accumulate,
        experts: None,
    };
    let seed = point.seed;
    let twin = move || {
        let mut noise = Noise::new(seed);
        let weight = Weight::new(&mut noise, dtype, n, k);
        let x = noise.floats(rows * x_stride, 4.0);
        let mut y = Output::new(&mut noise, rows, y_stride, offset, accumulate);
        for row in 0..rows {
            let x = &x[row * x_stride..][..k];
            let mut product: Vec<f32> = (0..n).map(|column| y.before(row, column) as f32).collect();
            scalar::matmul(&weight.values, x, accumulate, &mut product);
            for (column, (value, w)) in product.iter().zip(weight.values.chunks_exact(k)).enumerate() {
                // A term is rounded a few dozen times, each by half an ulp (6e-8) of the partial sum, which the sum of
                // magnitudes bounds, and roundings partly cancel.
                let magnitude: f64 = w.iter().zip(x).map(|(w, x)| f64::from(w * x).abs()).sum();
                let tolerance = 5e-7 * (magnitude + y.before(row, column).abs());
                y.set(row, column, *value, tolerance);
            }
        }
        let mut buffers = weight.buffers();
        buffers.extend([CaseBuffer::read("x", words(&x)), y.buffer("y")]);
        buffers
    };
    Some(Case::new(
        format!("{dtype} {n} × {k}, {call:?}, {tuning:?}"),
        call.launch(rungs, tuning).ok()?,
        twin,
    ))
}

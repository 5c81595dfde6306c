//! Gated DeltaNet: batches of several sequences, in records that are read, written or absent.

use crate::call::{DeltaCall, decoding_run, delta_run, idle_run, record_pair};
use crate::delta::{CONV_TAPS, DeltaShape, Records};
use crate::grid::case::{Case, CaseBuffer, words};
use crate::grid::family::Point;
use crate::grid::noise::Noise;
use crate::scalar::{self, DeltaConvWeights};
use crate::shader::Rungs;

/// Records of the pool of each case.
const RECORDS: usize = 6;

/// Rows of each sequence of a batch, its records, and whether the row is one of a slot that decodes.
#[derive(Debug, Clone, Copy)]
struct Sequences(&'static [(usize, Option<u32>, u32, Option<u32>)]);

/// Rows, record that is read, record that is written, and the position of a decoding row.
const BATCHES: [Sequences; 4] = [
    Sequences(&[(1, None, 0, None)]),
    Sequences(&[(5, Some(1), 1, None), (2, None, 3, None), (3, Some(4), 2, None)]),
    Sequences(&[(1, Some(3), 0, Some(6)), (0, None, 0, None), (1, Some(4), 5, Some(9))]),
    Sequences(&[(37, Some(2), 4, None)]),
];

struct Data {
    shape: DeltaShape,
    rows: usize,
    x: Vec<f32>,
    weights: Vec<f32>,
    state: Vec<f32>,
    runs: Vec<u32>,
    row_runs: Vec<u32>,
    positions: Vec<u32>,
    prepared: Vec<f32>,
    out: Vec<f32>,
    /// All records after the batch.
    after: Vec<f32>,
}

fn data(seed: u64, shape: DeltaShape, batch: Sequences, a_is_log: bool) -> Data {
    let mut noise = Noise::new(seed);
    // A decoding slot without a sequence computes a row, too.
    let rows = batch.0.iter().map(|(rows, ..)| (*rows).max(1)).sum();
    let (channels, heads, width) = (shape.channels(), shape.value_heads, shape.projected_width());
    let x = noise.gaussians(rows * width);
    let mut weights = noise.gaussians(channels * CONV_TAPS + 2 * heads);
    if !a_is_log {
        weights[channels * CONV_TAPS..][..heads].iter_mut().for_each(|a| *a = -a.abs());
    }
    let state: Vec<f32> = noise.gaussians(RECORDS * shape.state_elems()).iter().map(|v| 0.3 * v).collect();
    let mut all = Data {
        shape,
        rows,
        x,
        weights,
        after: state.clone(),
        state,
        runs: Vec::new(),
        row_runs: Vec::new(),
        positions: Vec::new(),
        prepared: vec![0.0; rows * shape.prepared_width()],
        out: vec![0.0; rows * shape.value_width()],
    };
    for (run, (count, from, to, position)) in batch.0.iter().enumerate() {
        let first = all.row_runs.len();
        let words = match (count, position, from) {
            (0, ..) => idle_run(first as u32),
            (_, Some(position), Some(from)) => {
                let pair = if position % 2 == 0 { [*from, *to] } else { [*to, *from] };
                decoding_run(first as u32, pair)
            }
            _ => delta_run(first as u32, *count as u32, Records { from: *from, to: *to }),
        };
        all.runs.extend(words);
        for row in first..first + (*count).max(1) {
            all.row_runs.push(run as u32);
            all.positions.extend([position.unwrap_or(row as u32), 7]);
        }
        all.compute(first, *count, from.map(|from| from as usize), *to as usize, a_is_log);
    }
    all.runs.resize(4 * rows, 0);
    all
}

impl Data {
    /// The rows of one sequence by the scalar twins. A row without a sequence is prepared, and no more.
    fn compute(&mut self, first: usize, count: usize, from: Option<usize>, to: usize, a_is_log: bool) {
        let (shape, n) = (self.shape, self.shape.state_elems());
        let (channels, heads) = (shape.channels(), shape.value_heads);
        let mut state = from.map_or(vec![0.0; n], |from| self.state[from * n..(from + 1) * n].to_vec());
        let (inputs, matrices) = state.split_at_mut(shape.conv_elems());
        let (taps, gates) = self.weights.split_at(channels * CONV_TAPS);
        let (a, bias) = gates.split_at(heads);
        for row in first..first + count.max(1) {
            let x = &self.x[row * shape.projected_width()..][..shape.projected_width()];
            let mut of_taps = [x; CONV_TAPS];
            of_taps.iter_mut().zip(inputs.chunks_exact(channels)).for_each(|(tap, input)| *tap = input);
            let prepared = &mut self.prepared[row * shape.prepared_width()..][..shape.prepared_width()];
            let weights = DeltaConvWeights { taps, a, bias, a_is_log };
            scalar::delta_conv(&shape, weights, of_taps, &x[channels + shape.value_width()..], prepared);
            if count > 0 {
                let out = &mut self.out[row * shape.value_width()..][..shape.value_width()];
                scalar::delta_rule(&shape, matrices, prepared, out);
                scalar::push_input(&shape, inputs, x);
            }
        }
        if count > 0 {
            self.after[to * n..(to + 1) * n].copy_from_slice(&state);
        }
    }
}

fn shape(point: &mut Point) -> DeltaShape {
    let (key_heads, value_heads) = point.of(&[(1, 1), (2, 4), (2, 6)]);
    let (key_dim, value_dim) = point.of(&[(16, 16), (128, 128), (48, 32), (256, 16)]);
    DeltaShape { key_heads, value_heads, key_dim, value_dim, tiled: point.of(&[false, true]) }
}

fn name(shape: &DeltaShape, batch: Sequences) -> String {
    format!("{shape}: {:?}", batch.0)
}

pub(super) fn conv(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let (shape, batch, a_is_log) = (shape(point), point.of(&BATCHES), point.of(&[false, true]));
    let seed = point.seed;
    let rows = data(0, shape, batch, a_is_log).rows as u32;
    let call = DeltaCall { shape, rows, records: RECORDS as u32, a_is_log };
    let twin = move || {
        let data = data(seed, shape, batch, a_is_log);
        let padded = shape.prepared_width() - shape.channels() - 2 * shape.value_heads;
        // Sums of four products, and of a head's squares.
        let near =
            CaseBuffer::near("out", &data.prepared, |i| 2e-6 * (1.0 + f64::from(data.prepared[i].abs())));
        let mut out = CaseBuffer { ..near };
        for row in out.after.chunks_exact_mut(shape.prepared_width()) {
            let from = row.len() - padded;
            row[from..].fill(crate::grid::case::UNTOUCHED);
        }
        if let crate::grid::case::Rule::Near(_, tolerances) = &mut out.rule {
            for row in tolerances.chunks_exact_mut(shape.prepared_width()) {
                let from = row.len() - padded;
                row[from..].fill(None);
            }
        }
        vec![
            CaseBuffer::floats("x", &data.x),
            CaseBuffer::floats("state", &data.state),
            CaseBuffer::floats("weights", &data.weights),
            CaseBuffer::read("runs", data.runs),
            CaseBuffer::read("row_runs", data.row_runs),
            CaseBuffer::read("rows", data.positions),
            out,
        ]
    };
    Some(Case::new(name(&shape, batch), call.conv(rungs).ok()?, twin))
}

pub(super) fn rule(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let (shape, batch) = (shape(point), point.of(&BATCHES));
    let seed = point.seed;
    let rows = data(0, shape, batch, false).rows as u32;
    let call = DeltaCall { shape, rows, records: RECORDS as u32, a_is_log: false };
    let twin = move || {
        let data = data(seed, shape, batch, false);
        // Errors of the rows before add up, as far as the state does not decay.
        let near = |name, before: Vec<u32>, values: &[f32]| {
            let case = CaseBuffer::near(name, values, |i| 3e-5 * (1.0 + f64::from(values[i].abs())));
            CaseBuffer { before, ..case }
        };
        let untouched = vec![crate::grid::case::UNTOUCHED; data.out.len()];
        let mut out = near("out", untouched.clone(), &data.out);
        // Rows without a sequence are not written.
        let mut first = 0;
        for (count, ..) in batch.0 {
            let width = shape.value_width();
            if *count == 0 {
                let range = first * width..(first + 1) * width;
                out.after[range.clone()].copy_from_slice(&untouched[range.clone()]);
                if let crate::grid::case::Rule::Near(_, tolerances) = &mut out.rule {
                    tolerances[range].fill(None);
                }
            }
            first += (*count).max(1);
        }
        vec![
            CaseBuffer::floats("x", &data.x),
            near("state", words(&data.state), &data.after),
            CaseBuffer::floats("prepared", &data.prepared),
            CaseBuffer::read("runs", data.runs),
            CaseBuffer::read("rows", data.positions),
            out,
        ]
    };
    let mut launch = call.rule(rungs).ok()?;
    launch.groups[1] = batch.0.len() as u32;
    Some(Case::new(name(&shape, batch), launch, twin))
}

pub(super) fn copy(point: &mut Point, rungs: Rungs) -> Option<Case> {
    let shape = shape(point);
    let (from, to) = point.of(&[(Some(0u32), 5u32), (Some(4), 1), (Some(2), 2), (None, 3)]);
    let seed = point.seed;
    let call = DeltaCall { shape, rows: 1, records: RECORDS as u32, a_is_log: false };
    let twin = move || {
        let n = shape.state_elems();
        let before = Noise::new(seed).words(RECORDS * n);
        let mut after = before.clone();
        match from.map(|from| from as usize) {
            Some(from) => after.copy_within(from * n..(from + 1) * n, to as usize * n),
            None => after[to as usize * n..(to as usize + 1) * n].fill(0),
        }
        vec![
            CaseBuffer::exact("state", before, after),
            CaseBuffer::read("pair", record_pair(from, to).to_vec()),
        ]
    };
    Some(Case::new(format!("{shape}: {from:?} to {to}"), call.copy(rungs).ok()?, twin))
}

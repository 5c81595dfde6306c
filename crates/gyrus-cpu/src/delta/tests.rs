//! The ops against their scalar twins, on all instruction sets and thread counts, in chunks of any size.

use gyrus_kernels::{Batch, CONV_TAPS, DeltaShape, Records, RowKind, scalar};
use gyrus_testkit::Rng;

use super::*;
use crate::Isa;

const SHAPES: [DeltaShape; 3] = [
    DeltaShape { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 32, tiled: true },
    DeltaShape { key_heads: 2, value_heads: 6, key_dim: 32, value_dim: 16, tiled: false },
    DeltaShape { key_heads: 1, value_heads: 1, key_dim: 128, value_dim: 128, tiled: false },
];

struct Case {
    shape: DeltaShape,
    x: Vec<f32>,
    taps: Vec<f32>,
    a: Vec<f32>,
    bias: Vec<f32>,
}

impl Case {
    fn new(shape: DeltaShape, rows: usize) -> Case {
        let mut rng = Rng::new(11);
        let mut noise = |n: usize| -> Vec<f32> { (0..n).map(|_| rng.gaussian() as f32).collect() };
        Case {
            shape,
            x: noise(rows * shape.projected_width()),
            taps: noise(shape.channels() * CONV_TAPS),
            a: noise(shape.value_heads),
            bias: noise(shape.value_heads),
        }
    }

    /// Computes rows of sequences in order; `sequences` has that of each row. Returns prepared rows and outputs.
    fn run(
        &self,
        pool: &Pool,
        states: &mut StateStore,
        rows: std::ops::Range<usize>,
        sequences: &[u32],
        records: &[Records],
    ) -> (Vec<f32>, Vec<f32>) {
        let (shape, count) = (self.shape, rows.len());
        let batch = Batch {
            tokens: &vec![0; count],
            positions: &vec![0; count],
            sequences,
            kind: RowKind::Prompt,
            logits: &[],
            tables: &[],
            lengths: &vec![0; records.len()],
            records,
            inputs: Default::default(),
        };
        let mut sequence_rows = SequenceRows::default();
        sequence_rows.collect(&batch);
        let width = shape.projected_width();
        let x = &self.x[rows.start * width..rows.end * width];
        let on = DeltaContext { pool, shape, layer: 0, batch: &batch, rows: &sequence_rows, x };
        let taps = transposed(&self.taps);
        let weights = ConvWeights { taps: &taps, a: &self.a, bias: &self.bias, a_is_log: true };
        let mut prepared = vec![f32::NAN; count * shape.prepared_width()];
        delta_conv(&on, &weights, states, &mut prepared);
        let mut out = vec![f32::NAN; count * shape.value_width()];
        delta_rule(&on, &prepared, states, &mut out);
        (prepared, out)
    }

    /// The same of one sequence by the scalar twins.
    fn scalar(&self, rows: usize) -> (Vec<f32>, Vec<f32>) {
        let shape = self.shape;
        let (mut inputs, mut state) = (vec![0.0; shape.conv_elems()], vec![0.0; shape.matrix_elems()]);
        let (mut all, mut outs) = (Vec::new(), Vec::new());
        for row in self.x.chunks_exact(shape.projected_width()).take(rows) {
            let mut of_taps = [row; CONV_TAPS];
            of_taps.iter_mut().zip(inputs.chunks_exact(shape.channels())).for_each(|(tap, x)| *tap = x);
            let weights =
                scalar::DeltaConvWeights { taps: &self.taps, a: &self.a, bias: &self.bias, a_is_log: true };
            let mut prepared = vec![0.0; shape.prepared_width()];
            let gates = &row[shape.channels() + shape.value_width()..];
            scalar::delta_conv(&shape, weights, of_taps, gates, &mut prepared);
            let mut out = vec![0.0; shape.value_width()];
            scalar::delta_rule(&shape, &mut state, &prepared, &mut out);
            scalar::push_input(&shape, &mut inputs, row);
            all.extend(prepared);
            outs.extend(out);
        }
        (all, outs)
    }
}

fn in_place(first: bool) -> Records {
    Records { from: (!first).then_some(0), to: 0 }
}

#[test]
fn rows_are_those_of_the_scalar_twin_on_all_instruction_sets() {
    for shape in SHAPES {
        let (rows, case) = (70, Case::new(shape, 70));
        let (prepared, out) = case.scalar(rows);
        let run = |pool: &Pool| {
            let mut states = StateStore::new(&[shape], 2).unwrap();
            let found = case.run(pool, &mut states, 0..rows, &vec![0; rows], &[in_place(true)]);
            (found.0, found.1, states.elems().to_vec())
        };
        let portable = run(&Pool::with_isa(1, Isa::PORTABLE));
        let far = gyrus_testkit::distance;
        assert!(far(&portable.0, &prepared) < 2e-6, "{shape}: {}", far(&portable.0, &prepared));
        assert!(far(&portable.1, &out) < 1e-5, "{shape}: {}", far(&portable.1, &out));
        for isa in Isa::supported() {
            for threads in [1, 3] {
                assert_eq!(run(&Pool::with_isa(threads, isa)), portable, "{shape} {isa:?}");
            }
        }
    }
}

/// Chunks of any sizes, in one record or between two, alone or among rows of another sequence: the same bits.
#[test]
fn results_do_not_depend_on_chunks_and_neighbours() {
    let pool = Pool::new(2);
    for shape in SHAPES {
        let (rows, case) = (37, Case::new(shape, 37));
        let mut whole = StateStore::new(&[shape], 3).unwrap();
        let (_, out) = case.run(&pool, &mut whole, 0..rows, &vec![0; rows], &[in_place(true)]);
        let record = whole.elems()[..whole.record].to_vec();
        for chunk in [1, 2, 3, 5, 16] {
            for flip in [false, true] {
                let mut states = StateStore::new(&[shape], 3).unwrap();
                let (mut found, mut current) = (Vec::new(), 0);
                for first in (0..rows).step_by(chunk) {
                    let range = first..rows.min(first + chunk);
                    let to = if flip { 1 - current } else { 0 };
                    let records = Records { from: (first > 0).then_some(current), to };
                    let sequences = vec![0; range.len()];
                    found.extend(case.run(&pool, &mut states, range, &sequences, &[records]).1);
                    current = to;
                }
                assert_eq!(found, out, "{shape}, chunks of {chunk}");
                let at = current as usize * states.record;
                assert_eq!(states.elems()[at..at + states.record], record, "{shape}, chunks of {chunk}");
                states.copy(Some(current as usize), 2);
                assert_eq!(states.elems()[2 * states.record..], record);
            }
        }
        // Every third row is of another sequence.
        let sequences: Vec<u32> = (0..rows as u32).map(|row| u32::from(row % 3 == 1)).collect();
        let of_first: Vec<usize> = (0..rows).filter(|row| sequences[*row] == 0).collect();
        let mut states = StateStore::new(&[shape], 2).unwrap();
        let records = [Records { from: None, to: 1 }, Records { from: None, to: 0 }];
        let (_, mixed) = case.run(&pool, &mut states, 0..rows, &sequences, &records);
        let width = shape.projected_width();
        let x = of_first.iter().flat_map(|row| &case.x[row * width..(row + 1) * width]).copied().collect();
        let alone = Case { x, ..Case::new(shape, 0) };
        let alone = Case { taps: case.taps.clone(), a: case.a.clone(), bias: case.bias.clone(), ..alone };
        let count = of_first.len();
        let mut single = StateStore::new(&[shape], 1).unwrap();
        let (_, expected) = alone.run(&pool, &mut single, 0..count, &vec![0; count], &[in_place(true)]);
        let n = shape.value_width();
        let found: Vec<f32> =
            of_first.iter().flat_map(|row| &mixed[row * n..(row + 1) * n]).copied().collect();
        assert_eq!(found, expected, "{shape}");
        assert_eq!(states.elems()[states.record..], single.elems()[..], "{shape}");
    }
}

/// A record takes what plans say of it.
#[test]
fn records_have_the_bytes_of_their_layers() {
    let shape = DeltaShape { key_heads: 2, value_heads: 4, key_dim: 16, value_dim: 32, tiled: true };
    let store = StateStore::new(&[shape, DeltaShape { value_heads: 2, ..shape }], 5).unwrap();
    let bytes = size_of_val(store.elems());
    assert_eq!(bytes, 5 * 4 * ((3 * 192 + 4 * 512) + (3 * 128 + 2 * 512)));
}
